"""The stage of a rehearsal: its directory, a local cluster that other users may use, its site file.

A rehearsal holds the lock of its directory. The lock ends with the process, so a directory whose
lock is free belongs to no rehearsal that still runs, and all that it has left can be removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from toolkit import shell, sites
from toolkit.errors import NeedsInstallError
from toolkit.files import lock_new_directory
from toolkit.localcluster import access, packages
from toolkit.localcluster.imitation import adapt_site, imitate
from toolkit.localcluster.lifecycle import down, up
from toolkit.localcluster.options import from_options
from toolkit.localcluster.paths import Paths, paths_of
from toolkit.localcluster.shape import Shape, summary
from toolkit.shell import Progress
from toolkit.workshops.join import to_toml
from toolkit.workshops.model import Workshop
from toolkit.workshops.rehearsal import accounts

NAME = "rehearsal"
_LOCAL = ("", "auto", "local", "generic")  # sites of which nothing is imitated


class Stage(NamedTuple):
    """A cluster that is up.

    Attributes:
        paths: its files.
        pid: its first process.
        site: the site that participants name.
        about: the cluster as text.
    """

    paths: Paths
    pid: int
    site: str
    about: str

    def words(self, directory: Path) -> tuple[str, ...]:
        """Return the words before a command that bring it to the login side of the cluster."""
        return access.prefix(self.paths, self.pid, str(directory))


@contextlib.contextmanager
def stage(workshop: Workshop, nodes: int, place: Path, progress: Progress) -> Iterator[Stage]:
    """Bring up a cluster like the workshop's site; take it down in any case afterwards.

    Args:
        workshop: with the site that is imitated.
        nodes: of each partition.
        place: a directory of root that all users can enter.
        progress: shows the steps.

    Raises:
        NeedsInstallError: a program is missing.
    """
    for program in ("useradd", "setpriv", "nsenter"):
        if shell.which(program) is None:
            raise NeedsInstallError(f"{program} is not installed here", next_step="toolkit setup")
    with _clusters_in(place):
        try:
            name = "local" if (workshop.site or "") in _LOCAL else str(workshop.site)
            shape = _shape(workshop, name, nodes)
            up(NAME, shape, progress)
            paths = paths_of(NAME)
            # Other users reach the configuration and the sockets, and nothing else.
            for private in (paths.logs, paths.directory / "state", paths.directory / "munge"):
                private.chmod(0o700)
            paths.directory.chmod(0o711)
            _write_site(name, place / "etc")
            about = summary(shape) + (f", like {name}" if name != "local" else "")
            yield Stage(paths, access.must_run(paths).pid, name, about)
        finally:
            down(NAME, progress)


@contextlib.contextmanager
def _clusters_in(place: Path) -> Iterator[None]:
    """Let the clusters of this process be in the directory of a rehearsal."""
    before = dict(os.environ)
    os.environ["TOOLKIT_CLUSTER_DIR"] = str(place / "c")
    try:
        yield
    finally:
        os.environ.pop("TOOLKIT_CLUSTER_DIR")
        os.environ.update(before)


def _shape(workshop: Workshop, name: str, nodes: int) -> Shape:
    chosen = (workshop.partition,) if workshop.partition else ()
    if name == "local":
        return from_options(
            nodes=nodes,
            cpus=8,
            memory="16G",
            gpus=str(workshop.most_gpus),
            gpu_type=None,
            partitions=chosen,
            accounting=False,
        )
    shape = imitate(sites.load(name), most=nodes, chosen=chosen).shape
    return shape if packages.has_submit_plugin() else msgspec.structs.replace(shape, job_submit="")


def _write_site(name: str, etc: Path) -> None:
    """Write the site as participants see it: this machine's directories, Slurm on PATH."""
    local = sites.load("local")
    site = local if name == "local" else adapt_site(sites.load(name), local, os.path.expandvars)
    site = msgspec.structs.replace(site, access="path", extends=None)
    table = msgspec.to_builtins(site)
    (etc / "sites").mkdir(parents=True, mode=0o755)
    (etc / "sites" / f"{name}.toml").write_text(to_toml(table), encoding="utf-8")


_PREFIX = "toolkit-rehearsal-"
_HOST = ".host"  # the numbers of processes mean nothing on another login node
HOME = "home"  # the participants' homes


@contextlib.contextmanager
def temporary_place(parent: Path) -> Iterator[Path]:
    """Create a directory that all users can enter; remove it in any case afterwards.

    Its name has the number of this process, as those of the users do.
    """
    lock = None
    while lock is None:  # another process took it for one that a killed rehearsal had left
        place = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
        lock = lock_new_directory(place)
    try:
        place.chmod(0o755)
        (place / _HOST).write_text(socket.gethostname(), encoding="utf-8")
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(lock)


def clean(parent: Path, progress: Progress) -> list[Path]:
    """Remove all that killed rehearsals of this user have left; return their directories.

    Args:
        parent: where the directories are.
        progress: shows each of them.

    Raises:
        ToolkitError: a part cannot be removed.
    """
    removed = []
    for place in sorted(parent.glob(f"{_PREFIX}*")):
        lock = _lock_of_dead(place)
        if lock is None:
            continue
        try:
            progress.begin("clean up", f"{place.name}, of a rehearsal that was killed")
            if (place / "c").is_dir():
                with _clusters_in(place):
                    down(NAME, progress)  # all processes in it end
            accounts.remove_users(place / HOME)
            shutil.rmtree(place)
            progress.end()
            removed.append(place)
        finally:
            os.close(lock)
    return removed


def _lock_of_dead(place: Path) -> int | None:
    """Lock the directory of a killed rehearsal; None if it is none, or may still run."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        lock = os.open(place, flags)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_uid == os.geteuid() and place.is_dir() and _is_of_this_host(place):
            return lock
    except OSError:
        pass  # a living one holds it
    os.close(lock)
    return None


def _is_of_this_host(place: Path) -> bool:
    try:
        return (place / _HOST).read_text(encoding="utf-8") == socket.gethostname()
    except FileNotFoundError:
        return True  # it was killed before it wrote the name
