"""The options of `toolkit run`, from all the places where users write them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from toolkit.model.base import Model

Positive = Annotated[int, Meta(ge=1, description="a whole number of at least 1")]
RunName = Annotated[
    str, Meta(pattern=r"^(?!\.\.?\Z)[^/\0]+\Z", description="the name of a run in quotes")
]
NotNegative = Annotated[int, Meta(ge=0, description="a whole number of at least 0")]
Range = Annotated[
    str,
    Meta(pattern=r"^[1-9][0-9]*([:-][1-9][0-9]*)?$", description='a range, such as "1:4"'),
]
# 8,4 for nodes that differ; a100:4 or 1g.10gb:2 for a type.
Gpus = Annotated[
    str,
    Meta(
        pattern=r"^([A-Za-z0-9_.+-]+:)?[0-9]+(,[0-9]+)*$",
        description='a list with one number for each node, such as "8,4", or a type and a number, '
        'such as "a100:4"',
    ),
]
SlurmValue = str | int | bool
Init = Literal["env", "tcp", "file"]

JOINED = ".workshop.json"  # beside toolkit.toml, where a participant joined a workshop


def is_url(notify: str | None) -> bool:
    """Return whether a value of ``notify`` is a URL, which may have a token."""
    return (notify or "").startswith(("http://", "https://"))


class Job(Model, frozen=True, kw_only=True):
    """One layer of options: flags, ``job.toml``, ``toolkit.toml``, or the merged result.

    None: this layer does not set the option. Names are Slurm's long options; counts are per node or
    per rank, as in Slurm.

    Attributes:
        summary: one line for users on what the job demonstrates.
        script: the training script, relative to the job's folder or to the current working
            directory.
        arguments: the arguments of the script; the job's own first, then the user's.
        image: a recipe's name, or a path to a SIF; for the runtimes docker and pyxis an image
            reference.
        runtime: the runtime in which the ranks run.
        conda_env: name or path of an environment, for the runtime conda.
        modules: environment modules that are loaded after the site's own.
        site: the name of a site, or ``auto``.
        launcher: the launcher that starts the ranks.
        nodes: number of nodes; ``1:4`` for an elastic run, which takes as many as are available.
        ntasks_per_node: ranks on each node.
        gpus_per_node: GPUs on each node; ``8,4`` for nodes that differ; ``a100:4`` for GPUs of a
            type.
        gpus: the same; or the GPUs of the job, as Slurm's ``--gpus``, where a node has fewer
            (``toolkit.planning.plan.with_gpus``).
        cpus_per_task: CPUs for each rank.
        time: limit, in Slurm's format (``MM``, ``HH:MM:SS``, ``D-HH:MM:SS``).
        partition: Slurm's partition.
        comment: Slurm's comment, which some sites require.
        job_name: name of the job and of its run directories.
        bind: ``SRC:DST[:ro]``: host directories and files that are mounted into the container;
            ``FILE:DST:squashfs``: the content of a squashfs.
        datasets: names of datasets; if the site has one, the container sees it as ``/data/NAME``,
            read-only.
        env: variables for the ranks.
        pass_env: names of variables for the ranks, with their values in the environment of the
            submission.
        secret: the same for variables whose values are never shown.
        runs: parent directory of the run directories.
        max_restarts: how often failed ranks are restarted.
        init: how ranks of the launcher srun find each other.
        mem, account, qos, constraint, nodelist, exclude, exclusive, reservation, signal,
            dependency: Slurm's options, unchanged.
        require_signed: run an image only if it is signed by ``signature_key`` and unchanged since.
        signature_key: a public key in PEM.
        stage_image: copy the image to each node's own disk first, where later jobs find it.
        snapshot: run a frozen copy of the git work tree.
        array: Slurm's ``--array``: submit the script as many jobs, each with its own
            SLURM_ARRAY_TASK_ID.
        requeue: put the job back into the queue before its time limit, and continue from the
            checkpoint of its ranks.
        max_requeues: how often at most.
        notify: ``mail``, a URL, ``@FILE`` with one, or a command: it gets the end of the job.
        retry: how many attempts the infrastructure may end until the job is not started again.
        interactive: the user waits for the job; it lives as long as the command that started it.
        sweep: ``lr=0.1,0.01``: a job array with an element for each value, and for each combination
            of several such options.
        after: runs that must succeed before this one starts; ``afterany:train-0007``: that must
            end, in any state.
        rerun_of: the run whose failed points these are.
        python_module: the script is run by this name, as by ``python -m``: ``pkg.train``.
        slurm: further options of sbatch by their long names: ``licenses = "matlab:1"``; true for
            one without a value, false to leave it out.
        pty: each rank has a terminal, for programs that check for one; with ``interactive`` the
            first rank has the user's own.
    """

    summary: str | None = None
    script: str | None = None
    arguments: tuple[str, ...] = ()
    image: str | None = None
    runtime: str | None = None
    conda_env: str | None = None
    modules: tuple[str, ...] = ()
    site: str | None = None
    launcher: str | None = None
    nodes: Positive | Range | None = None
    ntasks_per_node: Positive | None = None
    gpus_per_node: NotNegative | Gpus | None = None
    gpus: NotNegative | Gpus | None = None
    cpus_per_task: Positive | None = None
    time: str | int | None = None
    partition: str | None = None
    comment: str | None = None
    job_name: str | None = None
    bind: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    env: dict[str, str] = {}
    pass_env: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()
    runs: str | None = None
    max_restarts: NotNegative | None = None
    init: Init | None = None
    mem: str | int | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    nodelist: str | None = None
    exclude: str | None = None
    exclusive: bool | str | None = None
    reservation: str | None = None
    signal: str | None = None
    dependency: str | None = None
    array: str | int | None = None
    requeue: bool | None = None
    max_requeues: Positive | None = None
    notify: str | None = None
    retry: Positive | None = None
    interactive: bool | None = None
    pty: bool | None = None
    sweep: tuple[str, ...] = ()
    rerun_of: RunName | None = None
    after: tuple[str, ...] = ()
    require_signed: bool | None = None
    signature_key: str | None = None
    stage_image: bool | None = None
    snapshot: bool | None = None
    python_module: str | None = None
    slurm: dict[str, SlurmValue] = {}

    @property
    def node_range(self) -> tuple[int, int]:
        """Return the least and the most nodes: (2, 2) for two, (1, 4) for ``1:4``.

        If GPUs are given node by node (``8,4``) and nodes are not, there is one node for each.
        """
        nodes = str(self.nodes or len(self.gpus_by_node) or 1)
        first, _, last = nodes.replace("-", ":").partition(":")
        return int(first), int(last or first)

    @property
    def gpus_by_node(self) -> tuple[int, ...]:
        """Return the GPUs of each node if they differ (``8,4``), else empty."""
        counts = self._gpu_counts
        return counts if len(counts) > 1 else ()

    @property
    def most_gpus(self) -> int:
        """Return the GPUs of a node; of the largest one if nodes differ."""
        return max(self._gpu_counts)

    @property
    def gpu_type(self) -> str:
        """Return the type of the GPUs as the user names it: ``a100``; empty: any type."""
        texts = (str(self.gpus_per_node or ""), str(self.gpus or ""))
        return next((text.rpartition(":")[0] for text in texts if ":" in text), "")

    @property
    def gpu_option(self) -> str:
        """Return the option that set the number of GPUs."""
        return "--gpus" if self.gpus is not None else "--gpus-per-node"

    @property
    def _gpu_counts(self) -> tuple[int, ...]:
        text = str((self.gpus if self.gpus_per_node is None else self.gpus_per_node) or 0)
        return tuple(int(count) for count in text.rpartition(":")[2].split(","))


class Project(Job, frozen=True, kw_only=True):
    """Options for every job of a project.

    Attributes:
        images: directories with images of other users, which are searched after the user's own.
        registries: registry -> mirror that is used in its place when images are built:
            ``{"nvcr.io": "mirror.site/ngc"}``.
        on: the login node that commands run on, as ssh knows it; "": this machine.
    """

    images: tuple[str, ...] = ()
    registries: dict[str, str] = {}
    on: str | None = None
