"""Submitting once, against a stand-in for Slurm that loses answers in every way in which they can be lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.errors import SlurmSilentError, SubmissionError
from toolkit.model.base import to_json
from toolkit.model.run import Attempt
from toolkit.model.site import Access
from toolkit.runs import once
from toolkit.runs.store import Paths
from toolkit.slurm.client import AnswerLostError, Client
from toolkit.slurm.patience import Wait, patiently

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
        Slurm("lost", late=4),  # seen only after it was submitted again: one of the two is cancelled
    ],
    ids=lambda slurm: f"{slurm.happens}-{slurm.late}-{slurm.silent_looks}",
)
def test_slurm_has_one_job_in_the_end(slurm: Slurm) -> None:
    number = once.submit_once(slurm, SCRIPT, "mark", Wait(60))
    assert slurm.jobs_left == [number] == [1]


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


def test_a_silent_slurm_is_waited_for_once_with_a_message_and_for_so_long_again_after_an_answer() -> None:
    said: list[str] = []
    wait = Wait(10, said.append)
    answers: list[Callable[[], int]] = [_silent, _silent, lambda: 7]
    assert patiently(lambda: answers.pop(0)(), wait) == 7
    assert said == ["away; asking again for 0:10"]
    with pytest.raises(SlurmSilentError, match="it was asked for 0:10"):
        patiently(_silent, wait)


def _silent() -> int:
    raise SlurmSilentError("away")


def test_a_run_whose_answer_was_lost_is_recovered_later(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    slurm = Slurm()
    assert once.recovered(paths, lambda _: slurm) is None
    paths.attempt.write_text(to_json(Attempt(mark="mark", site="local", submitted="2026-11-21T00:00:00+00:00")))
    assert once.recovered(paths, lambda _: slurm) is None
    slurm.taken.append(5)
    found = once.recovered(paths, lambda _: slurm)
    assert found is not None
    assert found.job_id == 5
    assert paths.read_submission() == found
    assert not paths.attempt.exists()
