"""Runs for tests: their directories, and a Slurm below the client that has their jobs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.samples import make_case
from toolkit.model.base import Model, to_json
from toolkit.model.job import Job
from toolkit.model.run import JobState, Outcome, Plan, Submission
from toolkit.model.site import Access
from toolkit.planning.plan import decide
from toolkit.runs import run
from toolkit.runs.run import Run
from toolkit.runs.submit import is_over, write
from toolkit.shell import Result
from toolkit.slurm.client import Client

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


AWAY = "Unable to contact slurm controller (connect failure)"
REFUSED = "Requested node configuration is not available"


class Slurm(Client):
    """A Slurm that answers its commands: it takes jobs, shows them, and loses answers.

    ``happens`` is what becomes of each call of sbatch, ``late`` how often a job is not shown before
    it is, ``silent`` how often the controller does not answer, and ``moments`` the state of all
    jobs at each question: None without an answer, "" without the jobs. ``answers`` are those of
    other commands, by the first of their words that is known.
    """

    def __init__(self, *happens: str, **answers: str | Result) -> None:
        super().__init__(Access())
        self.happens, self.answers = [*happens], answers
        self.late = self.silent = 0
        self.moments: list[str | None] = []
        self.jobs_known: list[JobState] = []
        self.calls = self.queries = 0
        self.locked: list[bool] = []
        self.cancelled: list[int] = []

    def add(
        self, script: Path | str = "", job_id: int = 0, state: str = "RUNNING", **more: Any
    ) -> int:
        """Take a job, in the place of one with this number."""
        number = job_id or len(self.jobs_known) + 1
        self.jobs_known[:] = [job for job in self.jobs_known if job.job_id != number]
        self.jobs_known.append(JobState(job_id=number, state=state, command=str(script), **more))
        return number

    def _execute(self, argv: Sequence[str], pass_fds: Sequence[int] = ()) -> Result:
        known = next((self.answers[word] for word in argv if word in self.answers), None)
        if known is None and "sbatch" in argv:
            known = self._sbatch(argv, pass_fds)
        elif known is None and "squeue" in argv and "--start" not in argv:
            known = self._squeue(argv)
        elif known is None and argv[:1] == ["scancel"] and len(argv) == 2:  # no signal
            known = self._scancel(argv)
        return known if isinstance(known, Result) else Result(tuple(argv), 0, known or "", "")

    def _sbatch(self, argv: Sequence[str], pass_fds: Sequence[int]) -> str | Result:
        self.calls += 1
        script, what = Path(argv[-1]), self.happens.pop(0)
        self.locked.append(bool(pass_fds) and not is_over(Run(script.parent)))
        errors = {"refused": REFUSED, "away": AWAY, "dies": "", "lost": ""}
        if what in ("taken", "lost"):
            self.add(script)
        if what in errors:
            return _failed(argv, errors[what])
        return f"{self.jobs_known[-1].job_id}\n"

    def _squeue(self, argv: Sequence[str]) -> str | Result:
        self.queries += 1
        moment = self.moments.pop(0) if self.moments else "as it is"
        if self.silent or moment is None:
            self.silent -= bool(self.silent)
            return _failed(argv, AWAY)
        if self.late or not moment:
            self.late -= bool(self.late)
            return ""
        end = re.search(r"--Format=JobID:0(.+?),", " ".join(argv))
        assert end is not None
        wanted = [
            job for job in self.jobs_known if f"--jobs={job.job_id}" in argv or "--me" in argv
        ]
        return "".join(
            _row(job if moment == "as it is" else replace(job, state=moment), end[1])
            for job in wanted
        )

    def _scancel(self, argv: Sequence[str]) -> str | Result:
        if self.silent:
            return _failed(argv, AWAY)
        number = int(argv[-1])
        self.cancelled.append(number)
        for job in [job for job in self.jobs_known if job.job_id == number]:
            self.add(job.command, number, "CANCELLED")
        return ""


def _failed(argv: Sequence[str], text: str) -> Result:
    error = f"{argv[0]}: error: Batch job submission failed: {text}\n" if text else ""
    return Result(tuple(argv), 1, "", error)


def _row(job: JobState, end: str) -> str:
    """Return what squeue prints of a job, each value with its end."""
    values = (
        *(job.job_id, job.job_id, "N/A", job.state, job.reason or "None", job.nodes, job.partition),
        *(f"{job.exit_code}:{job.signal}", job.start, job.end, job.name, 1, job.command),
    )
    return "".join(f"{value}{end}" for value in values) + "\n"


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """The Slurm that every run of the test was submitted to."""
    stand_in = Slurm()
    monkeypatch.setattr(run, "access", lambda _: Access())
    monkeypatch.setattr(run, "Client", lambda _: stand_in)
    return stand_in


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let time pass only when the code sleeps."""
    passed = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: passed[0])
    monkeypatch.setattr("time.sleep", lambda seconds: passed.__setitem__(0, passed[0] + seconds))


def full(*_: object, **__: object) -> None:
    """Fail as on a full disk."""
    raise OSError(28, "No space left on device")
