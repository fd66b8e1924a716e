"""The pack of `make test-gpu` replaces nothing, and its report says what was not run."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.gpu import pack, report


def test_unpacking_replaces_nothing(tmp_path: Path) -> None:
    made, machine = tmp_path / "made", tmp_path / "machine"
    for root, text in ((made, "packed"), (machine, "own")):
        (root / "usr/lib").mkdir(parents=True)
        (root / "usr/lib/libssl.so").write_text(text)
    (made / "usr/sbin").mkdir()
    (made / "usr/sbin/slurmctld-wlm").write_text("program")
    (made / "usr/sbin/slurmctld").symlink_to("/etc/alternatives/slurmctld")
    (machine / "usr/lib/libdangling.so").symlink_to("nowhere")
    (made / "usr/lib/libdangling.so").write_text("packed")
    archive = tmp_path / pack.ARCHIVE
    with tarfile.open(archive, "w:xz") as files:
        for path in sorted(made.rglob("*")):
            files.add(path, arcname=str(path.relative_to(made)), recursive=False)
    assert pack.unpack(archive, machine) == 3  # the directory, the program, its link
    assert (machine / "usr/lib/libssl.so").read_text() == "own"
    assert (machine / "usr/lib/libdangling.so").is_symlink()
    assert (machine / "usr/sbin/slurmctld").readlink() == Path("/etc/alternatives/slurmctld")
    assert pack.unpack(archive, machine) == 0


def test_the_report_says_what_was_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "gather", lambda: SimpleNamespace(rows=lambda: [("GPUs", "none")]))
    written = report.Report(tmp_path / "build")
    written.titles = {"a.py::one[slurm]": "One | thing"}

    def ended(outcome: str, when: str, nodeid: str, **more: Any) -> None:
        seen = SimpleNamespace(
            outcome=outcome, when=when, nodeid=nodeid, user_properties=[], **more
        )
        written.pytest_runtest_logreport(cast("pytest.TestReport", seen))

    ended("passed", "setup", "a.py::one[slurm]", longrepr=None)
    ended("passed", "call", "a.py::one[slurm]", longrepr=None)
    ended("skipped", "setup", "a.py::two", longrepr=("a.py", 1, "Skipped: no GPU"))
    ended("failed", "setup", "a.py::three", longrepr="", longreprtext="at\nE  the reason")
    written.pytest_sessionfinish()
    made = json.loads((tmp_path / "build/gpu-report.json").read_text())
    assert [check["outcome"] for check in made["checks"]] == ["PASS", "not run", "FAIL"]
    page = (tmp_path / "build/gpu-report.md").read_text()
    assert "| One \\| thing | slurm | PASS |  |" in page
    assert "| a.py::two |  | not run | no GPU |" in page
    assert "- GPUs: none" in page
