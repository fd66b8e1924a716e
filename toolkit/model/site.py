"""A site: what is written of a cluster (``sites/<name>.toml``) and what the cluster itself answers (``Facts``)."""

from __future__ import annotations

from typing import Literal

from toolkit.model.base import Model
from toolkit.model.slurm_options import Takes

PORTS = (
    61000,
    65535,
)  # above those that Linux gives to whoever asks for any (ip_local_port_range), so that nobody has them by chance


class Note(Model, frozen=True, kw_only=True):
    """Something that is known of a site and fits nowhere else.

    Attributes:
        text: what people should know.
        source: where it is written.
        date: when it was true, as ``2026-08``.
    """

    text: str
    source: str
    date: str = ""


class SitePartition(Model, frozen=True, kw_only=True):
    """A partition as a site's documents describe it; None: they do not say. The cluster's own answers (``Facts``) go before.

    Attributes:
        nodes: the nodes' names as Slurm writes them, or only how many there are.
        cpus: cores of a node.
        memory: of a node, in MB.
        gpus: of a node.
        gpu: what they are called: ``V100``.
        arch: of the nodes: ``x86_64`` or ``aarch64``.
        jobs_submitted, jobs_running: at most so many of one user.
        gpus_per_user: at most so many in one user's running jobs.
        max_minutes: time limit of a job.
        batch: whether batch jobs may go there.
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
    """What a site wants in ``--comment``.

    Attributes:
        required: jobs without one are refused.
        words: where a comment is one word: the words that are allowed.
        fields: where it is ``key=value;key=value``: each key and the values that it may have.
        example: one that is right.
        source, date: where and when this was written.
    """

    required: bool = True
    words: tuple[str, ...] = ()
    fields: dict[str, tuple[str, ...]] = {}
    example: str = ""
    source: str = ""
    date: str = ""


class OptionRule(Model, frozen=True, kw_only=True):
    """Why an option of sbatch is required or forbidden at a site.

    Attributes:
        why: in one sentence.
        instead: what to write in its place, or an example.
        source: where it is written.
    """

    why: str
    instead: str = ""
    source: str = ""


class Site(Model, frozen=True, kw_only=True):
    """What people write of a cluster.

    Attributes:
        name: of the site, equal to the file's.
        summary: one line for people.
        extends: another site whose values hold where this one says nothing.
        date: when its facts were looked up, as ``2026-08``.
        access: where Slurm is: ``path`` (on PATH here) or ``local-cluster`` (the one of `toolkit cluster up`).
        containers: commands that may start a container there, in order of preference.
        modules: environment modules that every job loads.
        available_modules: modules that are known to be there; empty: nobody wrote them down.
        interface: the network interface between nodes, for Gloo and the like; None leaves it to the libraries.
        mpi: types of ``srun --mpi`` that are known to be there; the cluster's own answer goes before.
        driver: NVIDIA driver of the nodes, such as ``570.86``; None: not known.
        images: directories that are searched for images, after the user's own.
        datasets: name -> directory of data that the site keeps: ``imagenet``.
        scratch: where caches go; ``$NAME`` is replaced from the job's environment; None: below the user's cache directory.
        submit_directory: jobs may be submitted only below it; ``$NAME`` is replaced.
        purge_days: files of ``submit_directory`` that nobody read for so long are deleted.
        private_directories: directories that each node has for itself, where no job can be run from.
        ports: the first and the last port at which ranks may meet. The data go over ports that the nodes' kernel gives.
        cpus_per_task: CPUs of one rank where nobody says.
        max_minutes: time limit of every job; ``interactive_minutes``: of ``salloc`` and ``srun --pty``.
        partitions: by name, as the site's documents describe them.
        comment: what ``--comment`` must be.
        required: option -> why it must be given: ``account``.
        forbidden: option -> why it must not: ``mem``.
        environment: variables that every rank gets.
        allreduce: GB/s per rank that an all-reduce between two nodes should reach, by ``gloo``, ``mpi``, ``nccl``.
        defaults: options of `toolkit run`, by their names, which the site sets.
        slurm: further options of sbatch, by their long names, which the site sets; true for one without a value.
        gpu_types: type of GPU -> what Slurm calls it in ``--gres=gpu:TYPE:N``; empty: Slurm has no types here, the partition decides.
        notes: what else people should know, each with its source.
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
    submit_directory: str | None = None
    purge_days: int | None = None
    private_directories: tuple[str, ...] = ("/tmp", "/var/tmp", "/dev/shm")
    ports: tuple[int, int] = PORTS
    cpus_per_task: int = 1
    max_minutes: int | None = None
    interactive_minutes: int | None = None
    partitions: dict[str, SitePartition] = {}
    comment: CommentRule | None = None
    required: dict[str, OptionRule] = {}
    forbidden: dict[str, OptionRule] = {}
    environment: dict[str, str] = {}
    allreduce: dict[str, float] = {}
    defaults: dict[str, str | int | bool] = {}
    slurm: dict[str, str | int | bool] = {}
    gpu_types: dict[str, str] = {}
    notes: tuple[Note, ...] = ()


class Access(Model, frozen=True, kw_only=True):
    """How Slurm's commands are reached: ``prefix`` is put before each of them."""

    prefix: tuple[str, ...] = ()
    private_directories: tuple[str, ...] | None = (
        None  # known better than by the site, e.g. which parts of /tmp are shared
    )
    shared_directories: tuple[str, ...] = ()  # below a private directory, and shared all the same
    like: str = ""  # the site that a local cluster imitates


class Partition(Model, frozen=True, kw_only=True):
    """A partition as Slurm describes it. Memory in MB, time in minutes; None means unlimited.

    ``cpus``, ``memory`` and ``gpus`` are of the largest node, and so are the GPUs of each type;
    ``nodes`` counts those that are not switched off or down.
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


class Use(Model, frozen=True, kw_only=True):
    """What a user has in a partition now: jobs queued or running, those of them that run, and their GPUs."""

    submitted: int = 0
    running: int = 0
    gpus: int = 0


class Limits(Model, frozen=True, kw_only=True):
    """What one user may have in a partition at a time; None: no limit that is known. ``source``: who says so."""

    jobs_submitted: int | None = None
    jobs_running: int | None = None
    gpus: int | None = None
    source: str = ""


class Facts(Model, frozen=True, kw_only=True):
    """What a cluster answered: the half of a site that nobody writes down.

    Attributes:
        slurm: its version.
        sbatch_options: option -> what it takes, of ``sbatch --help``; empty where nobody asked.
        mpi: types that ``srun --mpi`` knows; None: nobody asked.
        container: the command that starts a container.
        mpirun: how the mpirun on PATH introduces itself: ``mpirun (Open MPI) 4.1.4``; None: there is none, or nobody asked.
        mine: partition -> what the user has there; empty where nobody asked.
        limits: partition -> what Slurm lets the user have there; empty where there is no accounting, or nobody asked.
    """

    slurm: str = ""
    sbatch_options: dict[str, Takes] = {}
    partitions: tuple[Partition, ...] = ()
    mpi: tuple[str, ...] | None = None
    container: str | None = None
    mpirun: str | None = None
    mine: dict[str, Use] = {}
    limits: dict[str, Limits] = {}

    @property
    def default_partition(self) -> Partition | None:
        return next((partition for partition in self.partitions if partition.default), None)
