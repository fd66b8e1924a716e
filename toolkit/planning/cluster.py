"""Choose the cluster of a job, and how its Slurm is reached."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from toolkit import shell, sites
from toolkit.errors import ClusterError, SlurmUnreachableError, ToolkitError
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


def find_cluster(name: str, *, dry_run: bool = False) -> Cluster:
    """Return the cluster of a site; ``auto`` is the local cluster if it is up, else the Slurm on PATH.

    Args:
        name: of the site.
        dry_run: a named site need not be reachable.

    Raises:
        UnknownSiteError: no site has this name.
        SlurmUnreachableError: its Slurm cannot be reached.
    """
    if name == "auto":
        try:
            return _local(
                sites.load("local"), local_access(default_name()), "the local cluster is up"
            )
        except _NOT_UP as error:
            _require_slurm(error)
        return Cluster(sites.load("generic"), Access(), "the Slurm on PATH")
    site = sites.load(name)
    try:
        return cluster_of(site)
    except SlurmUnreachableError:
        if not dry_run or site.access == "local-cluster":
            raise
        return Cluster(site, Access(), site.name, is_reachable=False)


def _require_slurm(error: ToolkitError) -> None:
    """Raise if the only Slurm is a local cluster that is not up, or if that was named."""
    named = os.environ.get("TOOLKIT_CLUSTER")
    has_slurm = _slurm_is_here()
    if named and has_slurm:
        raise SlurmUnreachableError(
            error.cause,
            place="--cluster or TOOLKIT_CLUSTER",
            next_step=f"{error.next_step}; unset TOOLKIT_CLUSTER for the Slurm on PATH",
        )
    if not has_slurm:
        step = error.next_step or ""
        more = (
            " (a real Slurm on this machine), or log in to a cluster's login node"
            if step.startswith("toolkit")
            else ""
        )
        raise SlurmUnreachableError(
            f"there is no Slurm here, and {error.cause}",
            place="--site auto",
            next_step=f"{step}{more}; toolkit run --site NAME --dry-run plans for a cluster from its file",
        ) from None


def cluster_of(site: Site) -> Cluster:
    """Return the cluster of a site that was read.

    Raises:
        SlurmUnreachableError: it is the local cluster, and that is not up; or there is no Slurm on PATH.
    """
    if site.access == "local-cluster":
        return _local(site, local_access(default_name()), site.name)
    imitated = _imitated(site)
    if imitated is None and not _slurm_is_here():
        raise SlurmUnreachableError(
            f"there is no Slurm here, and site {site.name} can only be reached from its own machines",
            place=f"--site {site.name}",
            next_step="log in to a login node of it; toolkit run --dry-run writes the script here",
        )
    return imitated or Cluster(site, Access(), site.name)


def _local(site: Site, access: Access, origin: str) -> Cluster:
    """Return the local cluster: as its file describes it, or as the site that it imitates."""
    if not access.like or site.name not in ("local", access.like):
        return Cluster(site, access, origin)
    from toolkit.localcluster.imitation import adapt_site

    alike = adapt_site(sites.load(access.like), sites.load("local"), os.path.expandvars)
    return Cluster(alike, access, f"{origin}, like {access.like}")


def _imitated(site: Site) -> Cluster | None:
    """Return the local cluster if it imitates a site and there is no other Slurm here."""
    if _slurm_is_here():
        return None
    try:
        access = local_access(default_name())
    except _NOT_UP:
        return None
    return _local(site, access, site.name) if access.like == site.name else None


def _slurm_is_here() -> bool:
    """Return whether Slurm's commands are on PATH and may know a controller."""
    return shell.which("sbatch") is not None and _has_configuration()


def _has_configuration() -> bool:
    """Return whether Slurm's commands may know a controller.

    Debian's look in /etc/slurm, a site's own build somewhere else.
    """
    own_build = shell.which("sbatch") != "/usr/bin/sbatch"
    return (
        own_build
        or "SLURM_CONF" in os.environ
        or Path("/etc/slurm/slurm.conf").exists()
        or Path("/run/slurm/conf").exists()
    )


def _node_local_directory(path: str, cluster: Cluster) -> str | None:
    """Return the directory of each node's own that a path lies in; None if all nodes see the path."""
    where = PurePosixPath(path)
    if any(where.is_relative_to(shared) for shared in cluster.access.shared_directories):
        return None
    private = cluster.access.private_directories
    return next(
        (
            name
            for name in (cluster.site.private_directories if private is None else private)
            if where.is_relative_to(name)
        ),
        None,
    )


def node_local_paths(
    cluster: Cluster, paths: Mapping[str, Iterable[str]]
) -> dict[str, tuple[str, str]]:
    """Return the first path of each option that lies in a directory of each node's own.

    Args:
        cluster: that the job goes to.
        paths: option -> the paths that it names.

    Returns:
        option -> the path, and the directory that each node has for itself.
    """
    owners = {
        option: next(
            ((path, owner) for path in named if (owner := _node_local_directory(path, cluster))),
            None,
        )
        for option, named in paths.items()
    }
    return {option: owner for option, owner in owners.items() if owner}
