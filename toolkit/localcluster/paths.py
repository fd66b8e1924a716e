"""Name the files of a local cluster, all in one directory that all of its nodes share."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import ClusterError, UntrustedError, UsageError
from toolkit.model.site import CLUSTER_NAME

# The longest path within is <directory>/node/<node>/spool/<node>_<job>.<step>, the socket of a
# step, and the kernel takes 108 bytes.
LONGEST = 60
LONGEST_NAME = 20
PRIVATE = ("/tmp", "/dev/shm")  # of which each node has its own
_SHORTER = "a name of at most {} characters; or "
# A directory that others cannot guess and create first; short, since it has sockets.
_ELSEWHERE = (
    "export TOOLKIT_CLUSTER_DIR=$(mktemp -d /var/tmp/XXXXXXXX), "
    "with the same value in every shell that uses the cluster"
)


@dataclass(frozen=True)
class Paths:
    """Every file of one cluster."""

    name: str
    directory: Path

    @property
    def etc(self) -> Path:
        """The folder of the configuration files."""
        return self.directory / "etc"

    @property
    def conf(self) -> Path:
        """The file slurm.conf."""
        return self.etc / "slurm.conf"

    @property
    def logs(self) -> Path:
        """The folder of the daemons' logs."""
        return self.directory / "log"

    @property
    def run(self) -> Path:
        """The folder of sockets and process ids."""
        return self.directory / "run"

    @property
    def secrets(self) -> Path:
        """The key of munge; readable by the owner only."""
        return self.directory / "munge"

    @property
    def lock(self) -> Path:
        """The file whose lock a process holds that brings the cluster up or down."""
        return self.directory / "lock"

    @property
    def marker(self) -> Path:
        """Proof that `toolkit cluster up` made this directory."""
        return self.directory / "cluster.json"

    @property
    def plan(self) -> Path:
        """The requested plan: written first, read by the supervisor."""
        return self.directory / "plan.json"

    @property
    def started(self) -> Path:
        """The running cluster: written when every node is idle."""
        return self.run / "started.json"

    @property
    def control(self) -> Path:
        """The socket on which the supervisor accepts `cut`, `join`, `kill` and `start`."""
        return self.run / "control"

    @property
    def database(self) -> Path:
        """The folder of MariaDB; for the owner only, even if the directory above is not."""
        return self.directory / "db"

    def log_of(self, subject: str) -> Path:
        """Return the log of a daemon."""
        return self.logs / f"{subject}.log"

    def daemon_logs(self) -> list[Path]:
        """Return the logs of Slurm's daemons, and their outputs of before a log was open."""
        return [path for path in self.logs.glob("slurm*") if path.suffix in (".log", ".out")]


def default_name() -> str:
    """Return the cluster that is used by default: ``$TOOLKIT_CLUSTER``, or ``local``."""
    return os.environ.get("TOOLKIT_CLUSTER") or "local"


def root() -> Path:
    """Return the directory of all clusters: ``$TOOLKIT_CLUSTER_DIR``, or one in the home."""
    return Path(os.path.realpath(_named_root()))


def _named_root() -> Path:
    named = os.environ.get("TOOLKIT_CLUSTER_DIR")
    return Path(named or "~/.local/state/toolkit/clusters").expanduser()


def is_name(name: str) -> bool:
    """Return whether a cluster can have a name."""
    return bool(re.match(CLUSTER_NAME, name))


def require_name(name: str, place: str) -> None:
    """Raise UsageError if no cluster can have a name."""
    if not is_name(name):
        raise UsageError(
            f"{name!r} cannot be the name of a cluster: "
            f"use at most {LONGEST_NAME} lower-case letters, digits, - and _",
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
    room = LONGEST - len(os.fsencode(text)) + len(os.fsencode(name))
    if len(os.fsencode(text)) > LONGEST:
        raise ClusterError(
            f"the directory of the cluster is {len(os.fsencode(text))} characters long; "
            f"sockets in it allow {LONGEST}",
            place=text,
            next_step=_SHORTER.format(room) + _ELSEWHERE if room > 0 else _ELSEWHERE,
        )
    if not re.fullmatch(r"[A-Za-z0-9_@.+/-]+", text):
        raise ClusterError(
            "the directory of the cluster has characters that slurm.conf does not allow",
            place=text,
            next_step=_ELSEWHERE,
        )
    return Paths(name, directory)


def require_own(paths: Paths) -> None:
    """Check that the cluster's directory belongs to this user and that no other can change it.

    Raises:
        UntrustedError: it belongs to another user, or others can write it.
        OSError: it does not exist.
    """
    from toolkit.trust import require_trusted

    # With the symbolic links in the path that the user gave.
    is_in_root = paths.directory.parent == root()
    try:
        require_trusted(_named_root() / paths.name if is_in_root else paths.directory)
        if paths.directory.stat().st_uid != os.geteuid():
            raise UntrustedError(f"{paths.directory} is not your own", place=str(paths.directory))
    except UntrustedError as error:
        if not (error.next_step or "").startswith("chmod"):
            error.next_step = _ELSEWHERE
        raise


def below_private(directory: str) -> bool:
    """Return whether a node does not have a directory, unless it is mounted there."""
    return any(directory.startswith(private + "/") for private in PRIVATE)
