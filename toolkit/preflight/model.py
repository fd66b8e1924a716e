"""The job that preflight rules examine, and the facts of this host that they need. Pure."""

from __future__ import annotations

from typing import NamedTuple

from toolkit.model.image import Manifest
from toolkit.model.job import Job
from toolkit.model.site import Facts, Limits, Partition, Site, SitePartition
from toolkit.model.source import Imports


class MissingPath(NamedTuple):
    """A directory or file of the host that does not exist.

    Attributes:
        path: of it.
        near: the paths beside it.
        package: Debian's package that brings it; None if there is none.
    """

    path: str
    near: tuple[str, ...] = ()
    package: str | None = None


class UnreadFile(NamedTuple):
    """A file under the site's purge policy.

    Attributes:
        option: that named it.
        path: of it.
        days: since it was last read or written.
    """

    option: str
    path: str
    days: float


class HostFacts(NamedTuple):
    """Facts of the machine that a job is submitted from; empty or None if not known.

    Attributes:
        directory: the current working directory.
        writable: whether run directories can be made there.
        submit_from: the one directory that the site takes jobs from, if this is another.
        hidden: option -> a path of it that the nodes do not see, and the directory of each node's
            own that it is in.
        binds: sources of ``--bind`` that do not exist.
        datasets: name -> directory that should have it according to the site, and has not.
        unreadable: the script, if its owner does not let us read it.
        image: path of the image.
        architecture: of the image, as ``uname -m`` prints it; ``machine``: of this machine.
        foreign_manifest: whether the manifest beside the image is of another file.
        lock: SHA-256 of the recipe's lock as it is today.
        unread: files that the site may delete soon.
        free: bytes that can be written where run directories are made; ``quota``: of these, what
            the user's quota leaves.
        home: the user's home; ``home_quota``: bytes that the quota leaves there.
        caches: variables that say where programs put their caches.
        imports: what the script imports, beyond its own modules.
    """

    directory: str = ""
    writable: bool = True
    submit_from: str = ""
    hidden: dict[str, tuple[str, str]] = {}
    binds: tuple[MissingPath, ...] = ()
    datasets: dict[str, str] = {}
    unreadable: str = ""
    image: str = ""
    architecture: str = ""
    machine: str = ""
    foreign_manifest: bool = False
    lock: str = ""
    unread: tuple[UnreadFile, ...] = ()
    free: int | None = None
    quota: int | None = None
    home: str = ""
    home_quota: int | None = None
    caches: dict[str, str] = {}
    imports: Imports = Imports()


class PreflightCase(NamedTuple):
    """A job that may be submitted, with the facts of the cluster and of this host.

    Attributes:
        job: the merged settings.
        site, facts: the cluster, as written and as it answered.
        partition: of the job, as Slurm describes it; None if not known.
        manifest: of the image.
        host: facts of this machine.
        minutes: the requested time; None if unset, or not a time.
        memory: the requested memory on each node, in MB; None if unset, or not a size.
    """

    job: Job
    site: Site
    facts: Facts = Facts()
    partition: Partition | None = None
    manifest: Manifest | None = None
    host: HostFacts = HostFacts()
    minutes: int | None = None
    memory: int | None = None

    @property
    def partition_name(self) -> str:
        """The name of the partition; empty if it is not known."""
        return self.job.partition or (self.partition.name if self.partition else "")

    @property
    def written(self) -> SitePartition | None:
        """The partition as the site's documents describe it."""
        return self.site.partitions.get(self.partition_name)

    @property
    def limits(self) -> Limits:
        """The limits of one user: Slurm's own, or else those in the site's file."""
        live, written = self.facts.limits.get(self.partition_name), self.written
        if live is not None:
            return live
        if written is None:
            return Limits()
        return Limits(
            jobs_submitted=written.jobs_submitted,
            jobs_running=written.jobs_running,
            gpus=written.gpus_per_user,
            source=self.source,
        )

    @property
    def source(self) -> str:
        """The site's file, as messages cite it."""
        return source_of(self.site)


def source_of(site: Site) -> str:
    """Return how messages cite a site's file: ``site neuron, 2026-08``."""
    return f"site {site.name}{f', {site.date}' if site.date else ''}"
