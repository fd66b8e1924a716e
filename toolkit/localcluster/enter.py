"""Replace this process by a command within the cluster, which has its terminal and signals."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from toolkit import shell
from toolkit.config import package_directory
from toolkit.errors import ClusterError, NeedsInstallError, UsageError
from toolkit.files import read_json
from toolkit.localcluster import processes
from toolkit.localcluster.access import must_run, prefix
from toolkit.localcluster.paths import PRIVATE, Paths, below_private, paths_of
from toolkit.localcluster.shape import Plan, all_nodes


def enter(name: str, command: Sequence[str], *, node: str | None = None) -> NoReturn:
    """Become ``command`` on the login side of the cluster ``name``, or on one of its nodes.

    It runs in the current directory, or in ``/`` on a node that does not have this directory.

    Raises:
        SlurmUnreachableError: the cluster is not up.
        UsageError: it has no such node.
        ClusterError: the node is switched off, or this process is in the cluster.
    """
    paths = paths_of(name)
    started = must_run(paths)
    if node is None:
        words = (*prefix(paths, started.pid), f"TOOLKIT_CLUSTER={name}", *command)
    else:
        directory = None if _sees(str(Path.cwd()), started.shared) else "/"
        words = (
            *prefix(paths, _node(paths, node), directory),
            f"TOOLKIT_CLUSTER={name}",
            *command,
        )
    shell.echo(words)
    sys.stdout.flush()
    try:
        os.execvp(words[0], words)
    except FileNotFoundError as error:
        raise NeedsInstallError(
            f"{words[0]} is not installed here", next_step="toolkit setup"
        ) from error


def interactive() -> tuple[str, ...]:
    """Return the command of a shell that names the cluster in its prompt."""
    return ("bash", "--rcfile", str(package_directory("localcluster") / "shell.bashrc"), "-i")


def _sees(directory: str, shared: tuple[str, ...]) -> bool:
    within = any(directory == other or directory.startswith(other + "/") for other in shared)
    return within or directory in PRIVATE or not below_private(directory)


def _node(paths: Paths, node: str) -> int:
    if processes.is_within(paths):
        raise ClusterError(
            "this shell is in the cluster, from where no node can be entered",
            next_step="exit it, or: srun -w NODE --pty bash",
        )
    names = tuple(each.name for each in all_nodes(read_json(paths.plan, Plan).shape))
    if node not in names:
        raise UsageError(
            f"cluster {paths.name} has no node {node!r}", place="--node", choices=names, value=node
        )
    pid = processes.node_processes(paths).get(node)
    if pid is None:
        raise ClusterError(f"{node} is switched off", next_step=f"toolkit cluster start {node}")
    return pid
