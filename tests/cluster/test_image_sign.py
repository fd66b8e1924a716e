"""Signed images with the real Apptainer, keys of the real OpenSSL, and jobs that demand them."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.cluster.image_fixtures import Tiny, key
from toolkit.images.sif.header import PARTITION
from toolkit.images.store.sif_files import read_descriptors


@pytest.fixture
def signed(built: Tiny) -> Tiny:
    """A store with an image that is signed by ``ec.pem``."""
    done = built.run("sign", "tiny", "--key", key(built.place, "ec"))
    assert done.returncode == 0, done.stderr
    return built


def verify(
    store: Tiny, public: str = "ec.pub", image: object = "tiny"
) -> subprocess.CompletedProcess[str]:
    return store.run("verify-signature", image, "--key", store.place / public)


def test_a_signed_image_is_verified_by_the_key_and_by_no_other(signed):
    before = signed.manifest
    assert [one["kind"] for one in before["signatures"]] == ["pem"]
    done = verify(signed)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == before["signatures"][0]["fingerprint"]
    assert signed.inside("/bin/cat", "/hello") == "hello\n"
    # What is kept is kept, with its signature.
    again = signed.run("build", signed.place / "tiny.toml", "--json")
    assert json.loads(again.stdout)["kept"] is True
    private = key(signed.place, "ed")
    other = verify(signed, "ed.pub")
    assert other.returncode == 88
    assert "not signed by this key" in other.stderr
    refused = signed.run("sign", "tiny", "--key", private)
    assert refused.returncode == 88
    assert "signed already" in refused.stderr
    signed.extra["TOOLKIT_VERBOSE"] = "1"  # shows every command with its arguments
    done = signed.run("sign", "tiny", "--key", private, "--replace")
    assert done.returncode == 0, done.stderr
    assert "PRIVATE KEY" not in done.stdout + done.stderr
    assert signed.manifest["sif_id"] == before["sif_id"], "the same contents, the same head"
    assert verify(signed, "ed.pub").returncode == 0
    assert verify(signed).returncode == 88


def test_an_image_that_was_changed_or_added_to_is_refused(signed):
    copy = signed.place / "copy.sif"
    system = next(one for one in read_descriptors(signed.sif) if one.data_type == PARTITION)
    data = bytearray(signed.sif.read_bytes())
    data[system.offset + system.size // 2] ^= 1
    copy.write_bytes(data)
    changed = verify(signed, image=copy)
    assert changed.returncode == 88
    assert "changed after it was signed" in changed.stderr
    shutil.copy(signed.sif, copy)
    planted, layer = signed.place / "planted", signed.place / "layer.sqfs"
    planted.mkdir()
    (planted / "greeting").write_text("planted\n")
    # Apptainer mounts such a partition over the file system, and runs the image without a word.
    overlay = "--datatype 4 --partfs 1 --parttype 4 --partarch 2 --groupid 1".split()
    for words in (
        ["mksquashfs", planted, layer, "-noappend", "-quiet"],
        ["apptainer", "sif", "add", *overlay, copy, layer],
    ):
        subprocess.run(words, check=True, capture_output=True)
    added = verify(signed, image=copy)
    assert added.returncode == 88
    assert "put into it after it was signed" in added.stderr
    # Signed as it is, all of it counts.
    done = signed.run("sign", copy, "--key", signed.place / "ec.pem", "--replace")
    assert done.returncode == 0, done.stderr
    assert verify(signed, image=copy).returncode == 0


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
    guarded = key(built.place, "ed", "-aes-256-cbc", "-pass", "pass:secret")
    refused = built.run("sign", "tiny", "--key", guarded)
    assert refused.returncode == 78
    assert "guarded by a passphrase" in refused.stderr
    assert "openssl pkey -in KEY -out PLAIN" in refused.stderr


def test_a_job_may_demand_a_signed_image(signed, toolkit, cluster, shared_dir, toolkit_env):
    """Refused before anything is queued, by each way to say it."""
    del cluster
    images, folder = shared_dir / "images", shared_dir / "job"  # the nodes do not see the store
    shutil.copytree(signed.images, images, ignore=shutil.ignore_patterns(".*"))
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    job = 'script = "train.py"\nimage = "tiny"\nlauncher = "none"\nrequire_signed = true\n'

    def dry(more: str = "") -> tuple[int, str]:
        (folder / "job.toml").write_text(job + more)
        environment = {**toolkit_env, "TOOLKIT_IMAGES": str(images)}
        done = toolkit("run", "job", "--dry-run", cwd=shared_dir, env=environment)
        return done.returncode, done.stderr

    shutil.copy(signed.place / "ec.pub", folder / "team.pub")
    code, said = dry('signature_key = "team.pub"\n')
    assert (code, "signed" in said) == (0, False), said
    key(signed.place, "ed")
    shutil.copy(signed.place / "ed.pub", folder / "team.pub")
    code, said = dry('signature_key = "team.pub"\n')
    assert (code in (65, 88), "not signed by this key" in said) == (True, True), said
    code, said = dry()
    assert (code in (64, 65), "no key is named" in said) == (True, True), said
