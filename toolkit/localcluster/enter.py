"""Run a command within the cluster, in place of this process: exit code, signals and terminal are the command's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from toolkit import shell
from toolkit.errors import ClusterError, NeedsInstallError, UsageError
from toolkit.localcluster import processes
from toolkit.localcluster.access import must_run, prefix
from toolkit.localcluster.control import ask
from toolkit.localcluster.paths import PRIVATE, Paths, below_private, paths_of
from toolkit.localcluster.plan import Request
from toolkit.resources import package_directory


def enter(name: str, command: Sequence[str], *, node: str | None = None) -> NoReturn:
    """Become ``command`` on the login side of the cluster ``name``, or on one of its nodes.

    It runs in the current directory; on a node that does not see this directory, in ``/``.

    Raises:
        SlurmUnreachableError: the cluster is not up.
        UsageError: it has no such node.
        ClusterError: the node is switched off, or we are in the cluster ourselves.
    """
    paths = paths_of(name)
    started = must_run(paths)
    if node is None:
        words = (*prefix(paths, started.pid), f"TOOLKIT_CLUSTER={name}", *command)
    else:
        seen = _sees(str(Path.cwd()), started.shared)
        words = (
            *prefix(paths, _node(paths, node), None if seen else "/"),
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
    """The command of a shell that says in its prompt where it is."""
    return ("bash", "--rcfile", str(package_directory("localcluster") / "shell.bashrc"), "-i")


def _sees(directory: str, shared: tuple[str, ...]) -> bool:
    within = any(directory == other or directory.startswith(other + "/") for other in shared)
    return within or directory in PRIVATE or not below_private(directory)


def _node(paths: Paths, node: str) -> int:
    if processes.inside(paths):
        raise ClusterError(
            "this shell is in the cluster, from where no node can be entered",
            next_step="leave it, or: srun -w NODE --pty bash",
        )
    power = ask(paths, Request()).nodes
    if node not in power:
        raise UsageError(
            f"cluster {paths.name} has no node {node!r}", place="--node", choices=power, value=node
        )
    pid = processes.node_process(paths, node)
    if pid is None or power[node] == "off":
        raise ClusterError(f"{node} is switched off", next_step=f"toolkit cluster start {node}")
    return pid
