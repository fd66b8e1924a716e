"""A plan: a job resolved against a site and an image.

Every value is decided. A plan is immutable and serializable, and the script is rendered from it
alone.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Literal

from toolkit.model.base import Model, Record
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


class Requeue(Record, frozen=True, kw_only=True):
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


class Point(Record, frozen=True, kw_only=True):
    """One point of a sweep.

    Attributes:
        number: its number in the job array, from 0.
        values: names and values, as the user wrote them.
        arguments: the arguments that they add to the script's.
    """

    number: int
    values: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...]


class Bind(Record, frozen=True, kw_only=True):
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


class Container(Record, frozen=True, kw_only=True):
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


class Launch(Record, frozen=True, kw_only=True):
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


class Forced(Record, frozen=True, kw_only=True):
    """The findings that would have stopped a job, and why the user submitted it all the same.

    Attributes:
        reason: in the user's words.
        findings: messages of the rules.
    """

    reason: str
    findings: tuple[str, ...]


class Plan(Record, frozen=True, kw_only=True):
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
