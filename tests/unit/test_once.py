"""Submitting once, against a stand-in for Slurm that loses answers in every way in which they can be lost."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.samples import inputs
from toolkit.errors import SlurmSilentError, SubmissionError, UnrecordedError
from toolkit.model.base import to_json
from toolkit.model.run import JobState, Submission, SubmissionAttempt
from toolkit.model.site import Access
from toolkit.planning.plan import plan
from toolkit.records.store import Paths
from toolkit.runs import once, status
from toolkit.slurm.client import Client
from toolkit.slurm.failures import AnswerLostError
from toolkit.slurm.patience import Wait, patiently
from toolkit.slurm.queue import Snapshot

SCRIPT = Path("job.sbatch")


class Slurm(Client):
    """A stand-in for Slurm's commands: ``script`` says what happens to each submission, ``looks`` when a job is seen."""

    def __init__(self, *happens: str, late: int = 0, silent_looks: int = 0) -> None:
        super().__init__(Access())
        object.__setattr__(self, "happens", list(happens))
        object.__setattr__(self, "taken", [])
        object.__setattr__(self, "cancelled", [])
        object.__setattr__(self, "late", late)
        object.__setattr__(self, "silent_looks", silent_looks)

    happens: list[str]
    taken: list[int]
    cancelled: list[int]
    late: int
    silent_looks: int

    def submit(self, script: Path, mark: str) -> int:
        assert (script, mark) == (SCRIPT, "mark")
        what = self.happens.pop(0) if self.happens else "taken"
        if what == "refused":
            raise SubmissionError("refused")
        if what == "away":
            raise SlurmSilentError("away")
        if what != "dies":
            self.taken.append(len(self.taken) + 1)
        if what in ("dies", "lost"):
            raise AnswerLostError("sbatch gave no answer")
        return self.taken[-1]

    def marked(self, mark: str) -> tuple[int, ...]:
        assert mark == "mark"
        if self.silent_looks:
            object.__setattr__(self, "silent_looks", self.silent_looks - 1)
            raise SlurmSilentError("away")
        if self.late:
            object.__setattr__(self, "late", self.late - 1)
            return ()
        return tuple(job for job in self.taken if job not in self.cancelled)

    def cancel(self, job_id: int) -> None:
        self.cancelled.append(job_id)

    @property
    def jobs_left(self) -> list[int]:
        return [job for job in self.taken if job not in self.cancelled]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that passes only when somebody sleeps."""
    passed = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: passed[0])
    monkeypatch.setattr("time.sleep", lambda seconds: passed.__setitem__(0, passed[0] + seconds))


def record(directory: Path, submitted: once.Submitted) -> Submission:
    """Record a job as a run's."""
    attempt = SubmissionAttempt(mark="mark", site="local", submitted="2026-11-21T00:00:00+00:00")
    return once.record(Paths(directory), attempt, submitted)


@pytest.mark.parametrize(
    "slurm",
    [
        Slurm("taken"),
        Slurm("lost"),
        Slurm("dies"),
        Slurm("away", "away"),
        Slurm("away", "lost"),
        Slurm("dies", "dies"),
        Slurm("lost", late=2),
        Slurm("lost", silent_looks=3),
        Slurm("dies", "lost"),
        Slurm("lost", "lost", late=5),
        Slurm(
            "lost", late=4
        ),  # seen only after it was submitted again: one of the two is cancelled
    ],
    ids=lambda slurm: f"{slurm.happens}-{slurm.late}-{slurm.silent_looks}",
)
def test_slurm_has_one_job_in_the_end(slurm: Slurm, tmp_path: Path) -> None:
    was_doubtful = bool({"lost", "dies"} & set(slurm.happens))
    submitted = once.submit_once(slurm, SCRIPT, "mark", Wait(60))
    once.cancel_duplicates(slurm, record(tmp_path, submitted), slurm.marked("mark"))
    assert slurm.jobs_left == [submitted.job_id]
    assert submitted.is_doubtful == was_doubtful


@pytest.mark.parametrize(
    ("slurm", "error", "jobs"),
    [
        (Slurm("refused"), SubmissionError, 0),
        (Slurm(*["away"] * 99), SlurmSilentError, 0),
        (Slurm("dies", "dies", "dies"), AnswerLostError, 0),
        (Slurm("lost", silent_looks=99), AnswerLostError, 1),
        (Slurm("dies", *["away"] * 99), AnswerLostError, 0),
    ],
)
def test_what_is_given_up_is_said(slurm: Slurm, error: type[Exception], jobs: int) -> None:
    with pytest.raises(error):
        once.submit_once(slurm, SCRIPT, "mark", Wait(60))
    assert len(slurm.jobs_left) == jobs


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


def test_a_run_whose_answer_was_lost_is_recovered_later(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    slurm = Slurm()
    assert once.recovered(paths, lambda _: slurm) is None
    paths.attempt.write_text(
        to_json(SubmissionAttempt(mark="mark", site="local", submitted="2026-11-21T00:00:00+00:00"))
    )
    assert once.recovered(paths, lambda _: slurm) is None
    slurm.taken.append(5)
    found = once.recovered(paths, lambda _: slurm)
    assert found is not None
    assert found.job_id == 5
    assert paths.read_submission() == found
    assert not paths.attempt.exists()


def test_a_job_that_surfaces_after_every_look_is_cancelled_when_somebody_looks_later(
    tmp_path: Path,
) -> None:
    """The first submission comes out of a busy controller minutes later: the mark is kept with the run."""
    slurm = Slurm("dies", "taken")
    submission = record(tmp_path, once.submit_once(slurm, SCRIPT, "mark", Wait(60)))
    assert (submission.job_id, submission.is_doubtful, submission.mark) == (1, True, "mark")
    slurm.taken.append(9)
    assert once.cancel_duplicates(slurm, submission, slurm.marked("mark")) == [9]
    assert slurm.jobs_left == [1]


def test_a_late_job_that_has_started_is_the_run_s(tmp_path: Path) -> None:
    """What has begun to work is not cancelled for one that has not."""
    paths = Paths(tmp_path)
    paths.claim("mark").symlink_to("4")
    submission = record(tmp_path, once.Submitted(9, True))
    assert submission.job_id == 4
    assert paths.read_submission() == submission


@pytest.mark.parametrize("is_doubtful", [False, True])
def test_an_ended_run_keeps_its_claim_only_where_a_second_job_may_surface(
    tmp_path: Path, is_doubtful: bool
) -> None:
    """The claim is a link that leads nowhere: copies of the directory would stumble over it."""
    paths = Paths(tmp_path)
    record(tmp_path, once.Submitted(4, is_doubtful))
    once.claim(paths, "mark", 4)
    for _ in range(2):
        once.release_claim(paths)
        assert paths.claim("mark").is_symlink() == is_doubtful


def test_a_job_is_not_lost_where_its_record_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = Paths(tmp_path)
    paths.attempt.write_text("{}")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(once, "write_atomically", full)
    with pytest.raises(UnrecordedError, match="job 5 is queued, but cannot be recorded") as caught:
        record(tmp_path, once.Submitted(5, False))
    assert "toolkit ps" in (caught.value.next_step or "")
    assert paths.attempt.exists()


def test_a_refusal_of_the_second_submission_does_not_hide_the_first() -> None:
    """The first one may still surface: it is not known, and so not given up."""
    with pytest.raises(AnswerLostError, match="it is not known whether Slurm has the job"):
        once.submit_once(Slurm("dies", "refused"), SCRIPT, "mark", Wait(60))


def test_a_process_that_submits_is_told_from_one_that_is_gone(tmp_path: Path) -> None:
    attempt = once.begin(Paths(tmp_path), plan(inputs()), None)
    assert once.is_under_way(attempt)
    assert not once.is_under_way(replace(attempt, process_start=attempt.process_start + 1)), (
        "another process has the number now"
    )
    assert not once.is_under_way(replace(attempt, host="elsewhere"))
    assert not once.is_under_way(replace(attempt, pid=0, process_start=0))


class Queue(Slurm):
    """A stand-in whose jobs all have one state, and that counts the questions."""

    asked = 0

    def snapshot(self, ids: Sequence[int] = ()) -> Snapshot:
        del ids
        object.__setattr__(self, "asked", self.asked + 1)
        states = {job: JobState(job_id=job, state="RUNNING", mark="mark") for job in self.taken}
        return Snapshot(states, {"mark": tuple(self.taken)})


def run_in(
    directory: Path, submitted: once.Submitted | None, attempt: SubmissionAttempt | None = None
) -> Paths:
    """A run's directory with a plan, and a job or an attempt."""
    paths = Paths(directory)
    paths.logs.mkdir(parents=True)
    paths.plan.write_text(to_json(plan(inputs())))
    if submitted:
        record(directory, submitted)
    if attempt:
        paths.attempt.write_text(to_json(attempt))
    return paths


def test_ps_asks_once_for_all_runs_cancels_a_late_job_and_survives_what_it_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Queue()
    slurm.taken.extend((3, 8))
    monkeypatch.setattr(status, "client_of", lambda _: slurm)
    runs = [
        run_in(tmp_path / f"x-{number}", once.Submitted(3, number == 1)) for number in range(30)
    ]
    (tmp_path / "x-7/plan.json").write_text("{")
    (tmp_path / "x-9/run.json").write_text("not JSON")
    rows = status.of_all(runs)
    assert slurm.asked == 1
    assert slurm.cancelled == [8] * len(slurm.cancelled)
    assert slurm.cancelled
    assert {row.run: row.state for row in rows if row.state != "RUNNING"} == {
        "x-7": "UNREADABLE",
        "x-9": "UNREADABLE",
    }
    assert "x-7/plan.json" in rows[7].message
