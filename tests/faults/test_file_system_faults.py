"""Faults of file systems below a build: no locks, no copies by the kernel."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("refuse.c")


def _refusing(name: str, directory: Path) -> str:
    """Compile what refuses one system call, and return its path."""
    library = directory / f"{name}.so"
    source = _SOURCE.read_text(encoding="utf-8")
    before, _, functions = source.partition("int flock")
    flock, _, copy = functions.partition("ssize_t copy_file_range")
    kept = f"int flock{flock}" if name == "flock" else f"ssize_t copy_file_range{copy}"
    argv = ("gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-x", "c", "-o", str(library), "-")
    subprocess.run(argv, input=before + kept, text=True, check=True)
    return str(library)


@pytest.mark.parametrize("how", ["flock", "flock-missing"])
def test_no_locks_for_builds(how, tally, tiny, tmp_path):
    """The file system of the images has no locks: flock is refused."""
    tiny.extra |= {"LD_PRELOAD": _refusing("flock", tmp_path), "REFUSE": how}
    done = tiny.run("build", tiny.recipe("echo hello > /greeting"))
    tally.trials += 1
    tally.wrong += done.returncode != 74 or "has no locks" not in done.stderr
    tally.wrong += "TOOLKIT_IMAGES" not in done.stderr or "Traceback" in done.stderr
    tally.outside += any(path.suffix == ".sif" for path in tiny.images.rglob("*"))
    assert tally.failures == 0, done.stderr


def test_no_locks_for_clusters(tally, toolkit, toolkit_env, tmp_path):
    """The file system of the cluster's directory has no locks: flock is refused."""
    with tempfile.TemporaryDirectory(
        prefix="tk-", dir="/var/tmp"
    ) as directory:  # sockets want a short path
        env = {
            **toolkit_env,
            "LD_PRELOAD": _refusing("flock", tmp_path),
            "TOOLKIT_CLUSTER_DIR": directory,
        }
        done = toolkit("cluster", "up", env=env)
    tally.trials += 1
    tally.wrong += (
        done.returncode == 0
        or "has no locks" not in done.stderr
        or "TOOLKIT_CLUSTER_DIR" not in done.stderr
    )
    assert tally.failures == 0, done.stderr


@pytest.mark.parametrize("how", ["copy", "copy-across", "copy-filtered"])
def test_no_copies_by_the_kernel(how, tally, tiny, tmp_path):
    """The file system of the images copies nothing by itself: copy_file_range is refused."""
    recipe = tiny.recipe("echo hello > /greeting")
    assert tiny.run("build", recipe).returncode == 0
    (tiny.images / "tiny.sif").unlink()
    tiny.extra |= {"LD_PRELOAD": _refusing("copy", tmp_path), "REFUSE": how}
    done = tiny.run("build", recipe)
    del tiny.extra["LD_PRELOAD"]
    tally.trials += 1
    tally.wrong += done.returncode != 0
    tally.outside += tiny.inside("/bin/cat", "/greeting") != "hello\n"
    assert tally.failures == 0, done.stderr
