"""Signed images with the real Apptainer, keys of the real OpenSSL, and jobs that demand them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster.image_fixtures import Tiny, manifest_in
from toolkit.images.sif.header import PARTITION
from toolkit.images.store.sif_files import read_descriptors


def key(directory: Path, kind: str, *guard: str) -> Path:
    """A private key, and its public part beside it."""
    made = {
        "ec": ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
        "ed": ["genpkey", "-algorithm", "ed25519"],
    }
    private = directory / f"{kind}.pem"
    subprocess.run(
        ["openssl", *made[kind], *guard, "-out", str(private)], check=True, capture_output=True
    )
    if not guard:
        public = ["-pubout", "-out", str(directory / f"{kind}.pub")]
        subprocess.run(["openssl", "pkey", "-in", str(private), *public], check=True)
    return private


@pytest.fixture
def signed(built: Tiny) -> Tiny:
    """A store with an image that is signed by ``ec.pem``."""
    done = built.run("sign", "tiny", "--key", key(built.place, "ec"))
    assert done.returncode == 0, done.stderr
    return built


def verify(
    store: Tiny, public: str = "ec.pub", image: str = "tiny"
) -> subprocess.CompletedProcess[str]:
    return store.run("verify-signature", image, "--key", store.place / public)


def test_a_signed_image_is_verified_by_the_key_and_by_no_other(signed):
    known = manifest_in(signed.images / "tiny.sif")
    assert [one["kind"] for one in known["signatures"]] == ["pem"]
    done = verify(signed)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == known["signatures"][0]["fingerprint"]
    assert signed.inside("/bin/cat", "/hello") == "hello\n"
    key(signed.place, "ed")
    other = verify(signed, "ed.pub")
    assert other.returncode == 88
    assert "not signed by this key" in other.stderr
    # What is kept is kept, with its signature.
    again = signed.run("build", signed.place / "tiny.toml", "--json")
    assert json.loads(again.stdout)["kept"] is True


def test_the_same_contents_get_the_same_head_and_another_key_replaces_the_first(signed):
    before = manifest_in(signed.images / "tiny.sif")
    private = key(signed.place, "ed")
    refused = signed.run("sign", "tiny", "--key", private)
    assert refused.returncode == 88
    assert "signed already" in refused.stderr
    signed.extra["TOOLKIT_VERBOSE"] = "1"  # shows every command with its arguments
    done = signed.run("sign", "tiny", "--key", private, "--replace")
    assert done.returncode == 0, done.stderr
    assert "PRIVATE KEY" not in done.stdout + done.stderr
    after = manifest_in(signed.images / "tiny.sif")
    assert after["sif_id"] == before["sif_id"]
    assert verify(signed, "ed.pub").returncode == 0
    assert verify(signed).returncode == 88
    guarded = key(signed.place, "ed", "-aes-256-cbc", "-pass", "pass:secret")
    refused = signed.run("sign", "tiny", "--key", guarded, "--replace")
    assert refused.returncode == 78
    assert "guarded by a passphrase" in refused.stderr
    assert "openssl pkey -in KEY -out PLAIN" in refused.stderr
    assert verify(signed, "ed.pub").returncode == 0  # the image is the one from before


def test_an_image_that_was_changed_or_added_to_is_refused(signed):
    path, copy = signed.images / "tiny.sif", signed.place / "copy.sif"
    system = next(one for one in read_descriptors(path) if one.data_type == PARTITION)
    shutil.copy(path, copy)
    with copy.open("r+b") as stream:
        stream.seek(system.offset + system.size // 2)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 1]))
    changed = verify(signed, image=str(copy))
    assert changed.returncode == 88
    assert "changed after it was signed" in changed.stderr
    shutil.copy(path, copy)
    planted, layer = signed.place / "planted", signed.place / "layer.sqfs"
    planted.mkdir()
    (planted / "greeting").write_text("planted\n")
    subprocess.run(
        ["mksquashfs", planted, layer, "-noappend", "-quiet"], check=True, capture_output=True
    )
    # Apptainer mounts such a partition over the file system, and runs the image without a word.
    overlay = "--datatype 4 --partfs 1 --parttype 4 --partarch 2 --groupid 1".split()
    subprocess.run(
        ["apptainer", "sif", "add", *overlay, copy, layer], check=True, capture_output=True
    )
    added = verify(signed, image=str(copy))
    assert added.returncode == 88
    assert "put into it after it was signed" in added.stderr
    # Signed as it is, all of it counts.
    done = signed.run("sign", copy, "--key", signed.place / "ec.pem", "--replace")
    assert done.returncode == 0, done.stderr
    assert verify(signed, image=str(copy)).returncode == 0


def test_an_image_of_nobody_is_refused_and_so_is_a_key_that_is_none(built):
    key(built.place, "ec")
    unsigned = verify(built)
    assert unsigned.returncode == 88
    assert "is not signed" in unsigned.stderr
    (built.place / "no.pub").write_text("hello\n")
    assert verify(built, "no.pub").returncode == 78
    assert verify(built, "missing.pub").returncode == 78
    assert built.run("sign", "tiny", "--key", built.place / "no.pub").returncode == 78
    assert built.run("sign", "tiny").returncode == 64


def test_a_job_may_demand_a_signed_image(signed, toolkit, cluster, shared_dir, toolkit_env):
    """Refused before anything is queued, by each way to say it."""
    assert cluster
    assert callable(toolkit)
    environment = {**toolkit_env, "TOOLKIT_IMAGES": str(signed.images)}
    folder = shared_dir / "job"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    shutil.copy(signed.place / "ec.pub", folder / "team.pub")
    (folder / "job.toml").write_text(
        'script = "train.py"\nimage = "tiny"\nlauncher = "none"\nrequire_signed = true\nsignature_key = "team.pub"\n'
    )
    images = shared_dir / "images"  # the nodes do not see the other's directory
    shutil.copytree(signed.images, images, ignore=shutil.ignore_patterns(".*"))
    environment["TOOLKIT_IMAGES"] = str(images)
    done = toolkit("run", "job", "--dry-run", cwd=shared_dir, env=environment)
    assert done.returncode == 0, done.stderr
    assert "signed" not in done.stderr, done.stderr
    key(signed.place, "ed")
    shutil.copy(signed.place / "ed.pub", folder / "team.pub")
    refused = toolkit("run", "job", "--dry-run", cwd=shared_dir, env=environment)
    assert refused.returncode in (65, 88), refused.stderr
    assert "not signed by this key" in refused.stderr
    (folder / "job.toml").write_text(
        'script = "train.py"\nimage = "tiny"\nlauncher = "none"\nrequire_signed = true\n'
    )
    nobody = toolkit("run", "job", "--dry-run", cwd=shared_dir, env=environment)
    assert nobody.returncode in (64, 65), nobody.stderr
    assert "no key is named" in nobody.stderr
