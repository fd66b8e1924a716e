"""Images that travel and go: through a real registry, by a real sshd, and by age and use."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.image_fixtures import manifest_in
from tests.cluster.ssh import own_sshd


def test_an_image_comes_back_from_a_registry_with_all_that_is_known_of_it(built, registry):
    manifest = manifest_in(built.images / "tiny.sif")
    place = f"oras://{registry.name}/images/tiny:1"
    pushed = built.run("push", "tiny", place)
    assert pushed.returncode == 0, pushed.stderr
    taken = built.run("pull", place)
    assert taken.returncode == 64, "what has the name is not replaced unasked"
    assert built.run("remove", "tiny").returncode == 0
    assert built.left() in ([], [".cache"])
    pulled = built.run("pull", place)
    assert pulled.returncode == 0, pulled.stderr
    assert Path(pulled.stdout.strip()) == built.images / "tiny.sif"
    assert manifest_in(built.images / "tiny.sif") == {**manifest, "origin": place}
    assert built.inside("/bin/cat", "/hello") == "hello\n"
    assert not [path for path in built.images.iterdir() if path.name.startswith(".toolkit")]


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return the environment in which ssh reaches this host as the machine `site`."""
    with own_sshd(tmp_path) as environment:
        yield environment


@pytest.mark.parametrize("far", [True, False], ids=["ssh", "here"])
def test_an_image_is_copied_to_a_directory(far, built, sshd, tmp_path):
    there = tmp_path / "it's a site's $images"
    there.mkdir()
    built.extra |= sshd
    target = f"site:{there}" if far else str(there)
    done = built.run("copy", "tiny", target, "--mode", "640")
    assert done.returncode == 0, done.stderr
    copied = {".tiny.lock", "tiny.sif"}
    assert {path.name for path in there.iterdir()} == copied
    assert (there / "tiny.sif").read_bytes() == (built.images / "tiny.sif").read_bytes()
    assert (there / "tiny.sif").stat().st_mode & 0o777 == 0o640
    missing = built.run("copy", "tiny", f"{target}/not-there")
    assert missing.returncode in (68, 71), missing.stderr
    assert {path.name for path in there.iterdir()} == copied


def test_images_go_by_age_and_use_and_never_below_a_run(built):
    sif, run = built.images / "tiny.sif", built.place / "runs/train-0001"
    run.mkdir(parents=True)
    for name in ("run.json", "plan.json"):
        (run / name).write_text("{}")
    note = f"from pathlib import Path; from toolkit.images.store import usage; usage.note(Path({str(sif)!r}), usage.Use(Path({str(run)!r})))"
    subprocess.run([sys.executable, "-c", note], check=True)
    old = time.time() - 40 * 86400
    os.utime(sif, (old, old))
    assert "0 B" in built.run("prune").stderr, "without an age no image goes"
    assert "kept: used by" not in built.run("prune", "--unused-for", "30d").stdout, (
        "it was used a moment ago"
    )
    assert "kept: used by" in built.run("prune", "--older-than", "30d").stdout
    assert built.run("remove", "tiny").returncode == 75
    (run / "outcome.json").write_text("{}")
    assert "would be removed" in built.run("prune", "--older-than", "30d", "--dry-run").stdout
    assert sif.exists()
    assert "removed" in built.run("prune", "--older-than", "30d").stdout
    assert not sif.exists()
    assert built.run("prune", "--older-than", "soon").returncode == 64
