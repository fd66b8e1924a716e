"""`toolkit run` and `toolkit logs -f` follow a run: what is shown, Ctrl-C, silences, and its end."""

from __future__ import annotations

import time

import pytest

from tests.unit.run_fixtures import Slurm, full, new_run
from toolkit.api.run import await_end
from toolkit.cli import follow as shown
from toolkit.cli.main import cli
from toolkit.cli.shared import DETACHED
from toolkit.errors import JobLostError
from toolkit.model.run import JobState, Outcome
from toolkit.runs import status
from toolkit.runs.outcome import finish
from toolkit.runs.run import Run


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), ["0| first of rank 0", "1| first of rank 1", "nid001| the agent"]),
        (("--rank", "1"), ["1| first of rank 1"]),
    ],
)
def test_wanted_lines_and_the_exit_code(options, expected, monkeypatch, capsys, tmp_path, slurm):
    run = new_run(tmp_path / "runs" / "train-0001", 7)
    log = "0| first of rank 0\n1| first of rank 1\nthe agent\n"
    (run.logs / "7-0-nid001.log").write_text(log)
    slurm.add(run.script, 7, "FAILED", exit_code=7)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # the second time it has ended already
        assert cli.main(["logs", "-f", *options, "train-0001"], standalone_mode=False) == 7
        said = capsys.readouterr()
        assert [line for line in said.out.splitlines() if "|" in line] == expected
        assert "exit 7" in said.err
    assert cli.main(["logs", "train-0001"], standalone_mode=False) == 0


def test_a_thousand_nodes_are_not_printed_one_by_one(tmp_path, capsys):
    state = JobState(state="RUNNING", job_id=7, nodes="nid[0001-1000]", partition="main")
    shown.show_state(status.Changed(state), 3.0)
    ranks: dict[str, tuple[int, ...]] = {f"nid{node:04d}": (node,) for node in range(1000)}
    outcome = Outcome(state="COMPLETED", exit_code=0, seconds=1.0, ranks=ranks)
    shown.show_outcome(outcome, Run(tmp_path / "runs" / "train-0001"))
    out = capsys.readouterr().err
    assert "nid[0001-1000]" in out
    assert len(out) < 500


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("moment", "code"), [("console.say", 130), ("follow.time.sleep", 130), ("", DETACHED)]
)
def test_a_second_ctrl_c_cancels(moment, code, monkeypatch, tmp_path, slurm):
    """From the first message on; a job that goes on ends the command with a code of its own."""
    first = [interrupt]
    for name in ("console.say", "follow.time.sleep"):
        acts = first if name == moment else []
        monkeypatch.setattr(
            f"toolkit.cli.{name}", lambda *_, acts=acts: acts.pop()() if acts else None
        )
    monkeypatch.setattr(shown, "show", lambda *_, **__: interrupt())
    assert shown.follow_run(new_run(tmp_path / "x-0001", 7)) == code
    assert slurm.cancelled == ([7] if moment else [])


@pytest.mark.parametrize("silent", [0, 99])  # which hides no error
def test_a_run_that_is_not_followed_to_its_end_is_cancelled(silent, tmp_path, slurm):
    run, cancelled = new_run(tmp_path / "x-0001", 7), list[int]()

    def event(_: object) -> None:
        slurm.silent = silent
        raise KeyboardInterrupt

    slurm.add(run.script, 7)
    with pytest.raises(KeyboardInterrupt):
        await_end(run, on_event=event, on_cancel=cancelled.append)
    assert slurm.cancelled == cancelled == ([] if silent else [7])
    slurm.silent = 0
    slurm.add(run.script, 7, "COMPLETED")
    assert await_end(run).outcome.exit_code == 0


def test_a_full_disk_hides_no_outcome(monkeypatch, tmp_path):
    """A job that fills the disk leaves neither an outcome nor, maybe, a log."""
    run = new_run(tmp_path / "runs" / "train-0001", 7)
    monkeypatch.setattr("toolkit.runs.outcome.write_atomically", full)
    outcome = finish(run, JobState(state="FAILED", job_id=7, exit_code=1))
    assert (outcome.state, outcome.exit_code) == ("FAILED", 1)
    assert not run.has_ended


def followed(run: Run, slurm: Slurm, *states: str | None) -> list[str]:
    """Return the events of a run as words, for answers of Slurm: a state, "" without it, or None."""
    slurm.moments = [*states]
    return [
        event.state.state if isinstance(event, status.Changed) else type(event).__name__
        for event in status.follow(run)
    ]


@pytest.mark.usefixtures("clock")
def test_a_silence_is_told_once_and_a_job_is_lost_after_several_answers(tmp_path, slurm):
    """The controller forgets a job some moments before the accounting has it."""
    run = new_run(tmp_path / "x-0001", 7)
    slurm.add(run.script, 7)
    silences = ("RUNNING", None, None, "RUNNING", None, None, None, "RUNNING", "COMPLETED")
    told = followed(run, slurm, *silences)
    assert told == ["RUNNING", "Notice", "Notice", "COMPLETED", "Outcome"]
    gaps = ("RUNNING", "", "", "RUNNING", "", None, "", "COMPLETED")
    assert followed(run, slurm, *gaps)[-1] == "Outcome"
    with pytest.raises(JobLostError):
        followed(run, slurm, "RUNNING", "", "", "")


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("cluster", "most"), [(None, 500), ("mine", 110)])
def test_a_local_cluster_is_asked_each_second(cluster, most, tmp_path, slurm):
    run = new_run(tmp_path / "x-0001", 7, cluster=cluster)
    slurm.add(run.script, 7)
    assert followed(run, slurm, *["RUNNING"] * 100, "COMPLETED")[-1] == "Outcome"
    assert most / 2 < time.monotonic() <= most
