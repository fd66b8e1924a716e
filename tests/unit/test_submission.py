"""Submit once, against a Slurm that loses answers in every way in which they can be lost."""

from __future__ import annotations

import fcntl
import os
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from tests.unit.run_fixtures import REFUSED, WHEN, Slurm, full, new_run, put
from tests.unit.samples import make_case
from toolkit.api.run import resume
from toolkit.cli.follow import explain_command
from toolkit.errors import SlurmSilentError, SubmissionError, UnrecordedError
from toolkit.model.run import Submission
from toolkit.planning.plan import decide
from toolkit.runs import status
from toolkit.runs.run import Run
from toolkit.runs.submit import begun, is_over, repeatable, submit
from toolkit.slurm.client import AnswerLostError, Wait

pytestmark = pytest.mark.usefixtures("clock")
ATTEMPT = Submission(site="local", submitted=WHEN)


def has_attempt(run: Run) -> bool:
    return (run.directory / "attempt.json").exists()


def lost(directory: Path, attempt: Submission = ATTEMPT) -> Run:
    """A run of which it is not known whether Slurm has its job."""
    run = new_run(directory)
    put(run, "attempt.json", attempt)
    return run


@pytest.mark.parametrize(
    ("happens", "late", "silent"),
    [
        (["taken"], 0, 0),
        (["lost"], 0, 0),
        (["away", "away", "taken"], 0, 0),
        (["away", "lost"], 0, 0),
        (["lost"], 2, 0),
        (["lost"], 0, 3),
    ],
)
def test_a_run_is_one_job(happens, late, silent, tmp_path):
    run = new_run(tmp_path / "x-0001")
    run.client = slurm = Slurm(*happens)
    slurm.late, slurm.silent = late, silent
    number = submit(run, None, Wait(60))
    assert (run.job, slurm.calls) == (Run(run.directory).job, len(happens))
    assert [job.job_id for job in slurm.jobs_known] == [number] == [run.job_id]
    assert all(slurm.locked)
    assert not has_attempt(run)


@pytest.mark.parametrize(
    ("happens", "late", "silent", "error", "jobs"),
    [
        (["refused"], 0, 0, SubmissionError, 0),
        (["away"] * 99, 0, 0, SlurmSilentError, 0),
        (["dies"], 0, 0, AnswerLostError, 0),
        (["lost"], 0, 99, AnswerLostError, 1),
        (["lost"], 99, 0, AnswerLostError, 1),
    ],
)
def test_what_is_not_known_is_never_submitted_again(happens, late, silent, error, jobs, tmp_path):
    run, is_known = new_run(tmp_path / "x-0001"), error is not AnswerLostError
    run.client = slurm = Slurm(*happens)
    slurm.late, slurm.silent = late, silent
    with pytest.raises(error) as caught:
        submit(run, None, Wait(60))
    assert len(slurm.jobs_known) == jobs
    assert slurm.calls == 1 or error is SlurmSilentError
    assert has_attempt(run) != is_known
    assert ("toolkit ps" in str(caught.value.next_step)) != is_known
    outcome = Run(run.directory).outcome
    assert (outcome is not None and outcome.state == "REFUSED") == (error is SubmissionError)


def test_a_job_that_surfaces_late_is_found_by_whoever_looks(tmp_path, slurm):
    run = new_run(tmp_path / "x-0001")
    assert status.rows([run])[0].state == "NOT SUBMITTED"
    assert slurm.queries == 0, "nothing was submitted"
    put(run, "attempt.json", ATTEMPT)
    run = Run(run.directory)
    assert status.rows([run])[0].state == "NOT SUBMITTED", "it is too long ago"
    slurm.add(run.script, 5)
    assert status.rows([run])[0][:3] == ("x-0001", 5, "RUNNING")
    found = Submission(job_id=5, site="local", submitted=WHEN)
    assert (Run(run.directory).job, has_attempt(run)) == (found, False)


def test_nothing_is_recorded_in_the_run_of_another_user(tmp_path, slurm, monkeypatch):
    """Whoever reads it neither writes, removes, cancels nor asks Slurm for what it names."""
    runs = lost(tmp_path / "x-0001"), new_run(tmp_path / "x-0002", 4)
    slurm.add(runs[0].script, 5)
    slurm.add(runs[1].script, 4, "COMPLETED")
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    rows = status.rows(runs)
    assert [(row.job_id, row.state) for row in rows] == [(0, "UNKNOWN"), (4, "COMPLETED")]
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_job_is_not_lost_where_its_record_cannot_be_written(tmp_path, monkeypatch):
    run = lost(tmp_path / "x-0001")
    monkeypatch.setattr("toolkit.runs.run.write_atomically", full)
    with pytest.raises(UnrecordedError, match="job 5 is queued, but cannot be recorded") as caught:
        run.record(5)
    assert "toolkit ps" in (caught.value.next_step or "")
    assert has_attempt(run)


def test_the_lock_is_that_of_sbatch_too_and_nobody_else_can_take_it(tmp_path):
    run = new_run(tmp_path / "x-0001")
    with begun(run, None) as lock:
        assert not is_over(run)
        assert (run.directory / "attempt.json").stat().st_mode & 0o777 == 0o600
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(lock,))
    assert Run(run.directory).job == run.job
    assert not is_over(run, 1.0), "sbatch outlives the process that started it"
    child.communicate()
    assert is_over(run)
    assert not list(run.directory.glob("*.new"))


def test_a_repeated_command_takes_up_the_job_and_never_runs_ahead_of_sbatch(tmp_path, slurm):
    """The same settings and script; another run of the directory is none of its business."""
    script = tmp_path / "train.py"
    script.touch()
    os.utime(script, (0, 0))
    case = make_case(run=str(tmp_path / "x-0002"), folder=str(tmp_path), cwd=str(tmp_path))
    settings = repeatable(case, decide(case))
    now = replace(ATTEMPT, submitted=datetime.now(timezone.utc).isoformat(timespec="seconds"))
    run = lost(tmp_path / "a-0001", now)
    put(run, "job.json", settings)
    lost(tmp_path / "b-0001", now)
    assert resume(case, Wait()) is None
    assert slurm.queries == 4
    assert has_attempt(run), "the job may surface"
    with (run.directory / "attempt.json").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(AnswerLostError, match="still being submitted"):
            resume(case, Wait())
    slurm.late = 2
    slurm.add(run.script, 5)
    resumed = resume(case, Wait())
    assert resumed is not None
    assert (resumed.directory, resumed.job_id) == (run.directory, 5)
    assert resume(case, Wait()) is None, "its submission is known by now"
    put(run, "attempt.json", ATTEMPT)
    (run.directory / "run.json").unlink()
    changed = case._replace(source=case.source._replace(sha256="0"))
    assert resume(changed, Wait()) is None
    script.touch()
    assert resume(case, Wait()) is None, "the script was edited since"
    os.utime(script, (0, 0))
    assert has_attempt(run)
    slurm.jobs_known.clear()
    assert resume(case, Wait()) is None
    assert not has_attempt(run), "it is too long ago, and nobody asks for it any more"


def test_a_refused_run_is_explained_as_refused(tmp_path, slurm):
    run = new_run(tmp_path / "x-0001")
    slurm.happens = ["refused"]
    with pytest.raises(SubmissionError):
        submit(run, None, Wait())
    said = CliRunner().invoke(explain_command, [str(run.directory)]).output
    assert "cause      Slurm refused the job, so that nothing ran: " in said
    assert REFUSED in said
    assert "(rule refused;" in said
    assert status.rows([run])[0][2:5] == ("REFUSED", 0.0, 76)
    assert slurm.queries == 0
