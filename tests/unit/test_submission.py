"""Submit once, against a Slurm that loses answers in every way in which they can be lost."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.run_fixtures import Slurm, new_run, put
from tests.unit.samples import make_case
from toolkit.api.run import resume
from toolkit.cli.follow import explain_command
from toolkit.errors import SlurmSilentError, SubmissionError, UnrecordedError
from toolkit.model.base import to_json
from toolkit.model.run import Outcome, Submission
from toolkit.planning.plan import decide
from toolkit.runs import status
from toolkit.runs.run import Run
from toolkit.runs.submit import begun, is_over, repeatable, submit
from toolkit.slurm.client import AnswerLostError, Wait

pytestmark = pytest.mark.usefixtures("clock")
SINCE = "2026-11-21T00:00:00+00:00"
ATTEMPT = to_json(Submission(site="local", submitted=SINCE))


def attempt_of(run: Run) -> Path:
    return run.directory / "attempt.json"


@pytest.mark.parametrize(
    ("stand_in", "calls"),
    [
        (Slurm("taken"), 1),
        (Slurm("lost"), 1),
        (Slurm("away", "away", "taken"), 3),
        (Slurm("away", "lost"), 2),
        (Slurm("lost", late=2), 1),
        (Slurm("lost", silent=3), 1),
    ],
)
def test_a_run_is_one_job(stand_in, calls, tmp_path):
    run = new_run(tmp_path / "x-0001")
    run.client = stand_in
    number = submit(run, None, Wait(60))
    assert (run.job, stand_in.calls) == (Run(run.directory).job, calls)
    assert [job.job_id for job in stand_in.jobs_known] == [number] == [run.job_id]
    assert all(stand_in.locked)
    assert not attempt_of(run).exists()


@pytest.mark.parametrize(
    ("stand_in", "error", "jobs", "is_known"),
    [
        (Slurm("refused"), SubmissionError, 0, True),
        (Slurm(*["away"] * 99), SlurmSilentError, 0, True),
        (Slurm("dies"), AnswerLostError, 0, False),
        (Slurm("lost", silent=99), AnswerLostError, 1, False),
        (Slurm("lost", late=99), AnswerLostError, 1, False),
        (Slurm("away", "dies"), AnswerLostError, 0, False),
    ],
)
def test_what_is_not_known_is_never_submitted_again(stand_in, error, jobs, is_known, tmp_path):
    run, left = new_run(tmp_path / "x-0001"), len(stand_in.happens)
    run.client = stand_in
    with pytest.raises(error) as caught:
        submit(run, None, Wait(60))
    assert len(stand_in.jobs_known) == jobs
    assert stand_in.calls == left or error is SlurmSilentError
    assert attempt_of(run).exists() != is_known
    assert ("toolkit ps" in str(getattr(caught.value, "next_step", ""))) != is_known
    refused = Outcome(state="REFUSED", kind="refused", exit_code=76, seconds=0.0, message="refused")
    assert Run(run.directory).outcome == (refused if error is SubmissionError else None)


def test_a_job_that_surfaces_late_is_found_by_whoever_looks(tmp_path, slurm):
    run = new_run(tmp_path / "x-0001")
    assert status.rows([run])[0].state == "NOT SUBMITTED"
    assert slurm.queries == 0, "nothing was submitted"
    attempt_of(run).write_text(ATTEMPT)
    run = Run(run.directory)
    assert status.rows([run])[0].state == "NOT SUBMITTED", "it is too long ago"
    slurm.add(run.script, 5)
    assert status.rows([run])[0][:3] == ("x-0001", 5, "RUNNING")
    found = Submission(job_id=5, site="local", submitted=SINCE)
    assert (Run(run.directory).job, attempt_of(run).exists()) == (found, False)


def test_nothing_is_recorded_in_the_run_of_another_user(tmp_path, slurm, monkeypatch):
    """Whoever reads it neither writes, removes, cancels nor asks Slurm for what it names."""
    lost, ended = new_run(tmp_path / "x-0001"), new_run(tmp_path / "x-0002", 4)
    attempt_of(lost).write_text(ATTEMPT)
    slurm.add(lost.script, 5)
    slurm.add(ended.script, 4, "COMPLETED")
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    rows = status.rows([lost, ended])
    assert [(row.job_id, row.state) for row in rows] == [(0, "UNKNOWN"), (4, "COMPLETED")]
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_job_is_not_lost_where_its_record_cannot_be_written(tmp_path, monkeypatch):
    run = new_run(tmp_path / "x-0001")
    attempt_of(run).write_text(ATTEMPT)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("toolkit.runs.run.write_atomically", full)
    with pytest.raises(UnrecordedError, match="job 5 is queued, but cannot be recorded") as caught:
        run.record(5)
    assert "toolkit ps" in (caught.value.next_step or "")
    assert attempt_of(run).exists()


def test_the_lock_is_that_of_sbatch_too_and_nobody_else_can_take_it(tmp_path):
    run = new_run(tmp_path / "x-0001")
    with begun(run, None) as lock:
        assert not is_over(run)
        assert attempt_of(run).stat().st_mode & 0o777 == 0o600
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(lock,))
    assert Run(run.directory).job == run.job
    assert not is_over(run, 1.0), "sbatch outlives the process that started it"
    child.communicate()
    assert is_over(run)
    assert not list(run.directory.glob("*.new"))


def test_a_repeated_command_takes_up_the_job_and_never_runs_ahead_of_sbatch(tmp_path, slurm):
    """The same settings and script; another run of the directory is none of its business."""
    (tmp_path / "train.py").touch()
    os.utime(tmp_path / "train.py", (0, 0))
    case = make_case(run=str(tmp_path / "x-0002"), folder=str(tmp_path), cwd=str(tmp_path))
    settings = repeatable(case, decide(case))
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    for name, job in (("a-0001", settings), ("b-0001", make_case({"nodes": 1}).job)):
        run = new_run(tmp_path / name, settings=job)
        put(run, "attempt.json", Submission(site="local", submitted=now))
    run = Run(tmp_path / "a-0001")
    assert resume(case, Wait()) is None
    assert slurm.queries == 4
    assert attempt_of(run).exists(), "the job may surface"
    with attempt_of(run).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(AnswerLostError, match="still being submitted"):
            resume(case, Wait())
    slurm.set(late=2)
    slurm.add(run.script, 5)
    resumed = resume(case, Wait())
    assert resumed is not None
    assert (resumed.directory, resumed.job_id) == (run.directory, 5)
    assert resume(case, Wait()) is None, "its submission is known by now"
    changed = case._replace(source=case.source._replace(sha256="0"))
    put(run, "attempt.json", Submission(site="local", submitted=SINCE))
    (run.directory / "run.json").unlink()
    assert resume(changed, Wait()) is None
    (tmp_path / "train.py").touch()
    assert resume(case, Wait()) is None, "the script was edited since"
    os.utime(tmp_path / "train.py", (0, 0))
    assert attempt_of(run).exists()
    slurm.jobs_known.clear()
    assert resume(case, Wait()) is None
    assert not attempt_of(run).exists(), "it is too long ago, and nobody asks for it any more"


def test_a_refused_run_is_explained_as_refused(tmp_path, slurm):
    why = "Batch job submission failed: Requested node configuration is not available"
    message = f"Slurm refused the job; nothing was submitted; {why}"
    refused = Outcome(state="REFUSED", kind="refused", exit_code=76, seconds=0.0, message=message)
    run = new_run(tmp_path / "x-0001", outcome=refused)
    said = CliRunner().invoke(explain_command, [str(run.directory)]).output
    assert f"cause      Slurm refused the job, so that nothing ran: {why}" in said
    assert "(rule refused;" in said
    assert status.rows([run])[0][2:5] == ("REFUSED", 0.0, 76)
    assert slurm.queries == 0
