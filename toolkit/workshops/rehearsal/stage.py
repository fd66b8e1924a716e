"""The stage of a rehearsal: its directory, a local cluster for other users, its site file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from toolkit import shell, sites
from toolkit.errors import NeedsInstallError
from toolkit.files import remove_left, temporary_directory
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
HOME = "home"  # the participants' homes
_PARENT, _PREFIX = Path("/var/tmp"), "toolkit-rehearsal-"  # of this machine only
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
    shape, _ = imitate(sites.load(name), most=nodes, chosen=chosen)
    return shape if packages.has_submit_plugin() else msgspec.structs.replace(shape, job_submit="")


def _write_site(name: str, etc: Path) -> None:
    """Write the site as participants see it: this machine's directories, Slurm on PATH."""
    local = sites.load("local")
    site = local if name == "local" else adapt_site(sites.load(name), local, os.path.expandvars)
    site = msgspec.structs.replace(site, access="path", extends=None)
    table = msgspec.to_builtins(site)
    (etc / "sites").mkdir(parents=True, mode=0o755)
    (etc / "sites" / f"{name}.toml").write_text(to_toml(table), encoding="utf-8")


@contextlib.contextmanager
def temporary_place(progress: Progress) -> Iterator[Path]:
    """Create a directory that all users can enter; remove it in any case afterwards."""
    with temporary_directory(_PARENT, _PREFIX, partial(_clear, progress=progress)) as place:
        place.chmod(0o755)
        yield place


def clean(progress: Progress) -> list[Path]:
    """Remove all that killed rehearsals of this user have left; return their directories.

    Raises:
        ToolkitError: a part cannot be removed.
    """
    return remove_left(_PARENT, _PREFIX, partial(_clear, progress=progress))


def _clear(place: Path, progress: Progress) -> None:
    """Remove the cluster and the users of a killed rehearsal."""
    progress.begin("clean up", f"{place.name}, of a rehearsal that was killed")
    if (place / "c").is_dir():
        with _clusters_in(place):
            down(NAME, progress)  # all processes in it end
    accounts.remove_users(place / HOME)
    progress.end()
