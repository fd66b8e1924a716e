"""What a live cluster tells of itself, for writing its site's file and for comparing one with it."""

from __future__ import annotations

from toolkit.model.base import Model
from toolkit.model.overview import Live, Queue
from toolkit.model.site import Limits


class Met(Model, frozen=True, kw_only=True):
    """What a short job saw on a node of a partition.

    Attributes:
        host: that it ran on.
        gpus: what nvidia-smi calls them, one for each.
        driver: NVIDIA's; empty: there is none.
        interfaces: of the network, but for the loopback.
        problem: why nothing was seen; empty: it was.
    """

    host: str = ""
    gpus: tuple[str, ...] = ()
    driver: str = ""
    interfaces: tuple[str, ...] = ()
    problem: str = ""


class Survey(Model, frozen=True, kw_only=True):
    """All that was found out.

    Attributes:
        slurm: its version.
        cluster: its name, in Slurm's configuration.
        local: it is the one of `toolkit cluster up`.
        plugins: of job_submit: rules that no command tells.
        containers: commands that are on PATH.
        modules: that ``module avail`` lists; None: there is no such command.
        scratch: directory for large files, as the environment or custom names it; empty: none was found.
        limits: by partition, what one user may have.
        met: by partition, what a job saw there; empty where nobody allowed one.
    """

    slurm: str = ""
    cluster: str = ""
    local: bool = False
    plugins: str = ""
    queues: tuple[Queue, ...] = ()
    nodes: tuple[Live, ...] = ()
    mpi: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    modules: tuple[str, ...] | None = None
    scratch: str = ""
    limits: dict[str, Limits] = {}
    met: dict[str, Met] = {}

    def members(self, queue: Queue) -> tuple[Live, ...]:
        """The nodes of a partition."""
        return tuple(node for node in self.nodes if queue.name in node.partitions)
