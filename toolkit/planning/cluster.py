"""Find the cluster that jobs are planned for: a local one, the Slurm on PATH, or a site's file."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from toolkit import shell, sites
from toolkit.errors import ClusterError, SlurmUnreachableError
from toolkit.localcluster.access import access as local_access
from toolkit.localcluster.access import default_name
from toolkit.model.site import Access, Site

# A home whose path is too long for a local cluster, or has a blank in it, has none that is up.
_NOT_UP = (SlurmUnreachableError, ClusterError)


class Cluster(NamedTuple):
    """A cluster that jobs are planned for.

    Attributes:
        site: the cluster as its file describes it.
        access: how Slurm's commands are called.
        origin: why it is this cluster.
        is_reachable: its Slurm can be called from this machine.
    """

    site: Site
    access: Access
    origin: str
    is_reachable: bool = True


def find_cluster(name: str | None, *, dry_run: bool = False) -> Cluster:
    """Return the cluster of a site.

    Args:
        name: of the site; ``auto``, or None, is the local cluster if it is up, else the Slurm on
            PATH.
        dry_run: a named site need not be reachable.

    Raises:
        UnknownSiteError: no site has this name.
        SlurmUnreachableError: its Slurm cannot be reached.
    """
    if name is None or name == "auto":
        try:
            return _local(
                sites.load("local"), local_access(default_name()), "the local cluster is up"
            )
        except _NOT_UP as error:
            if _has_slurm() and not os.environ.get("TOOLKIT_CLUSTER"):
                return Cluster(sites.load("generic"), Access(), "the Slurm on PATH")
            step = error.next_step or ""
            if _has_slurm():  # but another one was named
                raise SlurmUnreachableError(
                    error.cause,
                    place="--cluster or TOOLKIT_CLUSTER",
                    next_step=f"{step}; unset TOOLKIT_CLUSTER for the Slurm on PATH",
                ) from None
            if step.startswith("toolkit"):
                step += " (a real Slurm on this machine), or log in to a cluster's login node"
            raise SlurmUnreachableError(
                f"this machine has no Slurm, and {error.cause}",
                place="--site auto",
                next_step=f"{step}; toolkit run --site NAME --dry-run plans from a cluster's file",
            ) from None
    site = sites.load(name)
    try:
        return cluster_of(site)
    except SlurmUnreachableError:
        if not dry_run or site.access == "local-cluster":
            raise
        return Cluster(site, Access(), site.name, is_reachable=False)


def cluster_of(site: Site) -> Cluster:
    """Return the cluster of a site that was read.

    Raises:
        SlurmUnreachableError: the local cluster is not up, or no Slurm is on PATH.
    """
    if site.access == "local-cluster":
        return _local(site, local_access(default_name()), site.name)
    if _has_slurm():
        return Cluster(site, Access(), site.name)
    with suppress(*_NOT_UP):
        access = local_access(default_name())
        if access.like == site.name:
            return _local(site, access, site.name)
    raise SlurmUnreachableError(
        f"this machine has no Slurm, and site {site.name} can only be reached from its own "
        "machines",
        place=f"--site {site.name}",
        next_step="log in to its login node; or write the script on this machine: "
        "toolkit run --dry-run",
    )


def _local(site: Site, access: Access, origin: str) -> Cluster:
    """Return the local cluster: as its file describes it, or as the site that it imitates."""
    if not access.like or site.name not in ("local", access.like):
        return Cluster(site, access, origin)
    from toolkit.localcluster.imitation import adapt_site

    site = adapt_site(sites.load(access.like), sites.load("local"), os.path.expandvars)
    return Cluster(site, access, f"{origin}, like {access.like}")


def _has_slurm() -> bool:
    """Return whether Slurm's commands are on PATH and may have a configuration.

    Debian's commands read /etc/slurm; those of a site's own build read another directory.
    """
    sbatch = shell.which("sbatch")
    return sbatch is not None and (
        sbatch != "/usr/bin/sbatch"
        or "SLURM_CONF" in os.environ
        or Path("/etc/slurm/slurm.conf").exists()
        or Path("/run/slurm/conf").exists()
    )
