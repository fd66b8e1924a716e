"""A run: its plan, its job, its attempts, its processes and their failures, and its outcome.

A plan is a job resolved against a site and an image: every value is decided. It is immutable and
serializable, and the script is rendered from it alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, NamedTuple

import msgspec

from toolkit.model.base import Model, Stored
from toolkit.model.site import CLUSTER_NAME as CLUSTER_NAME
from toolkit.model.site import PORTS
from toolkit.units import counted


class ScriptFile(Model, frozen=True, kw_only=True):
    """A script as it was when its job was submitted.

    Attributes:
        path: absolute.
        sha256: of its content.
    """

    path: str
    sha256: str


class Tree(Model, frozen=True, kw_only=True):
    """The work tree that a snapshot is taken of.

    Attributes:
        root: its top directory, absolute.
        cwd: the directory `toolkit run` was called in; containers mount it, too, since data may be
            there.
        is_copy: the tree is the snapshot of an earlier run.
    """

    root: str
    cwd: str
    is_copy: bool = False


class Requeue(Stored, frozen=True, kw_only=True):
    """The return of a job to the queue: before its time limit, or if the infrastructure ended it.

    Attributes:
        signal: the signal that Slurm sends the batch shell before the limit: ``USR1``; empty: none.
        seconds: the least time between the signal and the time limit.
        wait: the longest time, in seconds, that the ranks have to write a checkpoint.
        times: the most times that the job is requeued before its limit.
        retries: the most attempts that the infrastructure may end.
    """

    signal: str
    seconds: int
    wait: int
    times: int
    retries: int = 0


class Point(Stored, frozen=True, kw_only=True):
    """One point of a sweep.

    Attributes:
        number: its number in the job array, from 0.
        values: names and values, as the user wrote them.
        arguments: the arguments that they add to the script's.
    """

    number: int
    values: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...]


class Bind(Stored, frozen=True, kw_only=True):
    """A directory or file of the host that is mounted into the container.

    Attributes:
        source: on the host.
        target: in the container.
        read_only: the container cannot write there.
        squashfs: the source is a squashfs, whose content is mounted; only Apptainer does this.
    """

    source: str
    target: str
    read_only: bool = False
    squashfs: bool = False

    def __str__(self) -> str:
        if self.squashfs:
            return f"{self.source}:{self.target}:image-src=/,ro"
        return self.source if self.source == self.target and not self.read_only else self.full

    @property
    def full(self) -> str:
        """Return ``/data/imagenet:/data:ro``, always with a target, as Pyxis requires."""
        return ":".join((self.source, self.target, *(("ro",) if self.read_only else ())))

    @property
    def mount(self) -> str:
        """Return the value of ``docker run --mount``: ``type=bind,source=/a,target=/b,readonly``.

        Docker parses it as a line of CSV, so fields with a comma or a quote are quoted.
        """
        fields = (
            "type=bind",
            f"source={self.source}",
            f"target={self.target}",
            *(("readonly",) if self.read_only else ()),
        )
        return ",".join(
            f'"{field.replace(chr(34), chr(34) * 2)}"' if set(field) & set(',"') else field
            for field in fields
        )


class Container(Stored, frozen=True, kw_only=True):
    """The runtime of a rank, which may be no container at all.

    Attributes:
        runtime: name of the runtime, and of its template.
        command: ``apptainer``, ``singularity``, ``docker`` or ``podman``; empty if Slurm starts the
            container, or there is none.
        action: ``run`` for our own images, whose runscript is ``exec "$@"``; ``exec`` for all
            others.
        image: absolute path of the SIF, reference of the image, or directory of the environment;
            empty if there is none.
        staged: path of each node's own copy of the image, in which the shell replaces ``$UID``;
            empty: there is none.
        name: of the image, as shown to users and for its home directory.
        where: for messages: ``in pytorch_cpu``.
        prefix: prefix of a variable's name that makes it reach the rank and no process before it;
            empty: the task sets the variable itself.
        inherits: the rank gets all of the job's environment; else only the named variables.
        binds: directories and files of the host that are mounted.
        gpus: give the container the node's NVIDIA driver.
        home: directory on the host that is the container's home; None: below the user's cache
            directory.
        home_name: the image's name without characters that have a meaning in ``--home``.
        home_inside: path of the home directory in the container. No user's home has this path, so
            it covers no mounted directory.
        options: further arguments of the command, or of srun.
        settings: variables that the job's shell sets first, as the environment's own ``activate``
            would.
    """

    runtime: str = "apptainer"
    command: str = ""
    action: Literal["run", "exec"] = "exec"
    image: str = ""
    staged: str = ""
    name: str
    where: str = ""
    prefix: str = ""
    inherits: bool = False
    binds: tuple[Bind, ...] = ()
    gpus: bool = False
    home: str | None = None
    home_name: str = ""
    home_inside: str = "/home/toolkit"
    options: tuple[str, ...] = ()
    settings: dict[str, str] = {}

    @property
    def shown(self) -> str:
        """Return the name for a line of the plan: the file of an image, or another name."""
        is_file = self.image.endswith(".sif")
        return PurePosixPath(self.image).name if is_file else self.where.removeprefix("in ")


class Launch(Stored, frozen=True, kw_only=True):
    """The start of the ranks.

    A launcher module decides it, and the template of the same name renders it.

    Attributes:
        launcher: name of the launcher.
        ntasks_per_node: tasks that Slurm starts on each node.
        cpus_per_task: CPUs for each of these tasks; None: nodes differ, and Slurm counts CPUs by
            GPU.
        mpi: value of ``srun --mpi``; None: no such option.
        exports: variables of the batch script, which srun and its plugins read.
        environment: variables set for every rank.
        program: the command that is started in the container, with the script's arguments.
        filled: numbers of the words in it that the launcher has filled in, in which the script
            expands variables: ``$MASTER_ADDR``.
        task_is_rank: Slurm's tasks are the ranks; else a task is an agent that starts them.
        labels_lines: agents begin each line of a rank with its number: ``3| epoch 1``.
        options: arguments of the program that starts the ranks, such as torchrun's.
        template: the template that renders it, if its name is not the launcher's.
        directives: options of sbatch that the launcher needs, after the user's; "" for an option
            without a value.
        init: how the ranks find each other, if the launcher has a choice.
    """

    launcher: str
    ntasks_per_node: int
    cpus_per_task: int | None
    mpi: str | None = None
    exports: dict[str, str] = {}
    environment: dict[str, str] = {}
    program: tuple[str, ...] = ()
    filled: tuple[int, ...] = ()
    task_is_rank: bool = True
    labels_lines: bool = False
    options: tuple[str, ...] = ()
    template: str | None = None
    directives: tuple[tuple[str, str], ...] = ()
    init: str | None = None


class Forced(Stored, frozen=True, kw_only=True):
    """The findings that would have stopped a job, and why the user submitted it all the same.

    Attributes:
        reason: in the user's words.
        findings: messages of the rules.
    """

    reason: str
    findings: tuple[str, ...]


class Plan(Stored, frozen=True, kw_only=True):
    """A run before it is submitted.

    Attributes:
        toolkit: version that made the plan.
        name: of the job.
        site: name of the site.
        nodes, ranks_per_node, gpus_per_node, cpus_per_rank: the shape, as shown to the user; of the
            largest node if nodes differ.
        directives: Slurm's long options and their values, in the order of the script; "" for an
            option without a value.
        modules: environment modules to load.
        directory: working directory of the ranks, absolute.
        run_directory: directory of script, plan, logs and outcome, absolute.
        container: the runtime of a rank.
        launch: how ranks are started.
        environment: variables for every rank: the site's, the launcher's, the user's.
        secrets: names of the user's secret variables, whose values are only in a file of the run
            directory.
        origins: for each value the place that decided it.
        least_nodes: the least number of nodes of an elastic run, where ``nodes`` is the most; None:
            the number is fixed.
        gpus_by_node: GPUs of each node if they differ.
        array: the job is a job array.
        requeue: how the job returns to the queue before its time limit; None: it does not.
        notify: the command that tells of the end; a URL is only in a file of the run directory.
        interactive: the script runs in an allocation of salloc while the user waits.
        pty: each rank has a terminal; with ``interactive`` the first has the user's.
        points: all points of a sweep, even if only some of them run.
        notes: how an ambiguous option was interpreted.
        warnings: probable problems that do not stop the run.
        forced: the findings that the user overruled.
        ports: the first and the last port at which ranks may meet.
        reports: ranks that run Python write reports of their failures.
        script_file: the script at submission; the job logs a warning if it has changed when the job
            starts.
        gpu_type: the type of its GPUs, as Slurm names it; empty: any.
        slurm: further options of sbatch from the user; None for an option without a value.
    """

    toolkit: str
    name: str
    site: str
    nodes: int
    ranks_per_node: int
    gpus_per_node: int
    cpus_per_rank: int
    directives: tuple[tuple[str, str], ...]
    directory: str
    run_directory: str
    container: Container
    launch: Launch
    environment: dict[str, str]
    secrets: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    origins: dict[str, str] = {}
    least_nodes: int | None = None
    gpus_by_node: tuple[int, ...] = ()
    array: bool = False
    requeue: Requeue | None = None
    notify: str = ""
    interactive: bool = False
    pty: bool = False
    points: tuple[Point, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    forced: Forced | None = None
    ports: tuple[int, int] = PORTS
    reports: bool = False
    script_file: ScriptFile | None = None
    gpu_type: str = ""
    slurm: dict[str, str | None] = {}

    @property
    def sbatch_options(self) -> tuple[tuple[str, str | None], ...]:
        """Return all options of sbatch in the script's order; None: no value."""
        return (*((name, value or None) for name, value in self.directives), *self.slurm.items())

    @property
    def port_count(self) -> int:
        """Return the number of ports at which ranks may meet."""
        return self.ports[1] - self.ports[0] + 1

    @property
    def job_pattern(self) -> str:
        """Return Slurm's file name pattern for the number of the job.

        In the names of logs it becomes ``7``, or ``7_2`` for element 2 of a job array.
        """
        return "%A_%a" if self.array else "%j"

    @property
    def shape(self) -> str:
        """Return the shape for users.

        ``2 nodes x 4 GPUs``, ``2 nodes x 2 ranks``, ``1-4 nodes x 2 ranks`` or ``2 nodes with 8 and
        4 GPUs``.
        """
        least = "" if self.least_nodes is None else f"{self.least_nodes}-"
        kind, nodes = f"{self.gpu_type} GPU".lstrip(), f"{least}{counted(self.nodes, 'node')}"
        if self.gpus_by_node:
            return f"{nodes} with {' and '.join(map(str, self.gpus_by_node))} {kind}s"
        if self.gpus_per_node and self.gpus_per_node == self.ranks_per_node:
            return f"{nodes} x {counted(self.gpus_per_node, kind)}"
        return f"{nodes} x {counted(self.ranks_per_node, 'rank')}"


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


class Submission(Stored, frozen=True, kw_only=True):
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


class Error(Stored, frozen=True, kw_only=True):
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
    """

    script: ScriptFile | None = None
    tree: str = ""
    commit: str = ""
    branch: str = ""
    is_changed: bool = False
    is_cut: bool = False
    untracked: tuple[str, ...] = ()
