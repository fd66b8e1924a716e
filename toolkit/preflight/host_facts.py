"""Read the facts of this host that preflight rules need: directories, files, space, the image."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path

from toolkit.config import shipped
from toolkit.files import hash_file, open_regular
from toolkit.hostsetup.parts import DATASETS
from toolkit.images.host import space
from toolkit.images.sif import SifError
from toolkit.images.sif import header as sif
from toolkit.images.store.store import StoredImage
from toolkit.model.job import Job
from toolkit.model.site import Site
from toolkit.preflight.model import HostFacts, MissingPath, UnreadFile
from toolkit.preflight.rules.storage import VARIABLES

_DAY = 86400.0  # seconds


def read_host_facts(
    job: Job,
    site: Site,
    cwd: Path,
    *,
    script: Path | None,
    image: StoredImage | None,
    hidden: Mapping[str, tuple[str, str]],
) -> HostFacts:
    """Read all facts that can be known without a node.

    Args:
        job: the merged settings.
        site: of the job.
        cwd: the current working directory.
        script: of the job; None if it runs a program of the image.
        image: of the job, if it has one.
        hidden: option -> a path that the nodes do not see.
    """
    path = Path(image.path) if image else None
    room = space.read_room(cwd)
    home = Path.home()
    return HostFacts(
        directory=str(cwd),
        writable=os.access(cwd, os.W_OK),
        submit_from=submit_from(site, cwd),
        hidden=dict(hidden),
        binds=missing_binds(job, cwd),
        datasets=missing_datasets(job, site),
        unreadable=str(script) if script is not None and not os.access(script, os.R_OK) else "",
        image=str(path or ""),
        architecture=_architecture(path) if path else "",
        machine=platform.machine(),
        foreign_manifest=bool(
            image
            and image.manifest is None
            and path
            and path.with_name(f"{image.name}.json").is_file()
        ),
        lock=_lock(image.manifest.name, cwd)
        if image and image.manifest and image.manifest.locked
        else "",
        unread=_unread(site, {"--image": path, "SCRIPT": script}),
        free=room.free,
        quota=room.quota,
        home=str(home),
        home_quota=None if site.scratch else space.read_room(home).quota,
        caches={name: os.environ[name] for name in VARIABLES if os.environ.get(name)},
    )


def submit_from(site: Site, cwd: Path) -> str:
    """Return the one directory that the site takes jobs from; empty if ``cwd`` is in it."""
    if site.submit_directory is None:
        return ""
    only = Path(os.path.expandvars(site.submit_directory))
    return "" if cwd.resolve().is_relative_to(only.resolve()) else str(only)


def missing_binds(job: Job, cwd: Path) -> tuple[MissingPath, ...]:
    """Return the sources of ``--bind`` that do not exist."""
    sources = [cwd / text.split(":")[0] for text in job.bind]
    return tuple(
        MissingPath(str(source), _beside(source), DATASETS.get(str(source)))
        for source in sources
        if not source.exists()
    )


def _beside(path: Path) -> tuple[str, ...]:
    try:
        return tuple(str(other) for other in path.parent.iterdir())
    except OSError:
        return ()


def missing_datasets(job: Job, site: Site) -> dict[str, str]:
    """Return the job's data sets that the site should have, and has not.

    A data set that the user binds is not expected of the site.
    """
    bound = {text.split(":")[1] for text in job.bind if ":" in text}
    expected = {
        name: os.path.expandvars(site.datasets[name])
        for name in job.datasets
        if name in site.datasets
    }
    return {
        name: path
        for name, path in expected.items()
        if f"/data/{name}" not in bound and not Path(path).exists()
    }


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
