"""Runs for tests: their directories, and a Slurm that has their jobs and can lose answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.samples import make_case
from toolkit.errors import SlurmSilentError, SubmissionError
from toolkit.model.base import Model, to_json
from toolkit.model.job import Job
from toolkit.model.run import JobState, Outcome, Plan, Submission
from toolkit.model.site import Access
from toolkit.planning.plan import decide
from toolkit.runs import removal, run, status
from toolkit.runs.run import Run
from toolkit.runs.submit import is_over, write
from toolkit.shell import Result
from toolkit.slurm import queue
from toolkit.slurm.client import AnswerLostError, Client

WHEN = "2026-11-22T00:00:00+00:00"
DONE = Outcome(state="COMPLETED", exit_code=0, seconds=1.0)


def new_run(
    directory: Path,
    job_id: int | None = None,
    *,
    plan: Plan | None = None,
    settings: Job | None = None,
    cluster: str | None = None,
    outcome: Outcome | None = None,
) -> Run:
    """Make the directory of a run, of which nothing has been read."""
    made = Run(directory)
    made.logs.mkdir(parents=True)
    write(made, plan or decide(make_case(run=str(directory))), settings or make_case().job)
    if job_id is not None:
        job = Submission(job_id=job_id, site="local", submitted=WHEN, cluster=cluster)
        put(made, "run.json", job)
    if outcome is not None:
        put(made, "outcome.json", outcome)
    return Run(directory)


def put(run: Run, name: str, data: Model) -> None:
    """Write a file of a run."""
    (run.directory / name).write_text(to_json(data))


class Answers(Client):
    """A client of commands that answer as a test says: by the first of their words that is known."""

    def __init__(self, **answers: str | Result) -> None:
        super().__init__(Access())
        self.__dict__["answers"] = answers

    def _execute(self, argv: Sequence[str], pass_fds: Sequence[int] = ()) -> Result:
        del pass_fds
        said = next(
            self.__dict__["answers"][word] for word in argv if word in self.__dict__["answers"]
        )
        return said if isinstance(said, Result) else Result(tuple(argv), 0, said, "")


class Slurm(Client):
    """A stand-in for a Slurm that takes jobs, and loses answers.

    ``happens`` is what becomes of each call of sbatch, ``late`` how often a job is not shown before
    it is, ``silent`` how often the controller does not answer.
    """

    happens: list[str]
    jobs_known: list[JobState]
    late: int
    silent: int
    calls: int
    queries: int
    locked: list[bool]
    cancelled: list[int]

    def __init__(self, *happens: str, late: int = 0, silent: int = 0) -> None:
        super().__init__(Access())
        self.__dict__.update(happens=list(happens), jobs_known=[], late=late, silent=silent)
        self.__dict__.update(calls=0, queries=0, locked=[], cancelled=[])

    def set(self, **values: int) -> None:
        """Change what it does, or forget what it did."""
        self.__dict__.update(values)

    def add(self, script: Path | str = "", job_id: int = 0, state: str = "RUNNING") -> int:
        """Take a job, in the place of one with this number."""
        number = job_id or len(self.jobs_known) + 1
        self.jobs_known[:] = [job for job in self.jobs_known if job.job_id != number]
        self.jobs_known.append(JobState(job_id=number, state=state, command=str(script)))
        return number

    def submit(self, script: Path, pass_fds: Sequence[int] = ()) -> int:
        self.set(calls=self.calls + 1)
        self.locked.append(bool(pass_fds) and not is_over(Run(script.parent)))
        what = self.happens.pop(0)
        if what == "refused":
            raise SubmissionError("refused")
        if what == "away":
            raise SlurmSilentError("away")
        if what != "dies":
            self.add(script)
        if what in ("dies", "lost"):
            raise AnswerLostError("sbatch gave no answer")
        return self.jobs_known[-1].job_id

    def snapshot(self, ids: Sequence[int] = ()) -> queue.Snapshot:
        del ids
        self.set(queries=self.queries + 1)
        if self.silent:
            self.set(silent=self.silent - 1)
            raise SlurmSilentError("away")
        if self.late:
            self.set(late=self.late - 1)
            return queue.Snapshot({})
        entries = [queue.Entry(job, 0, "") for job in self.jobs_known]
        return queue.Snapshot({job.job_id: job for job in self.jobs_known}, entries)

    def jobs(self, ids: Sequence[int]) -> dict[int, JobState]:
        states = self.snapshot().states
        return {number: states[number] for number in ids if number in states}

    def find(self, script: str, since: float, known: queue.Snapshot | None = None) -> int | None:
        return queue.job_of((known or self.snapshot()).entries, script, since)

    def unhealthy_nodes(self, hosts: str, since: int) -> dict[str, str]:
        del hosts, since
        return {}

    def expected_start(self, job_id: int) -> str:
        del job_id
        return ""

    def cancel(self, job_id: int) -> None:
        self.cancelled.append(job_id)
        self.jobs_known[:] = [
            JobState(job_id=job.job_id, state="CANCELLED", command=job.command)
            if job.job_id == job_id
            else job
            for job in self.jobs_known
        ]


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """The Slurm that every run of the test was submitted to."""
    stand_in = Slurm()
    for module in (run, status, removal):
        monkeypatch.setattr(module, "client_of", lambda _: stand_in)
    return stand_in


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let time pass only when the code sleeps."""
    passed = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: passed[0])
    monkeypatch.setattr("time.sleep", lambda seconds: passed.__setitem__(0, passed[0] + seconds))
