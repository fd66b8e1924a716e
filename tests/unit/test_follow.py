"""`toolkit logs -f`: which lines of a run that goes on are shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolkit.cli.main import cli
from toolkit.model.run import Outcome
from toolkit.records.store import Paths
from toolkit.runs import follow, status
from toolkit.runs.logs import Line

LINES = (
    Line("first of rank 0", "nid001", 0),
    Line("first of rank 1", "nid001", 1),
    Line("the agent", "nid001", None),
)


class _Submission:
    job_id = 7


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), ["0| first of rank 0", "1| first of rank 1", "nid001| the agent"]),
        (("--rank", "1"), ["1| first of rank 1"]),
        (("--rank", "5"), []),
    ],
)
def test_only_the_lines_that_are_wanted_are_shown(
    options: tuple[str, ...],
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def events(*_: object) -> Iterator[Any]:
        yield from LINES
        yield Outcome(state="COMPLETED", exit_code=0, seconds=1.0)

    class Points:
        points = ()

    (tmp_path / "runs" / "train-0001").mkdir(parents=True)
    (tmp_path / "runs" / "train-0001" / "plan.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(follow, "follow", events)
    monkeypatch.setattr(Paths, "read_plan", lambda _: Points())
    monkeypatch.setattr(status, "submission_of", lambda _: _Submission())
    monkeypatch.setattr(status, "client_of", lambda _: None)
    assert cli.main(["logs", "-f", *options, "train-0001"], standalone_mode=False) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "|" in line] == expected
