"""How ranks are started: one module per launcher, one template of the same name in ``scripts/templates``, one line here.

A launcher is pure: it decides (``launch``), refuses (``check``), and reads its own failures out of
logs (``failures``).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from toolkit.errors import ToolkitError, UnknownLauncherError
from toolkit.model.base import Model
from toolkit.model.image import Manifest
from toolkit.model.job import Job
from toolkit.model.plan import Launch
from toolkit.model.run import Failure
from toolkit.model.site import Facts, Site
from toolkit.model.source import Source


class Entry(NamedTuple):
    """A line of the registry.

    Attributes:
        summary: what the launcher is for.
        uses_mpi: it needs to know what ``srun --mpi`` offers; asking costs a call, so others do without.
        uses_mpirun: it needs to know which mpirun the host has.
        elastic: it can start with a number of nodes that may change (``--nodes 1:4``).
        unequal: it can start as many ranks on each node as that has GPUs (``--gpus 8,4``).
        single: a rank takes all GPUs of its node, so that there is one on each node where nobody says.
        pty: its ranks can have a terminal.
        options: keys of a job that only some launchers know: ``max_restarts``, ``init``.
        programs: what it starts may be no file of the user's.
    """

    summary: str
    uses_mpi: bool = False
    uses_mpirun: bool = False
    elastic: bool = False
    unequal: bool = False
    single: bool = False
    pty: bool = True
    options: tuple[str, ...] = ()
    programs: bool = False


# The module of a launcher is toolkit.launchers.<name with _ for ->.
LAUNCHERS: dict[str, Entry] = {
    "torchrun": Entry(
        "one torchrun agent per node starts the node's ranks; for torch.distributed",
        elastic=True,
        unequal=True,
        options=("max_restarts",),
    ),
    "srun": Entry(
        "Slurm starts every rank and tells it who it is; for torch.distributed without torchrun",
        options=("init",),
    ),
    "spawn": Entry(
        "Slurm starts the script once on each node, and the script forks its ranks (mp.spawn)"
    ),
    "none": Entry(
        "the command as it is: one process, a job array, any program of the image",
        single=True,
        programs=True,
    ),
    "horovod": Entry(
        "Slurm starts every rank and PMIx tells it who it is; for Horovod over MPI", uses_mpi=True
    ),
    "horovod-gloo": Entry(
        "Slurm starts every rank, one server tells them of each other; for Horovod without MPI"
    ),
    "horovod-elastic": Entry(
        "Horovod's elastic driver, and an agent on each node; for hvd.elastic.run",
        elastic=True,
        pty=False,
        options=("max_restarts",),
    ),
    "mpirun": Entry(
        "the host's Open MPI starts every rank in its container; for Horovod and any MPI",
        uses_mpirun=True,
        pty=False,
    ),
    "shell": Entry(
        "a program at your terminal, on the first node: what toolkit shell starts",
        single=True,
        programs=True,
    ),
    "mpi": Entry(
        "Slurm starts every rank and PMIx tells it who it is; for any program of MPI", uses_mpi=True
    ),
    "ray": Entry(
        "Ray on all nodes, and the script once, on the first; for remote functions, actors, Train and Tune",
        single=True,
    ),
    "tensorflow": Entry(
        "Slurm starts a worker on each node, TF_CONFIG tells it of the others; for tf.distribute",
        single=True,
    ),
    "submitit": Entry(
        "Slurm starts a Python function that toolkit.submit carries to it, once in each task",
        single=True,
        programs=True,
    ),
}


class Request(Model, frozen=True, kw_only=True):
    """What a launcher decides from.

    Attributes:
        nodes: the most nodes; ``job.node_range`` also has the least.
        ranks_per_node: on the largest node, where nodes differ.
        job: all settings, for options that only this launcher knows.
        source: what was read of the script.
        run_directory: where files that ranks share may be made.
        program: ``script`` is a program of the image, no file of the user's.
        noun: what messages call the thing that ranks run in: ``image`` or ``environment``.
    """

    nodes: int
    ranks_per_node: int
    cpus_per_rank: int
    script: str
    arguments: tuple[str, ...]
    site: Site
    facts: Facts
    manifest: Manifest | None
    reason: str
    job: Job = Job()
    source: Source = Source()
    run_directory: str = ""
    program: bool = False
    noun: str = "image"


class Launcher(Protocol):
    """A module of this package."""

    def check(self, request: Request) -> Sequence[ToolkitError]:
        """Why this launcher cannot work with this image and site; empty if it can."""

    def launch(self, request: Request) -> Launch:
        """The decisions that its template writes out."""

    def failures(self, logs: Iterable[tuple[str, Sequence[str]]]) -> list[Failure]:
        """Return the ranks that failed, the first one first, from (host or "" for the batch shell, lines of its log)."""


def get(name: str) -> Launcher:
    """The module of a launcher.

    Raises:
        UnknownLauncherError: with the nearest name.
    """
    if name not in LAUNCHERS:
        raise UnknownLauncherError(
            f"there is no launcher {name!r}",
            place="--launcher",
            choices=LAUNCHERS,
            value=name,
            next_step=f"one of {', '.join(LAUNCHERS)}",
        )
    module: Launcher = importlib.import_module(f"toolkit.launchers.{name.replace('-', '_')}")
    return module
