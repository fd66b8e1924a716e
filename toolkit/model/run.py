"""A submitted script: what is remembered of it, and how it came out."""

from __future__ import annotations

from typing import Literal

import msgspec

from toolkit.model.base import Model
from toolkit.model.ways import PointOutcome, Stint

# Slurm's base states that a job does not leave again.
FINAL_STATES = frozenset(
    (
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    )
)


class JobState(Model, frozen=True, kw_only=True):
    """A job as Slurm tells it, whichever command told. Times are seconds since the epoch; 0: not known.

    Attributes:
        job_id: Slurm's number.
        name: of the job, as the user chose it.
        state: base state in capitals: ``PENDING``, ``RUNNING``, ``COMPLETING``, ``COMPLETED``, ...
        reason: why it waits or failed, in Slurm's word; empty where there is none.
        nodes: host list as Slurm writes it: ``nid[001-002]``.
        exit_code: of the batch script.
        signal: that ended the batch script; 0: none.
        log: file that the batch shell writes to, with ``%j`` and the like; empty if Slurm does not tell.
        mark: word by which the job's run is recognized; empty if a script was submitted by hand.
    """

    job_id: int
    state: str
    name: str = ""
    reason: str = ""
    nodes: str = ""
    partition: str = ""
    exit_code: int = 0
    signal: int = 0
    start: int = 0
    end: int = 0
    log: str = ""
    mark: str = ""

    @property
    def ended(self) -> bool:
        return self.state in FINAL_STATES


class Submission(Model, frozen=True, kw_only=True):
    """``run.json`` of a run directory: which job it is.

    Attributes:
        job_id: Slurm's number.
        site: name of the site.
        submitted: UTC, ISO 8601.
        cluster: name of the local cluster, if the site is one.
        mark: word that Slurm shows with the run's job, and that no other job has; empty for a job that salloc got.
        is_doubtful: an answer of sbatch was lost, so that a second job with the same mark may surface.
    """

    job_id: int
    site: str
    submitted: str
    cluster: str | None = None
    mark: str = ""
    is_doubtful: bool = False


class Attempt(Model, frozen=True, kw_only=True):
    """``attempt.json`` of a run directory: that it is being submitted. It stays only if it is not known whether Slurm has the job.

    Attributes:
        mark, site, cluster, submitted: as of a ``Submission``.
        host: name of the host on which the process runs that submits.
        pid: id of that process.
        process_start: when it started, in clock ticks since its host did.
    """

    mark: str
    site: str
    submitted: str
    cluster: str | None = None
    host: str = ""
    pid: int = 0
    process_start: int = 0


class Failure(Model, frozen=True, kw_only=True):
    """The first rank that failed, as far as the logs tell.

    Attributes:
        exit_code: of the rank; 128 + signal where a signal ended it.
        rank: global rank; None where it is not known.
        host: node it ran on.
        text: the line that says so.
        kind: ``exception``, ``exit``, ``argparse``, ``child``, ``thread`` or ``destructor``; empty if only its exit code is known.
        words: what the program itself says: ``KeyError: 'label'``; empty if only its exit code is known.
        place: the user's own last frame: ``train.py, line 12, in step``.
        source: that line of the file.
        details: the errors as Python prints them, for the rules.
        certainty: that this is the first failure: ``certain``, ``likely`` or ``possible``; empty if the logs alone tell.
        alike: other ranks that failed with the same words.
    """

    exit_code: int
    rank: int | None = None
    host: str | None = None
    text: str = ""
    kind: str = ""
    words: str = ""
    place: str = ""
    source: str = ""
    details: tuple[str, ...] = ()
    certainty: str = ""
    alike: tuple[int, ...] = ()


class Outcome(Model, frozen=True, kw_only=True):
    """``outcome.json``: how a run came out.

    Attributes:
        state: Slurm's final state.
        exit_code: what `toolkit run` ends with.
        seconds: from start to end by Slurm's clock.
        ranks: host -> ranks on it, as seen in the logs.
        results: the JSON object that the script printed last, if it did.
        failure: the first rank that failed.
        message: what happened, where it needs words.
        unhealthy: nodes of the job that are down or do not answer, and Slurm's states of them; its
            key in the file is ``unwell``.
        points: the elements of a job array, each by itself.
        stints: the attempts of a job that may go back into the queue; all else is of the last one.
    """

    state: str
    exit_code: int
    seconds: float
    nodes: str = ""
    ranks: dict[str, tuple[int, ...]] = {}
    results: dict[str, object] = {}
    failure: Failure | None = None
    message: str = ""
    unhealthy: dict[str, str] = msgspec.field(name="unwell", default_factory=dict)
    stints: tuple[Stint, ...] = ()
    points: tuple[PointOutcome, ...] = ()
    kind: Literal["ok", "failed", "lost", "cancelled", "timeout", "refused"] = "ok"
