"""A stand-in for Slurm's commands that loses answers in every way in which they can be lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toolkit.errors import SlurmSilentError, SubmissionError
from toolkit.model.run import JobState
from toolkit.model.site import Access
from toolkit.runs import once
from toolkit.runs.store import Paths
from toolkit.slurm import queue
from toolkit.slurm.client import Client
from toolkit.slurm.failures import AnswerLostError
from toolkit.slurm.queue import Entry, Snapshot


class LossySlurm(Client):
    """A stand-in for Slurm's commands.

    ``happens`` is what becomes of each call of sbatch, ``late`` how often a job is not shown before
    it is. Nothing that a test calls here may cancel.
    """

    def __init__(self, *happens: str, late: int = 0, silent: int = 0) -> None:
        super().__init__(Access())
        self.__dict__.update(happens=list(happens), calls=0, taken=[], late=late, silent=silent)
        self.__dict__.update(queries=0, state="RUNNING", locked=[])

    happens: list[str]
    calls: int
    taken: list[JobState]
    late: int
    silent: int
    queries: int
    state: str
    locked: list[bool]

    def add(self, script: Path, job_id: int = 0) -> int:
        number = job_id or len(self.taken) + 1
        self.taken.append(JobState(job_id=number, state=self.state, command=str(script)))
        return number

    def submit(self, script: Path, pass_fds: Sequence[int] = ()) -> int:
        self.__dict__["calls"] += 1
        self.locked.append(not once.is_over(Paths(script.parent)))
        what = self.happens.pop(0)
        if what == "refused":
            raise SubmissionError("refused")
        if what == "away":
            raise SlurmSilentError("away")
        if what != "dies":
            self.add(script)
        if what in ("dies", "lost"):
            raise AnswerLostError("sbatch gave no answer")
        assert pass_fds
        return self.taken[-1].job_id

    def snapshot(self, ids: Sequence[int] = ()) -> Snapshot:
        del ids
        self.__dict__["queries"] += 1
        if self.silent:
            self.__dict__["silent"] -= 1
            raise SlurmSilentError("away")
        if self.late:
            self.__dict__["late"] -= 1
            return Snapshot({})
        states = {job.job_id: job for job in self.taken}
        return Snapshot(states, [Entry(job, 0, "") for job in self.taken])

    def find(self, script: str, since: float, known: Snapshot | None = None) -> int | None:
        return queue.job_of((known or self.snapshot()).entries, script, since)

    def cancel(self, job_id: int) -> None:
        raise AssertionError(f"job {job_id} is cancelled")
