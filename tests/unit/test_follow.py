"""`toolkit logs -f`: which lines of a run that goes on are shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from toolkit.cli.main import cli
from toolkit.errors import SlurmUnreachableError
from toolkit.model.run import Outcome
from toolkit.planning.gather import GatheredInputs
from toolkit.records.store import Paths
from toolkit.runs import completion, follow, status
from toolkit.runs.logs import Line
from toolkit.slurm.patience import Wait

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


class _Cluster:
    def __init__(self) -> None:
        self.cancelled: list[int] = []

    def cancel(self, job_id: int) -> None:
        self.cancelled.append(job_id)


def _ended(*_: object, **__: object) -> Iterator[Any]:
    yield LINES[0]
    yield Outcome(state="COMPLETED", exit_code=0, seconds=1.0)


def _interrupted(*_: object, **__: object) -> Iterator[Any]:
    yield LINES[0]
    raise KeyboardInterrupt


@pytest.mark.parametrize(("events", "cancelled"), [(_ended, []), (_interrupted, [7])])
def test_a_run_that_is_not_followed_to_its_end_is_cancelled(
    events: Any, cancelled: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(completion, "write", lambda _: (Paths(tmp_path), "plan"))
    monkeypatch.setattr(completion, "submit", lambda *_: _Submission())
    monkeypatch.setattr(completion, "local_name", lambda _: None)
    monkeypatch.setattr(completion, "follow", events)
    cluster, calls = _Cluster(), list[Any]()
    gathered = GatheredInputs(cast(Any, SimpleNamespace(site=None)), cast(Any, cluster))
    try:
        run = completion.complete(
            gathered,
            Wait(),
            on_plan=calls.append,
            on_event=calls.append,
            on_cancel=calls.append,
        )
    except KeyboardInterrupt:
        assert cancelled
    else:
        assert (run.job_id, run.outcome.state, cancelled) == (7, "COMPLETED", [])
    assert cluster.cancelled == cancelled
    assert calls == ["plan", LINES[0], *cancelled]


def test_a_slurm_that_is_silent_hides_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Silent:
        def cancel(self, job_id: int) -> None:
            raise SlurmUnreachableError(f"job {job_id} could not be cancelled")

    monkeypatch.setattr(completion, "write", lambda _: (Paths(tmp_path), "plan"))
    monkeypatch.setattr(completion, "submit", lambda *_: _Submission())
    monkeypatch.setattr(completion, "local_name", lambda _: None)
    monkeypatch.setattr(completion, "follow", _interrupted)
    gathered = GatheredInputs(cast(Any, SimpleNamespace(site=None)), cast(Any, Silent()))
    cancelled: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        completion.complete(gathered, Wait(), on_cancel=cancelled.append)
    assert not cancelled
