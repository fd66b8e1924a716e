"""Name the files of a local cluster, all in one directory that all of its nodes share."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from toolkit.errors import ClusterError, UntrustedError, UsageError
from toolkit.model.site import CLUSTER_NAME

# The longest path within is <directory>/node/<node>/spool/<node>_<job>.<step>, the socket of a
# step, and the kernel takes 108 bytes.
LONGEST = 60
PRIVATE = ("/tmp", "/dev/shm")  # of which each node has its own
# A directory that others cannot guess and create first; short, since it has sockets.
_ELSEWHERE = (
    "export TOOLKIT_CLUSTER_DIR=$(mktemp -d /var/tmp/XXXXXXXX), "
    "with the same value in every shell that uses the cluster"
)


class Paths(NamedTuple):
    """Every file of one cluster.

    Attributes:
        name: of the cluster.
        directory: that holds all others.
        etc: the folder of the configuration files.
        conf: the file slurm.conf.
        logs: the folder of the daemons' logs.
        run: the folder of sockets and process ids.
        lock: the file beside it whose lock a process holds that brings the cluster up or down.
        marker: proof that `toolkit cluster up` made this directory.
        plan: the requested plan: written first.
        started: the running cluster: written when every node is idle.
        step: the step of the start that is under way.
        control: the pipe by which the first process gets orders to switch a node.
    """

    name: str
    directory: Path
    etc: Path
    conf: Path
    logs: Path
    run: Path
    lock: Path
    marker: Path
    plan: Path
    started: Path
    step: Path
    control: Path

    def log_of(self, subject: str) -> Path:
        """Return the log of a daemon."""
        return self.logs / f"{subject}.log"


def paths_in(directory: Path) -> Paths:
    """Return the files of the cluster in a directory, which has its name."""
    return Paths(
        name=directory.name,
        directory=directory,
        etc=directory / "etc",
        conf=directory / "etc/slurm.conf",
        logs=directory / "log",
        run=directory / "run",
        lock=directory.with_name(f".{directory.name}.lock"),
        marker=directory / "cluster.json",
        plan=directory / "plan.json",
        started=directory / "run/started.json",
        step=directory / "run/step",
        control=directory / "run/control",
    )


def default_name() -> str:
    """Return the cluster that is used by default: ``$TOOLKIT_CLUSTER``, or ``local``."""
    return os.environ.get("TOOLKIT_CLUSTER") or "local"


def root() -> Path:
    """Return the directory of all clusters: ``$TOOLKIT_CLUSTER_DIR``, or one in the home."""
    return Path(os.path.realpath(_named_root()))


def _named_root() -> Path:
    named = os.environ.get("TOOLKIT_CLUSTER_DIR")
    return Path(named or "~/.local/state/toolkit/clusters").expanduser()


def require_name(name: str, place: str) -> None:
    """Raise UsageError if no cluster can have a name."""
    if not re.match(CLUSTER_NAME, name):
        raise UsageError(
            f"{name!r} cannot be the name of a cluster: "
            "use at most 20 lower-case letters, digits, - and _",
            place=place,
            next_step=f"{place} local, or leave it out",
        )


def paths_of(name: str) -> Paths:
    """Return the files of the cluster ``name``, whether it is up or not.

    Raises:
        UsageError: this cannot be the name of a cluster.
        ClusterError: its directory would be too long for sockets, or has characters that
            Slurm's files do not allow.
    """
    require_name(name, "--name")
    directory = root() / name
    text = str(directory)
    length = len(os.fsencode(text))
    if length > LONGEST:
        raise ClusterError(
            f"the directory of the cluster is {length} characters long; "
            f"sockets in it allow {LONGEST}",
            place=text,
            next_step=f"a shorter name; or {_ELSEWHERE}",
        )
    if not re.fullmatch(r"[A-Za-z0-9_@.+/-]+", text):
        raise ClusterError(
            "the directory of the cluster has characters that slurm.conf does not allow",
            place=text,
            next_step=_ELSEWHERE,
        )
    return paths_in(directory)


def require_own(paths: Paths) -> None:
    """Check that the cluster's directory belongs to this user and that no other can change it.

    Raises:
        UntrustedError: it belongs to another user, or others can write it.
        OSError: it does not exist.
    """
    from toolkit.trust import require_trusted

    # With the symbolic links in the path that the user gave.
    is_in_root = paths.directory.parent == root()
    require_trusted(_named_root() / paths.name if is_in_root else paths.directory)
    if paths.directory.stat().st_uid != os.geteuid():
        raise UntrustedError(
            f"{paths.directory} is not your own",
            place=str(paths.directory),
            next_step=_ELSEWHERE,
        )


def below_private(directory: str) -> bool:
    """Return whether a node does not have a directory, unless it is mounted there."""
    return any(directory.startswith(private + "/") for private in PRIVATE)


def is_on_nodes(directory: str, shared: Sequence[str]) -> bool:
    """Return whether nodes have a directory, of which those below ``shared`` are mounted."""
    within = any(directory == other or directory.startswith(f"{other}/") for other in shared)
    return within or not below_private(directory)
