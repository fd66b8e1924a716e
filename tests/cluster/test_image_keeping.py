"""Images that travel and go: through a real registry, by a real sshd, and by age and use."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from tests.cluster.ssh import own_sshd


def test_an_image_comes_back_from_a_registry_with_all_that_is_known_of_it(built, registry):
    manifest = built.manifest
    place = f"oras://{registry.name}/images/tiny:1"
    pushed = built.run("push", "tiny", place)
    assert pushed.returncode == 0, pushed.stderr
    taken = built.run("pull", place)
    assert taken.returncode == 64, "what has the name is not replaced unasked"
    assert built.run("remove", "tiny").returncode == 0
    assert built.left() == []
    pulled = built.run("pull", place)
    assert pulled.returncode == 0, pulled.stderr
    assert pulled.stdout.strip() == str(built.sif)
    assert built.manifest == {**manifest, "origin": place}
    assert built.inside("/bin/cat", "/hello") == "hello\n"
    assert not list(built.images.glob(".toolkit*"))


def test_an_image_is_copied_to_a_directory(built, tmp_path):
    """To one of this machine, and by ssh to one of the machine `site`."""
    with own_sshd(tmp_path) as environment:
        built.extra |= environment
        for machine in ("", "site:"):
            there = tmp_path / f"it's a {machine[:-1]} site's $images"
            there.mkdir()
            done = built.run("copy", "tiny", f"{machine}{there}", "--mode", "640")
            assert done.returncode == 0, done.stderr
            missing = built.run("copy", "tiny", f"{machine}{there}/not-there")
            assert missing.returncode in (68, 71), missing.stderr
            assert {path.name for path in there.iterdir()} == {".tiny.lock", "tiny.sif"}
            assert (there / "tiny.sif").read_bytes() == built.sif.read_bytes()
            assert (there / "tiny.sif").stat().st_mode & 0o777 == 0o640


def test_images_go_by_age_and_use_and_never_below_a_run(built):
    sif, run = built.sif, built.place / "runs/train-0001"
    run.mkdir(parents=True)
    for name in ("run.json", "plan.json"):
        (run / name).write_text("{}")
    note = "from pathlib import Path; from toolkit.images.store import usage; "
    note += f"usage.note(Path({str(sif)!r}), usage.Use(Path({str(run)!r})))"
    subprocess.run([sys.executable, "-c", note], check=True)
    old = time.time() - 40 * 86400
    os.utime(sif, (old, old))
    assert "0 B" in built.run("prune").stderr, "without an age no image goes"
    unused = built.run("prune", "--unused-for", "30d").stdout
    assert "kept: used by" not in unused, "it was used a moment ago"
    assert "kept: used by" in built.run("prune", "--older-than", "30d").stdout
    assert built.run("remove", "tiny").returncode == 75
    (run / "outcome.json").write_text("{}")
    assert "would be removed" in built.run("prune", "--older-than", "30d", "--dry-run").stdout
    assert sif.exists()
    assert "removed" in built.run("prune", "--older-than", "30d").stdout
    assert not sif.exists()
    assert built.run("prune", "--older-than", "soon").returncode == 64
