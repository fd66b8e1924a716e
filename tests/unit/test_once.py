"""Submit once, against a stand-in for Slurm that loses answers in every way in which they can be lost."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.lossy_slurm import LossySlurm as Slurm
from tests.unit.samples import make_case
from toolkit.api import run as api
from toolkit.errors import SlurmSilentError, SlurmUnreachableError, SubmissionError, UnrecordedError
from toolkit.model.base import to_json
from toolkit.model.run import JobState, Outcome, Submission, SubmissionAttempt
from toolkit.planning.plan import decide
from toolkit.runs import once, parts, status
from toolkit.runs.store import Paths
from toolkit.runs.submit import submit as submit_run
from toolkit.slurm.failures import AnswerLostError
from toolkit.slurm.patience import Wait, patiently

SINCE = "2026-11-21T00:00:00+00:00"
ATTEMPT = SubmissionAttempt(site="local", submitted=SINCE)
# As version 0.1 wrote them.
OLD_ATTEMPT = '{"mark":"toolkit-0123456789abcdef","site":"local","submitted":"2026-11-21T00:00:00+00:00","host":"x","pid":7,"process_start":9}'
OLD_RUN = '{"job_id":4,"site":"local","submitted":"2026-11-21T00:00:00+00:00","mark":"x/../../home","is_doubtful":true}'


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that passes only when somebody sleeps."""
    passed = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: passed[0])
    monkeypatch.setattr("time.sleep", lambda seconds: passed.__setitem__(0, passed[0] + seconds))


def new_run(directory: Path) -> Paths:
    """Write a run that has not been submitted."""
    paths = Paths(directory)
    paths.logs.mkdir(parents=True)
    decided = decide(make_case(run=str(directory)))
    paths.plan.write_text(to_json(decided))
    paths.job.write_text(to_json(api.repeatable(make_case(), decided)))
    return paths


def submitted(paths: Paths, slurm: Slurm, seconds: float = 60) -> Submission:
    """Submit a run."""
    return submit_run(paths, paths.read_plan(), slurm, None, Wait(seconds))


@pytest.mark.parametrize(
    ("slurm", "calls"),
    [
        (Slurm("taken"), 1),
        (Slurm("lost"), 1),
        (Slurm("away", "away", "taken"), 3),
        (Slurm("away", "lost"), 2),
        (Slurm("lost", late=2), 1),
        (Slurm("lost", silent=3), 1),
    ],
    ids=lambda value: (
        f"{value.happens}-{value.late}-{value.silent}" if isinstance(value, Slurm) else ""
    ),
)
def test_a_run_is_one_job(slurm: Slurm, calls: int, tmp_path: Path) -> None:
    paths = new_run(tmp_path / "x-0001")
    submission = submitted(paths, slurm)
    assert (submission, slurm.calls) == (paths.read_submission(), calls)
    assert [job.job_id for job in slurm.taken] == [submission.job_id]
    assert all(slurm.locked)
    assert not paths.attempt.exists()


@pytest.mark.parametrize(
    ("slurm", "error", "jobs", "is_known"),
    [
        (Slurm("refused"), SubmissionError, 0, True),
        (Slurm(*["away"] * 99), SlurmSilentError, 0, True),
        (Slurm("dies"), AnswerLostError, 0, False),
        (Slurm("lost", silent=99), AnswerLostError, 1, False),
        (Slurm("lost", late=99), AnswerLostError, 1, False),
        (Slurm("away", "dies"), AnswerLostError, 0, False),
    ],
)
def test_what_is_not_known_is_never_submitted_again(
    slurm: Slurm, error: type[Exception], jobs: int, is_known: bool, tmp_path: Path
) -> None:
    paths, left = new_run(tmp_path / "x-0001"), len(slurm.happens)
    with pytest.raises(error) as caught:
        submitted(paths, slurm)
    assert len(slurm.taken) == jobs
    assert slurm.calls == left or error is SlurmSilentError
    assert paths.attempt.exists() != is_known
    assert ("toolkit ps" in str(getattr(caught.value, "next_step", ""))) != is_known


def test_a_silent_slurm_is_waited_for_once_with_a_message_and_for_so_long_again_after_an_answer() -> (
    None
):
    said: list[str] = []
    wait = Wait(10, said.append)
    answers: list[Callable[[], int]] = [_silent, _silent, lambda: 7]
    assert patiently(lambda: answers.pop(0)(), wait) == 7
    assert said == ["away; asking again for 0:10"]
    with pytest.raises(SlurmSilentError, match="the query was repeated for 0:10"):
        patiently(_silent, wait)


def _silent() -> int:
    raise SlurmSilentError("away")


@pytest.mark.parametrize("text", [to_json(ATTEMPT), OLD_ATTEMPT])
def test_a_job_that_surfaces_late_is_found_by_whoever_looks(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, slurm = new_run(tmp_path / "x-0001"), Slurm()
    monkeypatch.setattr(status, "client_of", lambda _: slurm)
    assert status.known_submission(paths) is None
    assert slurm.queries == 0, "nothing was submitted"
    paths.attempt.write_text(text)
    assert status.known_submission(paths) is None
    assert status.of(paths).state == "NOT SUBMITTED", "it is too long ago"
    slurm.add(paths.script, 5)
    assert status.of(paths)[:3] == ("x-0001", 5, "RUNNING")
    assert paths.read_submission() == Submission(job_id=5, site="local", submitted=SINCE)
    assert not paths.attempt.exists()


def test_a_run_that_was_moved_keeps_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, slurm = new_run(tmp_path / "runs/x-0001"), Slurm("taken")
    monkeypatch.setattr(status, "client_of", lambda _: slurm)
    submitted(paths, slurm)
    moved = Paths(paths.directory.rename(tmp_path / "kept"))
    assert status.of(moved).state == "RUNNING"


def test_the_job_of_another_run_with_the_same_number_is_not_the_run_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new local cluster counts its jobs from 1 again."""
    paths, slurm = new_run(tmp_path / "x-0001"), Slurm("taken")
    monkeypatch.setattr(status, "client_of", lambda _: slurm)
    submitted(paths, slurm)
    slurm.taken.clear()
    slurm.add(tmp_path / "y-0001/job.sbatch")
    assert status.current(paths) == (None, None)


def test_a_part_has_the_script_of_its_allocation(tmp_path: Path) -> None:
    part, holder = new_run(tmp_path / "x-0001"), new_run(tmp_path / "x-allocation-0001")
    part.submission.symlink_to(Path("..", holder.name, "run.json"))
    state = JobState(job_id=1, state="RUNNING", command=str(holder.script))
    assert parts.is_of(state, part, part.read_plan())
    assert parts.is_of(state, holder, holder.read_plan())
    (tmp_path / "y").mkdir()
    hostile = Paths(tmp_path / "y")
    hostile.submission.symlink_to("run.json")
    assert not parts.is_of(state, hostile, part.read_plan())


def test_runs_of_earlier_versions_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, slurm = new_run(tmp_path / "x-0001"), Slurm()
    monkeypatch.setattr(status, "client_of", lambda _: slurm)
    paths.submission.write_text(OLD_RUN)
    slurm.add(paths.script, 4)
    slurm.add(paths.script, 9)
    (row,) = status.of_all([paths])
    assert (row.job_id, row.state) == (4, "RUNNING")


def test_nothing_is_recorded_in_the_run_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads it neither writes, removes, cancels nor asks Slurm for what it names."""
    slurm = Slurm()
    monkeypatch.setattr(status, "client_of", lambda _: slurm)
    lost, ended = new_run(tmp_path / "x-0001"), new_run(tmp_path / "x-0002")
    lost.attempt.write_text(OLD_ATTEMPT)
    ended.submission.write_text(OLD_RUN)
    slurm.add(lost.script, 5)
    slurm.taken.append(JobState(job_id=4, state="COMPLETED", command=str(ended.script)))
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    rows = status.of_all([lost, ended])
    assert [(row.job_id, row.state) for row in rows] == [(0, "UNKNOWN"), (4, "COMPLETED")]
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_job_is_not_lost_where_its_record_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = new_run(tmp_path / "x-0001")
    paths.attempt.write_text(to_json(ATTEMPT))

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(once, "write_atomically", full)
    with pytest.raises(UnrecordedError, match="job 5 is queued, but cannot be recorded") as caught:
        once.record(paths, ATTEMPT, 5)
    assert "toolkit ps" in (caught.value.next_step or "")
    assert paths.attempt.exists()


def test_the_lock_is_that_of_sbatch_too_and_nobody_else_can_take_it(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    with once.begun(paths, "local", None) as (attempt, lock):
        assert not once.is_over(paths)
        assert paths.attempt.stat().st_mode & 0o777 == 0o600
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(lock,))
    assert once.read(paths) == attempt
    assert not once.is_over(paths, 1.0), "sbatch outlives the process that started it"
    child.communicate()
    assert once.is_over(paths)
    assert [path.name for path in tmp_path.iterdir()] == ["attempt.json"]


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refused)
    paths, slurm = new_run(tmp_path / "x-0001"), Slurm("taken")
    assert submitted(paths, slurm).job_id == 1


@pytest.fixture
def repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Paths, Slurm, Any]:
    """A run whose submission was interrupted, and what repeats its job."""
    paths, slurm = new_run(tmp_path / "x-0001"), Slurm()
    monkeypatch.setattr(status, "client_of", lambda _: slurm)
    monkeypatch.setattr(api, "_is_same", lambda run, _: run.attempt.exists())
    with once.begun(paths, "local", None):
        pass
    return paths, slurm, make_case(run=str(tmp_path / "x-0002"))


def test_a_repeated_command_takes_up_the_job(repeated: tuple[Paths, Slurm, Any]) -> None:
    paths, slurm, again = repeated
    slurm.__dict__["late"] = 2
    slurm.add(paths.script, 5)
    resumed = api.resume(again, Wait())
    assert resumed is not None
    assert (resumed[0].directory, resumed[2].job_id) == (paths.directory, 5)
    assert api.resume(again, Wait()) is None, "its submission is known by now"


def test_a_repeated_command_submits_what_slurm_does_not_have(
    repeated: tuple[Paths, Slurm, Any],
) -> None:
    paths, slurm, again = repeated
    assert api.resume(again, Wait()) is None
    assert slurm.queries == 4
    assert paths.attempt.exists(), "the job may surface"
    paths.attempt.write_text(OLD_ATTEMPT)
    assert api.resume(again, Wait()) is None
    assert not paths.attempt.exists(), "nobody asks for it any more"


def test_a_repeated_command_never_runs_ahead_of_sbatch(
    repeated: tuple[Paths, Slurm, Any],
) -> None:
    paths, slurm, again = repeated
    with paths.attempt.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(AnswerLostError, match="still being submitted"):
            api.resume(again, Wait())
    assert slurm.queries == 0


def test_ps_asks_once_for_all_runs_and_survives_what_it_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm()
    monkeypatch.setattr(status, "client_of", lambda _: slurm)
    runs = [new_run(tmp_path / f"x-{number}") for number in range(30)]
    for number, paths in enumerate(runs):
        if number % 2:
            paths.attempt.write_text(to_json(ATTEMPT))
        else:
            once.record(paths, ATTEMPT, slurm.add(paths.script))
    for number, paths in enumerate(runs):
        if number % 2:
            slurm.add(paths.script)
    (tmp_path / "x-7/plan.json").write_text("{")
    (tmp_path / "x-8/run.json").write_text("not JSON")
    rows = status.of_all(runs)
    assert slurm.queries == 1
    assert {row.run: row.state for row in rows if row.state != "RUNNING"} == {
        "x-7": "UNREADABLE",
        "x-8": "UNREADABLE",
    }
    assert "x-7/plan.json" in rows[7].message


def test_a_refusal_is_an_outcome(tmp_path: Path) -> None:
    paths = new_run(tmp_path / "x-0001")
    with pytest.raises(SubmissionError):
        submitted(paths, Slurm("refused"))
    assert paths.read_outcome() == Outcome(
        state="REFUSED", kind="refused", exit_code=76, seconds=0.0, message="refused"
    )


def test_an_error_of_the_search_is_not_an_answer() -> None:
    def unreachable() -> int | None:
        raise SlurmUnreachableError("no Slurm")

    assert once.search(unreachable, Wait()) is None
