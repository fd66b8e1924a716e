"""`toolkit setup` on the machine that the tests run on, which it has made ready before."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit import shell

TOOLKIT = (sys.executable, "-m", "toolkit")
READY = "ready      nothing is missing on this machine"
# An ordinary user who may read everything: the checkout may lie in a directory that only root can
# enter.
_READ = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *_READ)


def setup(*arguments: str, path: str | None = None, user: bool = False) -> shell.Result:
    home = {"HOME": "/nonexistent"} if user else {}
    env = {**os.environ, **home, "PYTHONDONTWRITEBYTECODE": "1"}
    words = [*(NOBODY if user else ()), *TOOLKIT, "setup", *arguments]
    return shell.run(words, env={**env, "PATH": path or env["PATH"]}, check=False)


def test_the_machine_is_ready():
    result = setup("--check", "--with", "tests", "--with", "accounting")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0].startswith(READY)
    assert result.stdout.count("\n") == 1


def test_a_second_setup_does_nothing():
    lists = Path("/var/lib/apt/lists")
    before = lists.stat().st_mtime_ns if lists.exists() else 0
    result = setup()
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(READY)
    assert (lists.stat().st_mtime_ns if lists.exists() else 0) == before


@pytest.fixture
def hidden() -> Iterator[str]:
    """A PATH with everything but the container runtimes, readable by every user."""
    with tempfile.TemporaryDirectory(prefix="toolkit-test-", dir="/var/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        for directory in filter(Path.is_dir, map(Path, ("/usr/local/bin", "/usr/bin", "/bin"))):
            for program in directory.iterdir():
                link = place / program.name
                if program.name not in ("apptainer", "singularity") and not link.is_symlink():
                    link.symlink_to(program)
        yield name


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_without_root_and_apptainer_the_administrator_is_asked_and_nothing_installed(hidden):
    for words, user in (((), True), (("--check",), False)):
        result = setup(*words, path=hidden, user=user)
        assert (result.returncode, result.stdout) == (72, "")
        lines = result.stderr.splitlines()
        assert lines[0] == "error: this machine is not ready"
        assert "  | missing: apptainer (run and build containers)" in lines
    assert shell.which("apptainer") or shell.which("singularity")
