"""Where a local cluster keeps its files: one directory per cluster, named by the user, seen by all of its nodes."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import ClusterError, UntrustedError, UsageError

# The longest path within is <directory>/node/<node>/spool/<node>_<job>.<step>, the socket of a
# step, and the kernel takes 108 bytes.
LONGEST = 60
LONGEST_NAME = 20
PRIVATE = ("/tmp", "/dev/shm")  # what each node has for itself
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*\Z")
# A name that others cannot guess and make first; short, since sockets lie in it.
_SHORTER = "a name of at most {} characters; or "
_ELSEWHERE = "export TOOLKIT_CLUSTER_DIR=$(mktemp -d /var/tmp/XXXXXXXX), with the same value in every shell that uses the cluster"


@dataclass(frozen=True)
class Paths:
    """Every file of one cluster."""

    name: str
    directory: Path

    @property
    def etc(self) -> Path:
        return self.directory / "etc"

    @property
    def conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def logs(self) -> Path:
        return self.directory / "log"

    @property
    def run(self) -> Path:
        return self.directory / "run"

    @property
    def secrets(self) -> Path:
        """The key of munge; readable by the owner only."""
        return self.directory / "munge"

    @property
    def lock(self) -> Path:
        """Held by whoever brings the cluster up or down."""
        return self.directory / "lock"

    @property
    def marker(self) -> Path:
        """Proof that `toolkit cluster up` made this directory."""
        return self.directory / "cluster.json"

    @property
    def plan(self) -> Path:
        """What was asked for: written first, read by the supervisor."""
        return self.directory / "plan.json"

    @property
    def started(self) -> Path:
        """What came of it: written when every node is idle."""
        return self.run / "started.json"

    @property
    def control(self) -> Path:
        """The socket on which the supervisor takes `cut`, `join`, `kill` and `start`."""
        return self.run / "control"

    @property
    def database(self) -> Path:
        """Files and socket of MariaDB; for the owner only, even if the directory above is opened."""
        return self.directory / "db"

    def log_of(self, subject: str) -> Path:
        return self.logs / f"{subject}.log"


def default_name() -> str:
    """The cluster that is meant where none is named: ``$TOOLKIT_CLUSTER``, or ``local``."""
    return os.environ.get("TOOLKIT_CLUSTER") or "local"


def root() -> Path:
    """The directory of all clusters: ``$TOOLKIT_CLUSTER_DIR``, or one below the home directory."""
    return Path(os.path.realpath(_named_root()))


def _named_root() -> Path:
    named = os.environ.get("TOOLKIT_CLUSTER_DIR")
    return Path(named or "~/.local/state/toolkit/clusters").expanduser()


def is_name(name: str) -> bool:
    """Return whether a cluster can have a name."""
    return bool(_NAME.match(name)) and len(name) <= LONGEST_NAME


def require_name(name: str, place: str) -> None:
    """Raise UsageError if no cluster can have a name."""
    if not is_name(name):
        raise UsageError(
            f"{name!r} cannot be the name of a cluster: lower-case letters, digits, - and _, at most {LONGEST_NAME} of them",
            place=place,
        )


def paths_of(name: str) -> Paths:
    """The files of the cluster ``name``, whether it is up or not.

    Raises:
        UsageError: this cannot be the name of a cluster.
        ClusterError: its directory would be too long for sockets, or has characters that Slurm's files cannot carry.
    """
    require_name(name, "--name")
    directory = root() / name
    text = str(directory)
    room = LONGEST - len(os.fsencode(text)) + len(os.fsencode(name))
    if len(os.fsencode(text)) > LONGEST:
        raise ClusterError(
            f"the directory of the cluster is {len(os.fsencode(text))} characters long; sockets in it allow {LONGEST}",
            place=text,
            next_step=_SHORTER.format(room) + _ELSEWHERE if room > 0 else _ELSEWHERE,
        )
    if not re.fullmatch(r"[A-Za-z0-9_@.+/-]+", text):
        raise ClusterError(
            "the directory of the cluster has characters that slurm.conf cannot carry",
            place=text,
            next_step=_ELSEWHERE,
        )
    return Paths(name, directory)


def require_own(paths: Paths) -> None:
    """Check that the cluster's directory is this user's and that nobody else can change it.

    Raises:
        UntrustedError: it is another user's, or others can write there.
        OSError: it is not there.
    """
    from toolkit import trusted_files

    try:
        if paths.directory.parent == root():
            trusted_files.require_trusted(
                _named_root()
            )  # with the symbolic links that the user named
        trusted_files.require_own(paths.directory)
    except UntrustedError as error:
        if not (error.next_step or "").startswith("chmod"):
            error.next_step = _ELSEWHERE
        raise


def below_private(directory: str) -> bool:
    """Is this a directory that a node would not see, unless it is bound back?"""
    return any(directory.startswith(private + "/") for private in PRIVATE)
