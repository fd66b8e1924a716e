"""Programs are found as ordinary users have them: Debian's PATH for them has no /usr/sbin."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit import shell
from toolkit.errors import NeedsInstallError
from toolkit.images.store.provenance import helper_versions, tool_versions


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    helper_versions.cache_clear()
    yield
    helper_versions.cache_clear()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that only /usr/sbin has, so to speak."""
    path = tmp_path / "sbin" / "debootstrap"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\necho debootstrap 9.8.7 $1\n")
    path.chmod(0o755)
    found = shutil.which

    def which(name: str, mode: int = os.X_OK, path: str | None = None) -> str | None:
        return found(
            name, mode, f"{tmp_path}/sbin:{path}" if path and path.startswith("/usr/sbin") else path
        )

    monkeypatch.setattr(shutil, "which", which)
    monkeypatch.setenv("PATH", "/bin")
    return path


def test_what_is_found_is_also_started(program):
    assert shell.which("debootstrap") == str(program)
    assert shell.run(["debootstrap", "x"]).stdout == "debootstrap 9.8.7 x\n"
    assert shell.run(["debootstrap", "x"], env={"PATH": "/bin"}).ok


def test_a_manifest_tells_tools_of_administrators(program):
    assert tool_versions("apptainer 1.4.5")["debootstrap"] == "9.8.7"
    program.write_text("#!/bin/sh\nexit 1\n")
    helper_versions.cache_clear()
    assert "debootstrap" not in tool_versions("apptainer 1.4.5")


def test_a_tool_that_is_missing_fails_no_finished_build(monkeypatch):
    monkeypatch.setattr(shell, "which", lambda _: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NeedsInstallError):
        shell.run(["debootstrap"])
    assert set(tool_versions("apptainer 1.4.5")) == {"toolkit", "apptainer"}
