"""A site: its file (``sites/<name>.toml``), the cluster's own answers, and its present state."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from toolkit.model.base import Model

# In --gres=gpu:TYPE:N and --gpus TYPE:N, which have no way to quote a blank.
GpuType = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9_.+-]*$", description='a name without blanks, such as "a100"'),
]
Size = Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,8}[KMGT]$", description='a size, such as "64G"')]
CLUSTER_NAME = r"^[a-z0-9][a-z0-9_-]{0,19}\Z"  # of a local cluster
# Above the ephemeral ports of Linux (ip_local_port_range), so that no process has one by chance.
PORTS = (61000, 65535)


class Note(Model, frozen=True, kw_only=True):
    """A fact about a site that no other key can express.

    Attributes:
        text: the fact.
        source: the document that states it.
        date: the month in which it was true, as ``2026-08``.
    """

    text: str
    source: str
    date: str = ""


class SitePartition(Model, frozen=True, kw_only=True):
    """A partition as the site's documents describe it.

    None: they do not. The cluster's own answers (``Facts``) take precedence.

    Attributes:
        nodes: the nodes' names as Slurm writes them, or only their number.
        cpus: cores of a node.
        memory: of a node, in MB.
        gpus: of a node.
        gpu: model of the GPUs: ``V100``.
        arch: of the nodes: ``x86_64`` or ``aarch64``.
        jobs_submitted, jobs_running: limits for one user.
        gpus_per_user: limit for the running jobs of one user.
        max_minutes: time limit of a job.
        batch: the partition accepts batch jobs.
    """

    nodes: str | int | None = None
    cpus: int | None = None
    memory: int | None = None
    gpus: int = 0
    gpu: str | None = None
    arch: Literal["x86_64", "aarch64"] = "x86_64"
    jobs_submitted: int | None = None
    jobs_running: int | None = None
    gpus_per_user: int | None = None
    max_minutes: int | None = None
    batch: bool = True


class CommentRule(Model, frozen=True, kw_only=True):
    """The site's rule for ``--comment``.

    Attributes:
        required: jobs without a comment are refused.
        words: the allowed words, if a comment is one word.
        fields: each key and its allowed values, if a comment is ``key=value;key=value``.
        example: a valid comment.
        source, date: the document with the rule, and its date.
    """

    required: bool = True
    words: tuple[str, ...] = ()
    fields: dict[str, tuple[str, ...]] = {}
    example: str = ""
    source: str = ""
    date: str = ""


class OptionRule(Model, frozen=True, kw_only=True):
    """The reason that an option of sbatch is required or forbidden at a site.

    Attributes:
        why: in one sentence.
        instead: the option to use in its place, or an example.
        source: the document with the rule.
    """

    why: str
    instead: str = ""
    source: str = ""


class Limits(Model, frozen=True, kw_only=True):
    """The limits of one user in a partition; None: no known limit.

    Attributes:
        source: the origin of the limits.
    """

    jobs_submitted: int | None = None
    jobs_running: int | None = None
    gpus: int | None = None
    source: str = ""


class Site(Model, frozen=True, kw_only=True):
    """The site file of a cluster.

    Attributes:
        name: of the site, equal to the file's.
        summary: one line for users.
        extends: another site whose values are the defaults of this one.
        date: the month in which its facts were collected, as ``2026-08``.
        access: where Slurm's commands are: ``path`` (on PATH) or ``local-cluster`` (the one of
            `toolkit cluster up`).
        containers: commands that may start a container, in order of preference.
        modules: environment modules that every job loads.
        available_modules: modules that the site is known to have; empty: unknown.
        interface: the network interface between nodes, for Gloo and the like; None leaves it to the
            libraries.
        mpi: types of ``srun --mpi`` that the site is known to have; the cluster's own answer takes
            precedence.
        driver: NVIDIA driver of the nodes, such as ``570.86``; None: unknown.
        images: directories that are searched for images, after the user's own.
        datasets: name -> directory of a dataset at the site: ``imagenet``.
        scratch: directory of caches; ``$NAME`` is replaced from the job's environment; None: below
            the user's cache directory.
        stage_directory: directory of the nodes' own disks for copies of images (``--stage-image``).
        submit_directory: jobs may be submitted only below it; ``$NAME`` is replaced.
        purge_days: files of ``submit_directory`` that were not read for so long are deleted.
        private_directories: node-local directories, from which no job can be run.
        ports: the first and the last port at which ranks may meet. The data use ephemeral ports of
            the nodes' kernel.
        cpus_per_task: CPUs of one rank, as a default.
        max_minutes: time limit of every job; ``interactive_minutes``: of ``salloc`` and ``srun
            --pty``; ``notebook_minutes``: of notebooks.
        partitions: by name, as the site's documents describe them.
        comment: the rule for ``--comment``.
        required: option -> why it must be given: ``account``.
        forbidden: option -> why it must not be given: ``mem``.
        environment: variables that every rank gets.
        allreduce: GB/s per rank that an all-reduce between two nodes should reach, by ``gloo``,
            ``mpi``, ``nccl``.
        defaults: options of `toolkit run`, by their names, which the site sets.
        slurm: further options of sbatch, by their long names, which the site sets; true for one
            without a value.
        gpu_types: type of GPU -> Slurm's name for it in ``--gres=gpu:TYPE:N``; empty: Slurm has no
            types there, the partition decides.
        notes: further facts for users, each with its source.
    """

    name: str
    summary: str = ""
    extends: str | None = None
    date: str = ""
    access: Literal["path", "local-cluster"] = "path"
    containers: tuple[str, ...] = ("apptainer", "singularity")
    modules: tuple[str, ...] = ()
    available_modules: tuple[str, ...] = ()
    interface: str | None = None
    mpi: tuple[str, ...] = ()
    driver: str | None = None
    images: tuple[str, ...] = ()
    datasets: dict[str, str] = {}
    scratch: str | None = None
    stage_directory: str = "/tmp"
    submit_directory: str | None = None
    purge_days: int | None = None
    private_directories: tuple[str, ...] = ("/tmp", "/var/tmp", "/dev/shm")
    ports: Annotated[tuple[int, int], Meta(description="two ports, such as [61000, 65535]")] = PORTS
    cpus_per_task: int = 1
    max_minutes: int | None = None
    interactive_minutes: int | None = None
    notebook_minutes: int | None = None
    partitions: dict[str, SitePartition] = {}
    comment: CommentRule | None = None
    required: dict[str, OptionRule] = {}
    forbidden: dict[str, OptionRule] = {}
    environment: dict[str, str] = {}
    allreduce: dict[str, float] = {}
    defaults: dict[str, str | int | bool] = {}
    slurm: dict[str, str | int | bool] = {}
    gpu_types: dict[str, GpuType] = {}
    notes: tuple[Note, ...] = ()

    @property
    def cited(self) -> str:
        """The site's file as messages cite it: ``site neuron, 2026-08``."""
        return f"site {self.name}{f', {self.date}' if self.date else ''}"

    def limits(self, partition: str) -> Limits:
        """Return the limits of one user in a partition, as the site's documents describe it."""
        written = self.partitions.get(partition, SitePartition())
        return Limits(
            jobs_submitted=written.jobs_submitted,
            jobs_running=written.jobs_running,
            gpus=written.gpus_per_user,
            source=self.cited,
        )

    @property
    def container_command(self) -> str | None:
        """The command of one of the site's modules, else the first that the site names."""
        modules = {module.partition("/")[0] for module in self.modules}
        first = next(iter(self.containers), None)
        return next((name for name in self.containers if name in modules), first)


class Access(Model, frozen=True, kw_only=True):
    """The way to Slurm's commands.

    Attributes:
        prefix: words that are put before each command.
        private_directories: node-local directories, if they are known better than by the site, such
            as the parts of /tmp that are shared.
        shared_directories: directories below a private one that are shared all the same.
        like: the site that a local cluster imitates.
    """

    prefix: tuple[str, ...] = ()
    private_directories: tuple[str, ...] | None = None
    shared_directories: tuple[str, ...] = ()
    like: str = ""


class Partition(Model, frozen=True, kw_only=True):
    """A partition as Slurm describes it. Memory in MB, time in minutes; None means unlimited.

    sinfo counts: ``cpus``, ``memory`` and ``gpus`` are of the largest node, and so are the GPUs of
    each type; ``nodes`` are those that are not switched off or down. scontrol has the settings:
    ``hosts`` as Slurm writes them, and ``qos``, whose limits apply to all users of the partition.
    """

    name: str
    default: bool = False
    nodes: int = 0
    cpus: int = 0
    memory: int = 0
    gpus: int = 0
    gpu_type: str | None = None
    gpus_by_type: dict[str, int] = {}
    max_nodes: int | None = None
    max_minutes: int | None = None
    available: bool = True
    hosts: str = ""
    qos: str = ""


class ClusterNode(Model, frozen=True, kw_only=True):
    """A node as ``scontrol`` shows it.

    Attributes:
        state: ``idle``, ``mixed``, ``full``, or ``down`` for every state in which no job can start
            there.
        gpus, gpus_used: all GPUs, and those of them that are allocated to jobs.
        memory: in MB.
    """

    name: str
    partitions: tuple[str, ...] = ()
    state: str = "idle"
    cpus: int = 0
    memory: int = 0
    gpus: int = 0
    gpus_used: int = 0
    gpu_type: str = ""
    arch: str = ""


class Use(Model, frozen=True, kw_only=True):
    """The user's current usage of a partition.

    Attributes:
        submitted: jobs that wait or run.
        running: jobs that run.
        gpus: of the running jobs.
    """

    submitted: int = 0
    running: int = 0
    gpus: int = 0


class Facts(Model, frozen=True, kw_only=True):
    """The answers of a cluster: the facts of a site that are not in its file.

    Attributes:
        sbatch_options: that ``sbatch --help`` lists; empty if not queried.
        mpi: types of ``srun --mpi=list``; None if not queried.
        container: the command that starts a container.
        mpirun: the first line of ``mpirun --version`` on PATH: ``mpirun (Open MPI) 4.1.4``; None if
            there is no mpirun or it was not queried.
        mine: partition -> the user's usage; empty if not queried.
        limits: partition -> the limits of the user; empty if Slurm sets none, or was not asked.
    """

    sbatch_options: tuple[str, ...] = ()
    partitions: tuple[Partition, ...] = ()
    mpi: tuple[str, ...] | None = None
    container: str | None = None
    mpirun: str | None = None
    mine: dict[str, Use] = {}
    limits: dict[str, Limits] = {}


class Start(Model, frozen=True, kw_only=True):
    """Slurm's estimate of a job's start in a partition, or its refusal.

    Attributes:
        at: in the cluster's time, ISO 8601; empty: never.
        nodes: the nodes that it would get.
        refused: Slurm's message.
    """

    at: str = ""
    nodes: str = ""
    refused: str = ""


class PartitionState(Model, frozen=True, kw_only=True):
    """A partition now.

    Attributes:
        settings: of the partition.
        gpu: the model of its GPUs; all models if there are several.
        gpus_per_node: of the node with the most.
        idle, mixed, full, down: number of nodes in each state.
        gpus, gpus_free: on nodes that are not down.
        limits, use: the user's limits and usage.
        start: the estimate for a job's shape; None if no shape was given.
    """

    settings: Partition
    gpu: str = ""
    gpus_per_node: int = 0
    idle: int = 0
    mixed: int = 0
    full: int = 0
    down: int = 0
    gpus: int = 0
    gpus_free: int = 0
    limits: Limits = Limits()
    use: Use = Use()
    start: Start | None = None
