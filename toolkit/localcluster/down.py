"""Take a cluster down: no process, mount, interface or file stays, whatever state it was in."""

from __future__ import annotations

import shutil
from pathlib import Path

from toolkit.errors import ClusterError
from toolkit.localcluster import processes
from toolkit.localcluster.lock import held
from toolkit.localcluster.marker import is_ours, refuse_foreign
from toolkit.localcluster.paths import Paths, paths_of
from toolkit.progress import Progress


def down(name: str, progress: Progress, *, keep_logs: bool = False) -> bool:
    """Take the cluster ``name`` down.

    Returns:
        whether there was anything of it: a process, or a file.

    Raises:
        BusyError: somebody else is bringing it up or down.
        ClusterError: something of it cannot be removed, or no cluster made its directory.
    """
    paths = paths_of(name)
    refuse_foreign(paths)
    if processes.inside(paths):
        raise ClusterError(
            "this shell is in the cluster", next_step="leave it, then: toolkit cluster down"
        )
    if not is_ours(paths) and not processes.supervisors(paths):
        return False
    with held(paths):
        progress.begin("down", f"cluster {name}")
        ended = processes.stop(paths)
        removed = remove_files(paths, keep_logs=keep_logs)
        progress.end()
    return ended or removed


def remove_files(paths: Paths, *, keep_logs: bool = False) -> bool:
    """Remove all files of the cluster but its marker and lock, which go last; return whether there were any.

    Raises:
        ClusterError: a file cannot be removed.
    """
    kept = {paths.lock.name, paths.marker.name} | ({paths.logs.name} if keep_logs else set())
    found = [entry for entry in paths.directory.iterdir() if entry.name not in kept]
    for entry in found:
        try:
            _remove(entry)
        except OSError as error:
            raise ClusterError(
                f"a file of cluster {paths.name} cannot be removed: {error.strerror}",
                place=str(error.filename),
                next_step="see whose it is, remove it, and: toolkit cluster down",
            ) from error
    return bool(found)


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()
