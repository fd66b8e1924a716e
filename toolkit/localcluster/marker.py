"""The marker of a cluster's directory: proof that `toolkit cluster up` made it, so that it may be emptied."""

from __future__ import annotations

import os
import secrets

from toolkit.errors import ClusterError, ConfigError
from toolkit.files import read_json, write_atomically
from toolkit.localcluster.paths import Paths
from toolkit.model.base import Model, to_json


class Marker(Model, frozen=True, kw_only=True):
    """The identity of a cluster's directory.

    Attributes:
        name: of the cluster.
        directory: absolute path of the directory; a copy elsewhere does not pass for it.
        identity: random, 32 hexadecimal digits.
    """

    name: str
    directory: str
    identity: str


def is_ours(paths: Paths) -> bool:
    """Return whether `toolkit cluster up` made this directory, for this cluster and this user."""
    if paths.directory.is_symlink() or paths.marker.is_symlink():
        return False
    try:
        marker = read_json(paths.marker, Marker)
        owner = paths.marker.stat().st_uid
    except (ConfigError, OSError):
        return False
    return (marker.name, marker.directory, owner) == (
        paths.name,
        str(paths.directory),
        os.geteuid(),
    )


def is_foreign(paths: Paths) -> bool:
    """Return whether something lies in the directory's place that no cluster made."""
    if paths.directory.is_symlink():
        return True
    try:
        return any(paths.directory.iterdir()) and not is_ours(paths)
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return True


def claim(paths: Paths) -> None:
    """Make the cluster's directory with its marker in it, in one step; keep one that is ours.

    The directory is prepared beside its place and renamed onto it: the kernel refuses that if
    anything but an empty directory is there.

    Raises:
        ClusterError: something else is in its place; it is not touched.
    """
    if is_ours(paths):
        return
    refuse_foreign(paths)
    paths.directory.parent.mkdir(parents=True, exist_ok=True)
    prepared = paths.directory.with_name(f".{paths.name}.{secrets.token_hex(8)}")
    prepared.mkdir(mode=0o700)  # sockets, keys and the database will be below
    marker = Marker(name=paths.name, directory=str(paths.directory), identity=secrets.token_hex(16))
    try:
        write_atomically(prepared / paths.marker.name, to_json(marker))
        prepared.rename(paths.directory)
    except OSError:
        (prepared / paths.marker.name).unlink(missing_ok=True)
        prepared.rmdir()
        if not is_ours(paths):  # else another `up` was faster
            refuse_foreign(paths)
            raise


def refuse_foreign(paths: Paths) -> None:
    """Raise if the directory was not made by a cluster.

    Raises:
        ClusterError: it was not; nothing in it was touched.
    """
    if is_foreign(paths):
        raise ClusterError(
            f"no cluster made {paths.directory}; nothing in it was touched",
            place="TOOLKIT_CLUSTER_DIR" if os.environ.get("TOOLKIT_CLUSTER_DIR") else None,
            next_step="choose another name (--name), or set TOOLKIT_CLUSTER_DIR to a directory that holds only clusters",
        )


def release(paths: Paths) -> bool:
    """Remove a directory in which only the marker and the lock are left; return whether it is gone.

    The caller holds the lock. The directory is renamed before it is emptied, so that nobody ever
    meets one without its marker.
    """
    own = {paths.marker.name, paths.lock.name}
    if not is_ours(paths) or not own.issuperset(entry.name for entry in paths.directory.iterdir()):
        return False
    aside = paths.directory.with_name(f".{paths.name}.{secrets.token_hex(8)}")
    paths.directory.rename(aside)
    for name in own:
        (aside / name).unlink(missing_ok=True)
    aside.rmdir()
    return True
