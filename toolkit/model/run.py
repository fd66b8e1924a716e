"""A submitted run: its job, its attempts, its processes and their failures, and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec

from toolkit.model.base import Model
from toolkit.model.plan import ScriptFile
from toolkit.model.site import CLUSTER_NAME as CLUSTER_NAME

# Slurm's final base states: a job does not leave them.
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

# What is read of a run may be another user's: numbers are numbers of Slurm, names are no paths.
JobNumber = Annotated[int, msgspec.Meta(ge=1, le=(1 << 32) - 2)]
ElementNumber = Annotated[int, msgspec.Meta(ge=0, le=1 << 32)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1 << 40)]
ClusterName = Annotated[str, msgspec.Meta(pattern=CLUSTER_NAME)]


class JobState(Model, frozen=True, kw_only=True):
    """A job as Slurm reports it, by any of its commands.

    Times are seconds since the epoch; 0: unknown.

    Attributes:
        job_id: Slurm's number.
        name: of the job, as the user chose it.
        state: base state in capitals: ``PENDING``, ``RUNNING``, ``COMPLETING``, ``COMPLETED``, ...
        reason: why it waits or failed, in Slurm's word; empty if there is none.
        nodes: host list as Slurm writes it: ``nid[001-002]``.
        exit_code: of the batch script.
        signal: that ended the batch script; 0: none.
        command: the script, or a command that ends with it; empty if Slurm does not report it.
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
    command: str = ""

    @property
    def ended(self) -> bool:
        """Return whether the state is final."""
        return self.state in FINAL_STATES


class Submission(Model, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """``run.json`` of a run directory: its job.

    ``attempt.json`` is the same without a number, for as long as it is not known whether Slurm has
    the job. Earlier versions of the toolkit wrote more keys, which are ignored.

    Attributes:
        site: name of the site.
        submitted: when the submission began: UTC, ISO 8601.
        cluster: name of the local cluster, if the site is one.
        job_id: Slurm's number; None: not known.
    """

    site: str
    submitted: str
    cluster: ClusterName | None = None
    job_id: JobNumber | None = None

    @property
    def began(self) -> float:
        """When the submission began, in seconds since the epoch."""
        return datetime.fromisoformat(self.submitted).timestamp()


class Error(Model, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """One error of a chain of errors.

    Attributes:
        type: name of the exception's class.
        module: the module that defines the class.
        message: text of the exception, at most 4,000 characters of it.
        file: of the user's last frame; empty if no frame is the user's.
        line: number in that file.
        function: in that frame.
        source: that line of the file.
        inner: file of the innermost frame, the user's or a library's.
        signal: name of the signal whose handler raised the error; empty if none did.
    """

    type: str
    module: str = ""
    message: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    source: str = ""
    inner: str = ""
    signal: str = ""


class Record(Model, frozen=True, kw_only=True):
    """A failure of one process.

    Attributes:
        kind: ``exception`` or ``exit``: of the main thread; ``child``: of a process of
            multiprocessing; ``thread`` does not end the process.
        time_ns: nanoseconds since the epoch, by the clock of the node.
        chain: the last error first, then those that led to it.
        code: exit code, if the process exits with an explicit one.
        thread: name of the thread.
        rank: global rank of the process; None if it is not known, or the process is not a rank.
        host: node name.
        origin: the program itself, unclear, or a consequence of the failure of another rank.
    """

    kind: str
    time_ns: int
    chain: tuple[Error, ...]
    code: int | None = None
    thread: str = ""
    rank: int | None = None
    host: str = ""
    origin: Literal["own", "unclear", "consequence"] = "own"


class Process(NamedTuple):
    """A process of Python in a job, from the file that it has written.

    Attributes:
        host: node name.
        pid: process id, in a container perhaps that of its own PID namespace.
        parent: process id of its parent.
        main: id of its main thread.
        program: file or module of the main program.
        name: of a process of multiprocessing; empty for any other.
        local_rank: number of a process that torch.multiprocessing.spawn started on its node.
        is_rank: it is the process of a rank, and not one that a rank has started.
        env: variables that identify the job and the rank of the process.
        time_ns: of its start, in nanoseconds since the epoch.
        rank: global rank; None if it is not known, or the process starts ranks.
        world: number of ranks that it trained with; 0 if it did not tell.
        own_rank: its rank among these.
        records: its failures.
        ended: when it noted its end, in seconds since the epoch; 0: it did not.
        path: of its file.
        changed: when its file was changed last, in seconds since the epoch.
        size: bytes of the file.
        text: what the file holds, without its beginning; only the end of a large file.
    """

    host: str
    pid: int
    parent: int = 0
    main: str = ""
    program: str = ""
    name: str = ""
    local_rank: int | None = None
    is_rank: bool = True
    env: Mapping[str, str] = {}
    time_ns: int = 0
    rank: int | None = None
    world: int = 0
    own_rank: int | None = None
    records: tuple[Record, ...] = ()
    ended: float = 0.0
    path: Path = Path()
    changed: float = 0.0
    size: int = 0
    text: bytes = b""


class Failure(Model, frozen=True, kw_only=True):
    """The first rank that failed, according to the logs.

    Attributes:
        exit_code: of the rank; 128 + signal if a signal ended it.
        rank: global rank; None if it is unknown.
        host: node it ran on.
        text: the line of the log that reports it.
        kind: ``exception``, ``exit``, ``argparse``, ``child`` or ``thread``; empty if only its exit
            code is known.
        words: the program's own message: ``KeyError: 'label'``; empty if only its exit code is
            known.
        place: the user's own last frame: ``train.py, line 12, in step``.
        source: that line of the file.
        details: the errors as Python prints them, for the rules.
        certainty: that this is the first failure: ``certain``, ``likely`` or ``possible``; empty if
            only the logs are known.
        alike: other ranks that failed with the same message.
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


class JobAttempt(Model, frozen=True, kw_only=True):
    """One attempt of a requeueable job.

    Times are seconds since the epoch; 0: unknown.

    Attributes:
        number: from 1.
        nodes: as Slurm writes them.
        how: how it ended, as text; empty while it runs, or if Slurm ended it.
        element: its number in a job array.
    """

    number: int
    began: int
    nodes: str
    ended: int = 0
    how: str = ""
    element: int | None = None


class PointOutcome(Model, frozen=True, kw_only=True):
    """The outcome or the present state of an element of a job array.

    Attributes:
        number: of the element.
        state: Slurm's.
        exit_code: None: it has not ended.
        seconds: from start to end by Slurm's clock.
        results: the JSON object that it printed last, if it did.
        message: the error, if it failed.
    """

    number: ElementNumber
    state: str
    exit_code: int | None = None
    seconds: Seconds = 0.0
    results: dict[str, object] = {}
    message: str = ""


class Outcome(Model, frozen=True, kw_only=True):
    """``outcome.json``: the outcome of a run.

    Attributes:
        state: Slurm's final state.
        exit_code: exit code of `toolkit run`.
        seconds: from start to end by Slurm's clock.
        ranks: host -> ranks on it, from the logs.
        results: the JSON object that the script printed last, if it did.
        failure: the first rank that failed.
        message: an explanation of the outcome, if it needs one.
        unhealthy: node -> Slurm's state, of the job's nodes that are down or do not answer; its key
            in the file is an older name, as that of ``attempts``.
        points: the outcome of each element of a job array.
        attempts: the attempts of a requeueable job; the other fields are about the last one.
    """

    state: str
    exit_code: int
    seconds: Seconds
    nodes: str = ""
    ranks: dict[str, tuple[int, ...]] = {}
    results: dict[str, object] = {}
    failure: Failure | None = None
    message: str = ""
    unhealthy: dict[str, str] = msgspec.field(name="unwell", default_factory=dict)
    attempts: tuple[JobAttempt, ...] = msgspec.field(name="stints", default=())
    points: tuple[PointOutcome, ...] = ()
    kind: Literal["ok", "failed", "lost", "cancelled", "timeout", "refused", "apart"] = "ok"


class Snapshot(Model, frozen=True, kw_only=True):
    """``snapshot.json`` of a run directory.

    Attributes:
        root: the work tree that was copied.
        directory: the directory in which the ranks run, relative to the tree; absolute if it is
            outside of it.
        folder: the directory of the script, relative to the tree.
        files: name -> SHA-256 of the content; for a symbolic link, of its target's content.
        left_out: names of files that git does not ignore and that were not copied: secrets, other
            trees.
        size: of all files, in bytes.
    """

    root: str
    directory: str
    folder: str
    files: dict[str, str]
    left_out: tuple[str, ...] = ()
    size: int = 0


class Code(Model, frozen=True, kw_only=True):
    """``code.json`` of a run directory.

    Attributes:
        script: the training script; None: the run executes a program of the image.
        tree: git's work tree; empty if the script is in none.
        commit: the commit that was checked out.
        branch: the branch that was checked out.
        is_changed: tracked files differed from the commit; ``code.diff`` has the differences.
        is_cut: ``code.diff`` is incomplete.
        untracked: names of files and directories that git neither tracked nor ignored.
        note: which of these facts are unknown, and why.
    """

    script: ScriptFile | None = None
    tree: str = ""
    commit: str = ""
    branch: str = ""
    is_changed: bool = False
    is_cut: bool = False
    untracked: tuple[str, ...] = ()
    note: str = ""
