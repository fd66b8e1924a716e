"""The stage of a rehearsal: its directory, a local cluster for other users, its site file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from toolkit import shell, sites
from toolkit.files import read_json, remove_left, temporary_directory
from toolkit.localcluster import access
from toolkit.localcluster.imitation import adapt_site
from toolkit.localcluster.paths import Paths, paths_in
from toolkit.localcluster.shape import Plan, summary
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
        CommandFailedError: the cluster did not start.
    """
    name = "local" if (workshop.site or "") in _LOCAL else str(workshop.site)
    gpus = ("--gpus-per-node", str(workshop.most_gpus))
    like = ("--cpus-per-node", "8", "--mem-per-node", "16G", *gpus)
    options = ["--nodes", str(nodes), *(("--like", name) if name != "local" else like)]
    options += ["--partition", workshop.partition] if workshop.partition else []
    try:
        progress.begin("cluster", f"{nodes} nodes of each partition, {name}")
        _cluster(place, "up", *options)
        progress.end()
        paths = paths_in(place / "c" / NAME)
        # Other users reach the configuration and the sockets, and nothing else.
        for private in (paths.logs, paths.directory / "state", paths.directory / "munge"):
            private.chmod(0o700)
        paths.directory.chmod(0o711)
        _write_site(name, place / "etc")
        about = summary(read_json(paths.plan, Plan).shape)
        yield Stage(paths, access.must_run(paths).pid, name, about)
    finally:
        _cluster(place, "down")


def _cluster(place: Path, verb: str, *options: str) -> None:
    """Run `toolkit cluster` for the cluster in the directory of a rehearsal."""
    words = (sys.executable, "-m", "toolkit", "--on", "", "cluster", verb, "--name", NAME)
    env = {**os.environ, "TOOLKIT_CLUSTER_DIR": str(place / "c")}
    shell.run((*words, *options), env=env)


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
        _cluster(place, "down")  # all processes in it end
    accounts.remove_users(place / HOME)
    progress.end()
