"""Take a cluster down, whatever state it is in: no process, mount, interface or file stays."""

from __future__ import annotations

from toolkit.errors import ClusterError
from toolkit.localcluster import processes
from toolkit.localcluster.directory import is_ours, locked, refuse_foreign, remove_files
from toolkit.localcluster.paths import paths_of
from toolkit.progress import Progress


def down(name: str, progress: Progress, *, keep_logs: bool = False) -> bool:
    """Take the cluster ``name`` down.

    Returns:
        Whether there was a process or a file of it.

    Raises:
        BusyError: another process is bringing it up or down.
        ClusterError: a part of it cannot be removed, or no cluster made its directory.
    """
    paths = paths_of(name)
    refuse_foreign(paths)
    if processes.is_within(paths):
        raise ClusterError(
            "this shell is in the cluster", next_step="exit it, then: toolkit cluster down"
        )
    if not is_ours(paths) and not processes.supervisors(paths):
        return False
    with locked(paths):
        progress.begin("down", f"cluster {name}")
        ended = processes.stop(paths)
        removed = remove_files(paths, keep_logs=keep_logs)
        progress.end()
    return ended or removed
