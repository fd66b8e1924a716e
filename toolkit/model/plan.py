"""A job resolved against a site and an image: every value decided. Immutable, serialisable, and all that the script is rendered from."""

from __future__ import annotations

from typing import Literal

from toolkit.model.base import Model
from toolkit.model.code import ScriptFile
from toolkit.model.site import PORTS
from toolkit.model.ways import Point, Requeue


class Bind(Model, frozen=True, kw_only=True):
    """A directory or file of the host that the container sees."""

    source: str
    target: str
    read_only: bool = False

    def __str__(self) -> str:
        return self.source if self.source == self.target and not self.read_only else self.full

    @property
    def full(self) -> str:
        """``/data/imagenet:/data:ro``, with a target in any case, as Pyxis wants it."""
        return ":".join((self.source, self.target, *(("ro",) if self.read_only else ())))

    @property
    def mount(self) -> str:
        """``type=bind,source=/a,target=/b,readonly``: a line of CSV, which is how ``docker run --mount`` reads it."""
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


class Container(Model, frozen=True, kw_only=True):
    """What a rank runs inside, which may be no container at all.

    Attributes:
        runtime: name of the runtime, and of its template.
        command: ``apptainer``, ``singularity``, ``docker`` or ``podman``; empty where Slurm does it, or nothing is started.
        action: ``run`` for our own images, whose runscript is ``exec "$@"``; ``exec`` for all others.
        image: absolute path of the SIF, reference of the image, or directory of the environment; empty where there is none.
        name: of the image, for people and for its home directory.
        where: for people: ``in pytorch_cpu``.
        label: for a line of the plan: file name of the image; empty: ``where`` without "in".
        prefix: what a variable's name gets in front so that it reaches the rank, and nobody before it.
        inherits: the rank has all of the job's environment; else only what is named.
        binds: what of the host is seen inside.
        gpus: give the container the node's NVIDIA driver.
        home: directory on the host that is the container's home; None: below the user's cache directory.
        home_name: the image's name without characters that ``--home`` gives a meaning to.
        home_inside: what that directory is inside; no user's home is there, so it covers no directory that is bound.
        options: further words for the command, or for srun.
        settings: what the job's shell sets for all that follows, as the environment's own ``activate`` would.
    """

    runtime: str = "apptainer"
    command: str = ""
    action: Literal["run", "exec"] = "exec"
    image: str = ""
    name: str
    where: str = ""
    label: str = ""
    prefix: str
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
        """What a line of the plan calls it: the file of an image, or another name."""
        return self.label or self.where.removeprefix("in ")


class Launch(Model, frozen=True, kw_only=True):
    """How the ranks are started, decided by a launcher module and written out by the template of the same name.

    Attributes:
        launcher: name of the launcher.
        reason: why this one.
        ntasks_per_node: tasks that Slurm starts on each node.
        cpus_per_task: CPUs for each of these tasks; None: nodes differ, and Slurm counts CPUs by GPU.
        mpi: value of ``srun --mpi``; None: no such option.
        exports: variables of the batch script, which srun and its plugins read.
        environment: variables set for every rank.
        program: the command that is started in the container, the script's arguments included.
        task_is_rank: Slurm's tasks are the ranks; else a task is an agent that starts them.
        labels_lines: agents begin each line of a rank with its number: ``3| epoch 1``.
        options: words for the program that starts the ranks, such as torchrun's.
        template: the template that writes it out, where it is not the launcher's own name.
        directives: what the launcher needs of sbatch, after what the user asked for; "" for an option without a value.
        init: how the ranks find each other, where the launcher has a choice.
        exclude: ``,nid007``: nodes that a job which joins later must not take either; empty: none.
        warnings: what the launcher fears will go wrong.
    """

    launcher: str
    reason: str
    ntasks_per_node: int
    cpus_per_task: int | None
    mpi: str | None = None
    exports: dict[str, str] = {}
    environment: dict[str, str] = {}
    program: tuple[str, ...] = ()
    task_is_rank: bool = True
    labels_lines: bool = False
    options: tuple[str, ...] = ()
    template: str | None = None
    directives: tuple[tuple[str, str], ...] = ()
    init: str | None = None
    exclude: str = ""
    warnings: tuple[str, ...] = ()


class Forced(Model, frozen=True, kw_only=True):
    """That rules would have stopped a job, and why it was submitted all the same.

    Attributes:
        reason: in the user's words.
        findings: what the rules said.
    """

    reason: str
    findings: tuple[str, ...]


class Plan(Model, frozen=True, kw_only=True):
    """Everything about one run, before it is submitted.

    Attributes:
        toolkit: version that made the plan.
        name: of the job.
        site: name of the site.
        nodes, ranks_per_node, gpus_per_node, cpus_per_rank: the shape, as the user sees it; of the largest node where nodes differ.
        directives: Slurm's long options and their values, in the order of the script; "" for an option without a value.
        modules: environment modules to load.
        directory: where the ranks run, absolute.
        run_directory: where script, plan, logs and outcome are, absolute.
        container: what a rank runs inside.
        launch: how ranks are started.
        environment: variables for every rank: the site's, the launcher's, the user's.
        secrets: names of further ones of the user's, whose values are in a file of the run's directory only.
        origins: for each value the place that decided it.
        least_nodes: with how many nodes it can do, where ``nodes`` is the most; None: just so many.
        gpus_by_node: GPUs of each node where they differ.
        array: it is a job array.
        requeue: how it goes back into the queue before it is stopped; None: it does not.
        interactive: the script is run in an allocation of salloc, by somebody who waits for it.
        pty: each rank has a terminal; with ``interactive`` the first has the user's.
        points: of a sweep, all of them, also where only some are run.
        notes: how an option that can be read in two ways was read.
        warnings: what will probably go wrong, and is run all the same.
        forced: rules would have stopped it, and the user had a reason to run it.
        ports: the first and the last at which ranks may meet.
        reports: ranks that are programs of Python write down why they fail.
        script_file: the script as it is now; the job tells in its log if it has changed when it starts.
        gpu_type: the type of its GPUs, as Slurm names it; empty: any.
        slurm: further options of sbatch, which the user named; None for an option without a value.
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
        """All options of sbatch in the order of the script; None for an option without a value."""
        return (*((name, value or None) for name, value in self.directives), *self.slurm.items())

    @property
    def port_count(self) -> int:
        """How many ports there are to meet at."""
        return self.ports[1] - self.ports[0] + 1

    @property
    def job_pattern(self) -> str:
        """How Slurm writes the job's number into the names of its logs: ``7``, or ``7_2`` for the element 2 of a job array."""
        return "%A_%a" if self.array else "%j"

    @property
    def shape(self) -> str:
        """``2 nodes x 4 GPUs``, ``2 nodes x 2 ranks``, ``1-4 nodes x 2 ranks`` or ``2 nodes with 8 and 4 GPUs``."""
        least = "" if self.least_nodes is None else f"{self.least_nodes}-"
        nodes = f"{least}{self.nodes} node{'s' if self.nodes != 1 else ''}"
        kind = f"{self.gpu_type} " if self.gpu_type else ""
        if self.gpus_by_node:
            return f"{nodes} with {' and '.join(map(str, self.gpus_by_node))} {kind}GPUs"
        if self.gpus_per_node and self.gpus_per_node == self.ranks_per_node:
            plural = "s" if self.gpus_per_node != 1 else ""
            return f"{nodes} x {self.gpus_per_node} {kind}GPU{plural}"
        return f"{nodes} x {self.ranks_per_node} rank{'s' if self.ranks_per_node != 1 else ''}"
