"""What a rule is given, and what it gives. Pure."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from toolkit.errors import ToolkitError
from toolkit.model.image import Manifest
from toolkit.model.imports import Imports
from toolkit.model.job import Job
from toolkit.model.site import Facts, Limits, Partition, Site, SitePartition


class Missing(NamedTuple):
    """A directory or file of the host that is not there.

    Attributes:
        path: of it.
        near: what lies beside it.
        package: Debian's package that brings it; None: none does.
    """

    path: str
    near: tuple[str, ...] = ()
    package: str | None = None


class Unread(NamedTuple):
    """A file in a place from which unread files are deleted.

    Attributes:
        option: that named it.
        path: of it.
        days: since somebody read or wrote it.
    """

    option: str
    path: str
    days: float


class Seen(NamedTuple):
    """What was looked at on the machine that a job is submitted from; what is empty or None was not, or is not known.

    Attributes:
        directory: where the user stands.
        writable: whether run directories can be made there.
        submit_from: the one directory that the site takes jobs from, where this is another.
        hidden: option -> a path of it that the nodes do not see, and the directory of each node's own that it lies in.
        binds: sources of ``--bind`` that are not there.
        datasets: name -> where the site says that they are, and they are not.
        unreadable: the script, where its owner does not let us read it.
        image: of the image: its path.
        architecture: that the image is for, as ``uname -m`` says it; ``machine``: of this machine.
        foreign_manifest: a manifest lies beside the image that is of another file.
        lock: SHA-256 of the recipe's lock as it is today.
        unread: files that the site may delete soon.
        free: bytes that can be written where run directories are made; ``quota``: of it, what the user's quota leaves.
        home: the user's home; ``home_quota``: bytes that the quota leaves there.
        caches: variables that say where programs put their caches.
        imports: what the script imports, beyond its own modules.
    """

    directory: str = ""
    writable: bool = True
    submit_from: str = ""
    hidden: dict[str, tuple[str, str]] = {}
    binds: tuple[Missing, ...] = ()
    datasets: dict[str, str] = {}
    unreadable: str = ""
    image: str = ""
    architecture: str = ""
    machine: str = ""
    foreign_manifest: bool = False
    lock: str = ""
    unread: tuple[Unread, ...] = ()
    free: int | None = None
    quota: int | None = None
    home: str = ""
    home_quota: int | None = None
    caches: dict[str, str] = {}
    imports: Imports = Imports()


class Case(NamedTuple):
    """One job that may be submitted: what is asked for, and all that is known of where it goes.

    Attributes:
        job: the merged settings.
        site, facts: the cluster, as written and as it answered.
        partition: that it goes to, as Slurm describes it; None: nobody knows it.
        manifest: of the image.
        seen: what was looked at.
        minutes: the time that was asked for; None: nobody did, or it is no time.
        memory: the memory that was asked for on each node, in MB; None: unset, or no size.
    """

    job: Job
    site: Site
    facts: Facts = Facts()
    partition: Partition | None = None
    manifest: Manifest | None = None
    seen: Seen = Seen()
    minutes: int | None = None
    memory: int | None = None

    @property
    def partition_name(self) -> str:
        return self.job.partition or (self.partition.name if self.partition else "")

    @property
    def written(self) -> SitePartition | None:
        """The partition as the site's documents describe it."""
        return self.site.partitions.get(self.partition_name)

    @property
    def limits(self) -> Limits:
        """What one user may have there: Slurm's own limits go before those that are written."""
        live, one = self.facts.limits.get(self.partition_name), self.written
        if live is not None:
            return live
        if one is None:
            return Limits()
        return Limits(
            jobs_submitted=one.jobs_submitted,
            jobs_running=one.jobs_running,
            gpus=one.gpus_per_user,
            source=self.source,
        )

    @property
    def source(self) -> str:
        """Where the site's facts are from."""
        return source_of(self.site)


def source_of(site: Site) -> str:
    """Return how messages cite a site's file: ``site neuron, 2026-08``."""
    return f"site {site.name}{f', {site.date}' if site.date else ''}"


class Finding(NamedTuple):
    """Something that a rule found.

    Attributes:
        error: what is wrong, at which option, and what to do about it.
        source: where the rule that it breaks is written, or who said it.
        stops: the job would not run; else it probably will, and this is a warning.
    """

    error: ToolkitError
    source: str
    stops: bool = True


class Rule(Protocol):
    """A module of this package."""

    def look(self, case: Case) -> list[Finding]:
        """What is wrong with a job; nothing where all is well, and where nobody knows."""
