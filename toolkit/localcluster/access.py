"""Reach the local cluster. Every `toolkit run` imports this module, so it imports nothing heavy."""

from __future__ import annotations

import os
from pathlib import Path

from toolkit.errors import ConfigError, SlurmUnreachableError
from toolkit.files import read_json
from toolkit.localcluster.paths import (
    PRIVATE,
    Paths,
    below_private,
    default_name,
    paths_of,
    require_own,
)
from toolkit.model.base import Model
from toolkit.model.site import Access, Site

__all__ = ["Started", "access", "default_name", "local_name", "prefix"]


class Started(Model, frozen=True, kw_only=True):
    """A cluster that came up.

    Attributes:
        pid: the first process of the cluster, by its number outside of it.
        shared: directories that all nodes share although the directory above is private.
        like: the site that it imitates; empty if none.
        real_gpus: its nodes have this machine's GPUs; else they are simulated, if there are any.
    """

    pid: int
    shared: tuple[str, ...] = ()
    like: str = ""
    real_gpus: bool = False


def local_name(site: Site) -> str | None:
    """Return the name of the local cluster if a site is one; else None."""
    return default_name() if site.access == "local-cluster" else None


def access(name: str = "local", cwd: str | None = None) -> Access:
    """Return how to call Slurm's commands of a cluster, in ``cwd`` or the current directory.

    Raises:
        SlurmUnreachableError: that cluster is not up.
    """
    paths = paths_of(name)
    started = must_run(paths)
    return Access(
        prefix=prefix(paths, started.pid, cwd),
        private_directories=PRIVATE,
        shared_directories=tuple(
            directory for directory in started.shared if below_private(directory)
        ),
        like=started.like,
    )


def running(paths: Paths) -> Started | None:
    """Return the cluster if it is up: every node was idle once, and its first process lives.

    Raises:
        UntrustedError: its directory belongs to another user, or others can write it.
    """
    try:
        require_own(paths)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    try:
        started = read_json(paths.started, Started)
    except ConfigError:
        return None
    from toolkit.localcluster import processes  # only for a cluster that was started

    return started if processes.is_init(started.pid, paths) or processes.is_within(paths) else None


def must_run(paths: Paths) -> Started:
    """Return the cluster that is up.

    Raises:
        SlurmUnreachableError: it is not up.
    """
    started = running(paths)
    if started is not None:
        return started
    cluster = "the local cluster" if paths.name == "local" else f"the local cluster {paths.name!r}"
    named = "" if paths.name == default_name() else f" --name {paths.name}"
    raise SlurmUnreachableError(f"{cluster} is not up", next_step=f"toolkit cluster up{named}")


def path() -> str:
    """Return the PATH of this process with the directories of administrators at its end."""
    return os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"


def prefix(paths: Paths, pid: int, cwd: str | None = None) -> tuple[str, ...]:
    """Return the prefix of a command that runs it in the namespaces of a process of the cluster."""
    settings = ("env", "-C", cwd or str(Path.cwd()), f"SLURM_CONF={paths.conf}", f"PATH={path()}")
    from toolkit.localcluster import processes

    if processes.is_within(paths):
        return settings
    as_user = () if os.geteuid() == 0 else ("-U", "--preserve-credentials")
    return (
        *("nsenter", *as_user, "-t", str(pid), "-m", "-u", "-i", "-n", "-p", "--"),
        # nsenter forwards no signals: the command gets one when nsenter ends.
        *("setpriv", "--pdeathsig", "TERM", "--"),
        *settings,
    )
