"""`toolkit run` and `toolkit logs -f` follow a run: what is shown, Ctrl-C, silences, and its end."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.run_fixtures import DONE, Slurm, new_run
from toolkit.api import run as running
from toolkit.cli import follow as shown
from toolkit.cli.main import cli
from toolkit.cli.shared import DETACHED
from toolkit.errors import JobLostError, SlurmUnreachableError
from toolkit.model.base import to_json
from toolkit.model.run import JobState, Outcome
from toolkit.runs import status
from toolkit.runs.logs import Line
from toolkit.runs.outcome import finish
from toolkit.runs.run import Run
from toolkit.slurm.client import Wait

LINES = (
    Line("first of rank 0", "nid001", 0),
    Line("first of rank 1", "nid001", 1),
    Line("the agent", "nid001", None),
)


def ended(*_: object, **__: object) -> Iterator[Any]:
    yield from LINES
    yield DONE


def interrupted(*_: object, **__: object) -> Iterator[Any]:
    yield LINES[0]
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), ["0| first of rank 0", "1| first of rank 1", "nid001| the agent"]),
        (("--rank", "1"), ["1| first of rank 1"]),
        (("--rank", "5"), []),
    ],
)
def test_only_the_lines_that_are_wanted_are_shown(options, expected, monkeypatch, capsys, tmp_path):
    new_run(tmp_path / "runs" / "train-0001", 7)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(status, "follow", ended)
    assert cli.main(["logs", "-f", *options, "train-0001"], standalone_mode=False) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "|" in line] == expected


def test_the_exit_code_of_a_job_that_has_ended_is_followed_too(monkeypatch, tmp_path, capsys):
    run = new_run(tmp_path / "runs" / "train-0001", 7)
    outcome = Outcome(state="FAILED", exit_code=7, seconds=1.0)
    (run.directory / "outcome.json").write_text(to_json(outcome))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["logs", "-f", "train-0001"], standalone_mode=False) == 7
    assert "exit 7" in capsys.readouterr().err
    assert cli.main(["logs", "train-0001"], standalone_mode=False) == 0


def test_a_thousand_nodes_are_not_printed_one_by_one(tmp_path, capsys):
    state = JobState(state="RUNNING", job_id=7, nodes="nid[0001-1000]", partition="main")
    shown.show_state(status.Changed(state), 3.0)
    ranks: dict[str, tuple[int, ...]] = {
        f"nid{node:04d}": (2 * node, 2 * node + 1) for node in range(1000)
    }
    outcome = Outcome(state="COMPLETED", exit_code=0, seconds=1.0, ranks=ranks)
    shown.show_outcome(outcome, Run(tmp_path / "runs" / "train-0001"))
    out = capsys.readouterr().err
    assert "nid[0001-1000]" in out
    assert len(out) < 500


@pytest.mark.parametrize(
    ("moment", "code"),
    [("while the messages are printed", 130), ("afterwards", 130), ("never", DETACHED)],
)
def test_a_second_ctrl_c_cancels_from_the_first_message_on(
    moment, code, monkeypatch, tmp_path, slurm
):
    """A job that goes on ends the command with another code than one that was cancelled."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    says: list[Any] = [interrupt if moment == "while the messages are printed" else bool]
    monkeypatch.setattr("toolkit.cli.console.say", lambda *_: says.pop()() if says else None)
    monkeypatch.setattr(
        "toolkit.cli.follow.time.sleep", interrupt if moment == "afterwards" else bool
    )
    monkeypatch.setattr(shown, "show", lambda *_, **__: interrupt())
    assert shown.follow_run(new_run(tmp_path / "x-0001", 7)) == code
    assert slurm.cancelled == ([] if moment == "never" else [7])


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("events", [ended, interrupted])
def test_a_run_that_is_not_followed_to_its_end_is_cancelled(
    events, silent, monkeypatch, tmp_path, slurm
):
    def unreachable(*_: object) -> None:
        raise SlurmUnreachableError("it could not be cancelled")

    if silent:  # which hides no error
        monkeypatch.setattr(Slurm, "cancel", unreachable)
    run, calls = new_run(tmp_path / "x-0001", 7), list[Any]()
    monkeypatch.setattr(running, "write", lambda *_: run)
    monkeypatch.setattr(running, "submit", lambda *_: 7)
    monkeypatch.setattr(running, "local_name", lambda _: None)
    monkeypatch.setattr(running, "follow", events)
    given: Any = SimpleNamespace(site=None)
    note: dict[str, Any] = {
        "on_plan": calls.append,
        "on_event": calls.append,
        "on_cancel": calls.append,
    }
    is_ended = events is ended
    if is_ended:
        assert running.complete(given, Wait(), **note) == (run, DONE)
    else:
        with pytest.raises(KeyboardInterrupt):
            running.complete(given, Wait(), **note)
    is_cancelled = not is_ended and not silent
    assert slurm.cancelled == ([7] if is_cancelled else [])
    assert calls[0] == run.plan
    assert calls[1:] == [*LINES] if is_ended else [LINES[0], *([7] if is_cancelled else [])]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_hides_no_outcome(code, monkeypatch, tmp_path):
    """A job that fills the disk leaves neither an outcome nor, maybe, a log."""

    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), str(path))

    run = new_run(tmp_path / "runs" / "train-0001", 7)
    monkeypatch.setattr("toolkit.runs.outcome.write_atomically", full)
    outcome = finish(run, JobState(state="FAILED", job_id=7, exit_code=1))
    assert (outcome.state, outcome.exit_code) == ("FAILED", 1)
    assert not run.has_ended


def followed(run: Run, monkeypatch: pytest.MonkeyPatch, *states: str | None) -> list[str]:
    """Return the events of a run as words, for answers of Slurm: a state, "" without it, or None."""
    left = list(states)

    def jobs(_: object, ids: list[int]) -> dict[int, JobState]:
        state = left.pop(0)
        if state is None:
            raise SlurmUnreachableError("away")
        return {ids[0]: JobState(job_id=ids[0], state=state)} if state else {}

    monkeypatch.setattr(Slurm, "jobs", jobs)
    monkeypatch.setattr(status, "finish", lambda *_: DONE)
    return [
        event.state.state if isinstance(event, status.Changed) else type(event).__name__
        for event in status.follow(run)
    ]


@pytest.mark.usefixtures("clock", "slurm")
def test_every_silence_of_slurm_is_told_once_and_a_job_is_lost_after_several_answers_without_it(
    tmp_path, monkeypatch
):
    """The controller forgets a job some moments before the accounting has it."""
    run = new_run(tmp_path / "x-0001", 7)
    silences = ("RUNNING", None, None, "RUNNING", None, None, None, "RUNNING", "COMPLETED")
    told = followed(run, monkeypatch, *silences)
    assert told == ["RUNNING", "Notice", "Notice", "COMPLETED", "Outcome"]
    gaps = ("RUNNING", "", "", "RUNNING", "", None, "", "COMPLETED")
    assert followed(run, monkeypatch, *gaps)[-1] == "Outcome"
    with pytest.raises(JobLostError):
        followed(run, monkeypatch, "RUNNING", "", "", "")


@pytest.mark.usefixtures("clock", "slurm")
@pytest.mark.parametrize(("cluster", "most"), [(None, 500), ("mine", 110)])
def test_a_local_cluster_is_asked_each_second(cluster, most, tmp_path, monkeypatch):
    run = new_run(tmp_path / "x-0001", 7, cluster=cluster)
    assert followed(run, monkeypatch, *["RUNNING"] * 100, "COMPLETED")[-1] == "Outcome"
    assert most / 2 < time.monotonic() <= most
