"""What the user wants to run: the options of `toolkit run`, wherever they are written."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from toolkit.model.base import Model

Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Range = Annotated[str, Meta(pattern=r"^[1-9][0-9]*([:-][1-9][0-9]*)?$")]
# 8,4 for nodes that differ; a100:4 or 1g.10gb:2 for a type.
Gpus = Annotated[str, Meta(pattern=r"^([A-Za-z0-9_.+-]+:)?[0-9]+(,[0-9]+)*$")]
SlurmValue = str | int | bool
Init = Literal["env", "tcp", "file"]


class Job(Model, frozen=True, kw_only=True):
    """One layer of settings: flags, ``job.toml``, ``toolkit.toml``, or the merged result. None: this layer does not say.

    Names are Slurm's long options, counts are per node or per rank as there:

    Attributes:
        summary: what the job shows, for people.
        script: the training script, relative to the job's folder or to where the user stands.
        arguments: what comes after the script; the job's own first, then the user's.
        image: a recipe's name, or a path to a SIF; for the runtimes docker and pyxis the reference of an image.
        runtime: what the ranks run inside.
        conda_env: name or path of an environment, for the runtime conda.
        modules: environment modules that are loaded after the site's own.
        site: the name of a site, or ``auto``.
        launcher: how ranks are started.
        nodes: how many nodes; ``1:4`` for an elastic run, that takes what there is.
        ntasks_per_node: ranks on each node.
        gpus_per_node: GPUs on each node; ``8,4`` for nodes that differ; ``a100:4`` for GPUs of a type.
        gpus: the same; or the GPUs of the job, as Slurm's ``--gpus``, where a node has fewer (``toolkit.planning.gpus``).
        cpus_per_task: CPUs for each rank.
        time: limit, in Slurm's format (``MM``, ``HH:MM:SS``, ``D-HH:MM:SS``).
        partition: Slurm's partition.
        comment: Slurm's comment, which some sites require.
        job_name: name of the job and of its run directories.
        bind: ``SRC:DST[:ro]``, what of the host is seen in the container.
        datasets: names of data that the site may keep; where it does, the container sees them as ``/data/NAME``, to read.
        env: variables for the ranks.
        pass_env: variables for the ranks that have the value that they have where the job is submitted.
        secret: variables for the ranks whose values are those of the environment in which the job is submitted, and are shown nowhere.
        runs: directory that run directories are made in.
        max_restarts: how often ranks that failed are started again.
        init: how ranks of the launcher srun find each other.
        mem, account, qos, constraint, nodelist, exclude, exclusive, reservation, signal, dependency: Slurm's options, as they are.
        require_signed: run an image only that is signed by ``signature_key``, and unchanged since.
        signature_key: a public key in PEM, or the fingerprint of a PGP key.
        snapshot: run a frozen copy of the git work tree.
        array: Slurm's ``--array``: the script as many jobs, each of which knows its SLURM_ARRAY_TASK_ID.
        requeue: before its time is over the job goes back into the queue, and goes on from what its ranks have saved.
        max_requeues: how often at most.
        interactive: somebody waits for it: it lives as long as the command that started it.
        sweep: ``lr=0.1,0.01``: a job array with an element for each of these arguments, and for all of several such.
        after: runs that must have ended well before this one starts; ``afterany:train-0007``: in whatever way.
        rerun_of: the run whose failed points these are.
        python_module: the script is run by this name, as by ``python -m``: ``pkg.train``.
        slurm: further options of sbatch by their long names: ``licenses = "matlab:1"``; true for one without a value, false to leave it out.
        pty: each rank has a terminal, for programs that look for one; with ``interactive`` the first rank has the user's own.
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
    interactive: bool | None = None
    pty: bool | None = None
    sweep: tuple[str, ...] = ()
    rerun_of: str | None = None
    after: tuple[str, ...] = ()
    require_signed: bool | None = None
    signature_key: str | None = None
    snapshot: bool | None = None
    python_module: str | None = None
    slurm: dict[str, SlurmValue] = {}

    @property
    def node_range(self) -> tuple[int, int]:
        """The least and the most nodes: (2, 2) for two, (1, 4) for ``1:4``; one for each of GPUs that are given by node."""
        first, _, last = str(self.nodes or 1).replace("-", ":").partition(":")
        named = len(self.gpus_by_node) if not last and int(first) == 1 else 0
        return (named, named) if named else (int(first), int(last or first))

    @property
    def gpus_by_node(self) -> tuple[int, ...]:
        """GPUs of each node where they differ (``8,4``); empty where all nodes have as many."""
        counts = self._gpu_counts
        return counts if len(counts) > 1 else ()

    @property
    def most_gpus(self) -> int:
        """GPUs on a node, on the largest one where nodes differ."""
        return max(self._gpu_counts)

    @property
    def gpu_type(self) -> str:
        """The type of the GPUs as the user names it: ``a100``; empty if any will do."""
        texts = (str(self.gpus_per_node or ""), str(self.gpus or ""))
        return next((text.rpartition(":")[0] for text in texts if ":" in text), "")

    @property
    def gpu_option(self) -> str:
        """The option that named the number of GPUs."""
        return "--gpus" if self.gpus is not None else "--gpus-per-node"

    @property
    def _gpu_counts(self) -> tuple[int, ...]:
        text = str((self.gpus if self.gpus_per_node is None else self.gpus_per_node) or 0)
        return tuple(int(count) for count in text.rpartition(":")[2].split(","))
