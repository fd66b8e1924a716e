"""Programs are found as ordinary users have them, whose PATH in Debian has no /usr/sbin; signals act as Ctrl-C."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.samples import make_case
from toolkit import shell
from toolkit.errors import NeedsInstallError
from toolkit.images.store.provenance import helper_versions, tool_versions
from toolkit.planning.plan import decide
from toolkit.runs import submit
from toolkit.runs.run import Run


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A program that only /usr/sbin has, so to speak."""
    path = tmp_path / "sbin" / "debootstrap"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\necho debootstrap 9.8.7 $1\n")
    path.chmod(0o755)
    found = shutil.which

    def which(name: str, mode: int = os.X_OK, path: str | None = None) -> str | None:
        is_extended = path and path.startswith("/usr/sbin")
        return found(name, mode, f"{tmp_path}/sbin:{path}" if is_extended else path)

    monkeypatch.setattr(shutil, "which", which)
    monkeypatch.setenv("PATH", "/bin")
    helper_versions.cache_clear()
    yield path
    helper_versions.cache_clear()


def test_what_is_found_is_also_started_and_named_in_a_manifest(program):
    assert shell.which("debootstrap") == str(program)
    assert shell.run(["debootstrap", "x"]).stdout == "debootstrap 9.8.7 x\n"
    assert shell.run(["debootstrap", "x"], env={"PATH": "/bin"}).ok
    assert tool_versions("apptainer 1.4.5")["debootstrap"] == "9.8.7"


@pytest.mark.parametrize("way", ["fails", "is missing"])
def test_a_tool_that_fails_or_is_missing_fails_no_finished_build(program, way, monkeypatch):
    program.write_text("#!/bin/sh\nexit 1\n")
    if way == "is missing":
        monkeypatch.setattr(shell, "which", lambda _: None)
        with pytest.raises(NeedsInstallError):
            shell.run(["debootstrap"])
    assert "debootstrap" not in tool_versions("apptainer 1.4.5")


def test_a_hangup_that_nohup_ignores_closes_nothing():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with shell.interrupted_by_signals() as received:
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("number", "pty", "is_signaled"),
    [
        (signal.SIGHUP, True, True),
        (signal.SIGINT, True, True),
        (signal.SIGTERM, True, False),
        (signal.SIGHUP, False, False),
    ],
)
def test_salloc_has_the_signals_of_the_terminal_only(number, pty, is_signaled, monkeypatch):
    """A second signal would make salloc wait forever; one that it did not get must be sent to it."""
    released: list[bool] = []
    monkeypatch.setattr(submit, "_release", lambda *given: released.append(given[-1]))
    process: Any = SimpleNamespace(poll=lambda: None)
    run = Run(Path("x"))
    run.plan = decide(make_case({"interactive": True, "pty": pty}))
    with pytest.raises(KeyboardInterrupt), submit.released_after(run, process):
        os.kill(os.getpid(), number)
    assert released == [is_signaled]
