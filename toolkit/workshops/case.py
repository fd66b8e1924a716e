"""The case that the checks of a joined workshop examine."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.model.job import Job
from toolkit.model.site import Partition
from toolkit.planning.cluster import Cluster, find_cluster
from toolkit.planning.settings import Layer, chosen, merge, project_layers
from toolkit.slurm.client import Client
from toolkit.workshops.join import Membership


class JoinCase:
    """A joined workshop and its cluster, which is reached when a check first needs it."""

    def __init__(self, member: Membership) -> None:
        self.directory, self.joined, self.contents = (
            member.directory,
            member.joined,
            member.contents,
        )
        self.source = Path(member.joined.source)

    @cached_property
    def job(self) -> Job:
        """The options of the participant's ``toolkit.toml``."""
        return merge(project_layers(self.directory)).job

    @cached_property
    def cluster(self) -> Cluster | ToolkitError:
        """The cluster, or why it cannot be reached."""
        try:
            cluster = find_cluster(chosen(self.directory).site)
            Client(cluster.access).version()
        except ToolkitError as error:
            return error
        return cluster

    @property
    def client(self) -> Client | None:
        """The client of its Slurm; None if that does not answer."""
        return None if isinstance(self.cluster, ToolkitError) else Client(self.cluster.access)

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        """The partitions that this user may see."""
        return self.client.partitions() if self.client else ()

    def script(self, exercise: str) -> str:
        """Return the script that `toolkit run` would submit for an exercise.

        Raises:
            PlanError: the job could not run.
        """
        from toolkit import scripts
        from toolkit.planning.case import gather
        from toolkit.planning.plan import decide

        case = gather(exercise, Layer("flag", {}), self.directory)
        return scripts.script(decide(case))
