"""Read what rules need to know of this machine: directories, files, space, the image."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from toolkit import shell
from toolkit.config import shipped
from toolkit.errors import CommandFailedError
from toolkit.files import hash_file, open_regular
from toolkit.images.sif import SifError
from toolkit.images.sif import header as sif
from toolkit.model.case import Case, Host, MissingPath, UnreadFile
from toolkit.model.site import Access, Site
from toolkit.rules.files import VARIABLES

_DAY = 86400.0  # seconds


def read_host(case: Case, cwd: Path) -> Host:
    """Read all facts that can be known without a node.

    For a cluster that this machine does not reach, they are those that hold on any machine.

    Args:
        case: the job, with what was gathered of its image and its script.
        cwd: the current working directory.
    """
    target = case.target
    script = None if target.is_program else Path(target.folder) / Path(target.script).name
    unreadable = str(script) if script and not os.access(script, os.R_OK) else ""
    if case.cluster is None:
        return Host(unreadable=unreadable)
    from toolkit.images.host import space

    manifest = case.manifest
    image = Path(case.image.path) if case.is_sif and case.image.is_here else None
    room, home = space.read_room(cwd), Path.home()
    return Host(
        directory=str(cwd),
        writable=os.access(cwd, os.W_OK),
        submit_from=_submit_from(case.site, cwd),
        hidden=_hidden(case, cwd),
        binds=_missing_binds(case),
        datasets=_missing_datasets(case),
        unreadable=unreadable,
        image=str(image or ""),
        architecture=_architecture(image) if image else "",
        machine=platform.machine(),
        foreign_manifest=bool(image and not manifest and _manifest_beside(image).is_file()),
        lock=_lock(manifest.name, cwd) if image and manifest and manifest.locked else "",
        unread=_unread(case.site, {"--image": image, "SCRIPT": script}),
        free=room.free,
        quota=room.quota,
        home=str(home),
        home_quota=None if case.site.scratch else space.read_room(home).quota,
        caches={name: os.environ[name] for name in VARIABLES if os.environ.get(name)},
    )


def _manifest_beside(image: Path) -> Path:
    return image.with_name(f"{image.name.removesuffix('.sif')}.json")


def _hidden(case: Case, cwd: Path) -> dict[str, tuple[str, str]]:
    """Return the options that name a path which the nodes do not see; it and its directory."""
    named: dict[str, tuple[str, ...]] = {"directory": (str(cwd), case.target.folder)}
    if case.image.is_here:
        named["--image"] = (case.image.path,)
    if case.environment and case.runtime:
        option = "--env" if case.runtime.environments else "--runtime"
        named[option] = (case.environment.prefix,)
    named["imports"] = tuple(directory.path for directory in case.source.directories)
    access, hidden = case.client.access, dict[str, tuple[str, str]]()
    for option, paths in named.items():
        local = (node_local(path, case.site, access) for path in paths)
        if first := next(filter(None, local), None):
            hidden[option] = first
    return hidden


def node_local(path: str, site: Site, access: Access) -> tuple[str, str] | None:
    """Return a path and the directory with it that each node has for itself; None if all see it."""
    pure_path = PurePosixPath(path)
    if any(pure_path.is_relative_to(shared) for shared in access.shared_directories):
        return None
    private = access.private_directories
    names = site.private_directories if private is None else private
    return next(((path, name) for name in names if pure_path.is_relative_to(name)), None)


def _submit_from(site: Site, cwd: Path) -> str:
    """Return the one directory that the site takes jobs from; empty if ``cwd`` is in it."""
    if site.submit_directory is None:
        return ""
    only = Path(os.path.expandvars(site.submit_directory))
    return "" if cwd.resolve().is_relative_to(only.resolve()) else str(only)


def _missing_binds(case: Case) -> tuple[MissingPath, ...]:
    """Return the sources of ``--bind`` that do not exist."""
    missing = [Path(bind.source) for bind in case.binds if not Path(bind.source).exists()]
    if not missing:
        return ()
    from toolkit.hostsetup.parts import DATASETS

    return tuple(MissingPath(str(path), _beside(path), DATASETS.get(str(path))) for path in missing)


def _beside(path: Path) -> tuple[str, ...]:
    try:
        return tuple(str(other) for other in path.parent.iterdir())
    except OSError:
        return ()


def _missing_datasets(case: Case) -> dict[str, str]:
    """Return the job's data sets that the site should have, and has not.

    A data set that the user binds is not expected of the site.
    """
    bound = {bind.target for bind in case.binds}
    expected = {
        name: os.path.expandvars(case.site.datasets[name])
        for name in case.job.datasets
        if name in case.site.datasets and f"/data/{name}" not in bound
    }
    return {name: path for name, path in expected.items() if not Path(path).exists()}


def _architecture(image: Path) -> str:
    try:
        with open_regular(image) as stream:
            return sif.parse_architecture(stream.read(sif.HEADER_SIZE))
    except (OSError, SifError):
        return ""


def _lock(name: str, cwd: Path) -> str:
    for directory in (cwd / "recipes", shipped("recipes")):
        try:
            return hash_file(directory / f"{name}.lock")
        except OSError:
            continue
    return ""


def _unread(site: Site, files: Mapping[str, Path | None]) -> tuple[UnreadFile, ...]:
    """List files under the site's purge policy with the days since last access.

    We have read the image's header by now: if the file system notes that, its time starts again.
    """
    places = [
        Path(os.path.expandvars(place)).resolve()
        for place in (site.scratch, site.submit_directory)
        if place
    ]
    if site.purge_days is None:
        return ()
    unread = []
    for option, path in files.items():
        if path is not None and any(path.resolve().is_relative_to(place) for place in places):
            try:
                status = path.stat()
            except OSError:
                continue
            unread.append(
                UnreadFile(
                    option, str(path), (time.time() - max(status.st_atime, status.st_mtime)) / _DAY
                )
            )
    return tuple(unread)


def mpirun_version() -> str | None:
    """Return the first line of ``mpirun --version``; None if there is none."""
    if shell.which("mpirun") is None:
        return None
    try:
        answer = shell.run(["mpirun", "--version"], timeout=20, check=False)
    except CommandFailedError:
        return None
    return next((line.strip() for line in answer.stdout.splitlines() if line.strip()), None)
