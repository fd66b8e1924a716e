"""`toolkit logs -f`: which lines of a run that goes on are shown."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.samples import make_case
from toolkit import scripts
from toolkit.api import run as completion
from toolkit.cli import follow as shown
from toolkit.cli.console import json_too
from toolkit.cli.main import cli
from toolkit.errors import JobLostError, SlurmUnreachableError
from toolkit.explain.explanation import explain
from toolkit.explain.gather import of_run, rules
from toolkit.model.base import to_json
from toolkit.model.run import JobState, Outcome, Submission
from toolkit.planning.plan import decide
from toolkit.runs import access, finish, follow, status, store
from toolkit.runs.logs import Line
from toolkit.runs.store import Paths
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


def test_a_thousand_nodes_are_not_printed_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = JobState(state="RUNNING", job_id=7, nodes="nid[0001-1000]", partition="main")
    shown.show_state(follow.Changed(state), 7, 3.0)
    ranks: dict[str, tuple[int, ...]] = {
        f"nid{node:04d}": (2 * node, 2 * node + 1) for node in range(1000)
    }
    outcome = Outcome(state="COMPLETED", exit_code=0, seconds=1.0, ranks=ranks)
    shown.show_outcome(outcome, Paths(tmp_path / "runs" / "train-0001"))
    out = capsys.readouterr().err
    assert "1000 nodes: nid[0001-1000]" in out
    assert "rank 0,1 nid0000   rank 2,3 nid0001" in out
    assert "... 2000 ranks on 1000 nodes" in out
    assert len(out) < 3000


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


@pytest.mark.parametrize("moment", ["while the messages are printed", "afterwards", "never"])
def test_a_second_ctrl_c_cancels_from_the_first_message_on(
    moment: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    says: list[Any] = [interrupt if moment == "while the messages are printed" else bool]
    monkeypatch.setattr("toolkit.cli.console.say", lambda *_: says.pop()() if says else None)
    monkeypatch.setattr(
        "toolkit.cli.follow.time.sleep", interrupt if moment == "afterwards" else bool
    )
    monkeypatch.setattr(shown, "show", lambda *_, **__: interrupt())
    cluster = _Cluster()
    code = shown.follow_run(cast(Any, cluster), Paths(tmp_path), cast(Any, None), 7)
    assert (code, cluster.cancelled) == (130, [] if moment == "never" else [7])


@pytest.mark.parametrize(("events", "cancelled"), [(_ended, []), (_interrupted, [7])])
def test_a_run_that_is_not_followed_to_its_end_is_cancelled(
    events: Any, cancelled: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(completion, "write", lambda *_: (Paths(tmp_path), "plan"))
    monkeypatch.setattr(completion, "submit", lambda *_: _Submission())
    monkeypatch.setattr(completion, "local_name", lambda _: None)
    monkeypatch.setattr(completion, "follow", events)
    cluster, calls = _Cluster(), list[Any]()
    case = cast(Any, SimpleNamespace(site=None, client=cluster))
    try:
        run = completion.complete(
            case,
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

    monkeypatch.setattr(completion, "write", lambda *_: (Paths(tmp_path), "plan"))
    monkeypatch.setattr(completion, "submit", lambda *_: _Submission())
    monkeypatch.setattr(completion, "local_name", lambda _: None)
    monkeypatch.setattr(completion, "follow", _interrupted)
    case = cast(Any, SimpleNamespace(site=None, client=Silent()))
    cancelled: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        completion.complete(case, Wait(), on_cancel=cancelled.append)
    assert not cancelled


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_hides_no_outcome(
    code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A job that fills the disk leaves neither an outcome nor, maybe, a log."""

    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), str(path))

    directory, decided = tmp_path / "runs" / "train-0001", decide(make_case())
    store.create(directory)
    paths = store.write(directory, decided, make_case().job, scripts.script(decided))
    submission = Submission(job_id=7, site="local", submitted="2026-11-22T00:00:00Z")
    paths.submission.write_text(to_json(submission))
    monkeypatch.setattr(access, "write_atomically", full)
    state = JobState(state="FAILED", job_id=7, exit_code=1)
    outcome = finish.finish(cast(Any, None), paths, decided, state)
    assert (outcome.state, outcome.exit_code) == ("FAILED", 1)
    assert not paths.outcome.exists()
    match = explain(of_run(paths, outcome)[0], rules()).match
    assert match is not None
    assert match.rule == "no-room"


def test_a_full_disk_is_an_error_for_programs_too(capsys: pytest.CaptureFixture[str]) -> None:
    @json_too
    def command(**_: bool) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/train-0001/plan.json")

    with pytest.raises(OSError, match="No space left"):
        command(as_json=True)
    answer = json.loads(capsys.readouterr().out)
    assert answer["exit_code"] == 73
    assert answer["findings"][0]["place"] == "runs/train-0001/plan.json"
    assert answer["findings"][0]["next_step"]


class Answers:
    """A Slurm that answers as told: a state, "" for no such job, or None for silence."""

    def __init__(self, *states: str | None) -> None:
        self.states = list(states)

    def jobs(self, _: object) -> dict[int, JobState]:
        state = self.states.pop(0)
        if state is None:
            raise SlurmUnreachableError("away")
        return {7: JobState(job_id=7, state=state)} if state else {}

    def expected_start(self, _: int) -> str:
        return ""


def followed(directory: Path, monkeypatch: pytest.MonkeyPatch, *states: str | None) -> list[str]:
    """Return the events of a run as words."""
    passed = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: passed[0])
    monkeypatch.setattr("time.sleep", lambda seconds: passed.__setitem__(0, passed[0] + seconds))
    monkeypatch.setattr(follow, "finish", lambda *_: Outcome(state="x", exit_code=0, seconds=0.0))
    events = follow.follow(cast(Any, Answers(*states)), Paths(directory), decide(make_case()), 7)
    return [
        event.state.state if isinstance(event, follow.Changed) else type(event).__name__
        for event in events
    ]


def test_every_silence_of_slurm_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = ("RUNNING", None, None, "RUNNING", None, None, None, "RUNNING", "COMPLETED")
    told = followed(tmp_path, monkeypatch, *states)
    assert told == ["RUNNING", "Unreachable", "Unreachable", "COMPLETED", "Outcome"]


def test_a_job_is_lost_after_several_answers_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller forgets a job some moments before the accounting has it."""
    states = ("RUNNING", "", "", "RUNNING", "", None, "", "COMPLETED")
    assert followed(tmp_path, monkeypatch, *states)[-1] == "Outcome"
    with pytest.raises(JobLostError):
        followed(tmp_path, monkeypatch, "RUNNING", "", "", "")
