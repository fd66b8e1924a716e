"""A site: what is written of a cluster (``sites/<name>.toml``) and what the cluster itself answers (``Facts``)."""

from __future__ import annotations

from typing import Literal

from toolkit.model.base import Model


class Site(Model, frozen=True, kw_only=True):
    """What people write of a cluster.

    Attributes:
        name: of the site, equal to the file's.
        summary: one line for people.
        access: where Slurm is: ``path`` (on PATH here) or ``local-cluster`` (the one of `toolkit cluster up`).
        containers: commands that may start a container there, in order of preference.
        modules: environment modules that every job loads.
        interface: the network interface between nodes, for Gloo and the like; None leaves it to the libraries.
        images: directories that are searched for images, after the user's own.
        scratch: where caches go; ``$NAME`` is replaced from the job's environment; None: below the user's cache directory.
        private_directories: directories that each node has for itself, where no job can be run from.
        cpus_per_task: CPUs of one rank where nobody says.
        environment: variables that every rank gets.
        defaults: options of `toolkit run`, by their names, which the site sets.
    """

    name: str
    summary: str = ""
    access: Literal["path", "local-cluster"] = "path"
    containers: tuple[str, ...] = ("apptainer", "singularity")
    modules: tuple[str, ...] = ()
    interface: str | None = None
    images: tuple[str, ...] = ()
    scratch: str | None = None
    private_directories: tuple[str, ...] = ("/tmp", "/var/tmp", "/dev/shm")
    cpus_per_task: int = 1
    environment: dict[str, str] = {}
    defaults: dict[str, str | int | bool] = {}


class Access(Model, frozen=True, kw_only=True):
    """How Slurm's commands are reached: ``prefix`` is put before each of them."""

    prefix: tuple[str, ...] = ()
    private_directories: tuple[str, ...] | None = None  # known better than by the site, e.g. which parts of /tmp are shared
    shared_directories: tuple[str, ...] = ()  # below a private directory, and shared all the same


class Partition(Model, frozen=True, kw_only=True):
    """A partition as Slurm describes it. Memory in MB, time in minutes; None means unlimited.

    ``cpus``, ``memory`` and ``gpus`` are of the largest node; ``nodes`` counts those that are not switched off or down.
    """

    name: str
    default: bool = False
    nodes: int = 0
    cpus: int = 0
    memory: int = 0
    gpus: int = 0
    gpu_type: str | None = None
    max_nodes: int | None = None
    max_minutes: int | None = None
    available: bool = True


class Facts(Model, frozen=True, kw_only=True):
    """What a cluster answered: the half of a site that nobody writes down."""

    slurm: str = ""
    partitions: tuple[Partition, ...] = ()
    mpi: tuple[str, ...] | None = None
    container: str | None = None

    @property
    def default_partition(self) -> Partition | None:
        return next((partition for partition in self.partitions if partition.default), None)
