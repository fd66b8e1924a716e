"""Look at this machine for what the rules judge (``rules.Seen``): directories, files, room, the image's head."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path

from toolkit.files import open_regular
from toolkit.hostsetup.parts import DATASETS
from toolkit.images.sif import SifError
from toolkit.images.sif import header as sif
from toolkit.images.store import space
from toolkit.images.store.store import FoundImage
from toolkit.model.job import Job
from toolkit.model.site import Site
from toolkit.preflight.model import Missing, Seen, Unread
from toolkit.preflight.rules.cache import VARIABLES
from toolkit.resources import shipped

_DAY = 86400.0  # seconds


def look(
    job: Job,
    site: Site,
    here: Path,
    *,
    script: Path | None,
    found: FoundImage | None,
    hidden: Mapping[str, tuple[str, str]],
) -> Seen:
    """Everything that can be told without a node.

    Args:
        job: the merged settings.
        site: it goes to.
        here: where the user stands.
        script: that is run; None: a program of the image.
        found: the image, where there is one.
        hidden: what the nodes do not see.
    """
    image = Path(found.path) if found else None
    room = space.look(here)
    home = Path.home()
    return Seen(
        directory=str(here),
        writable=os.access(here, os.W_OK),
        submit_from=submit_from(site, here),
        hidden=dict(hidden),
        binds=binds(job, here),
        datasets=datasets(job, site),
        unreadable=str(script) if script is not None and not os.access(script, os.R_OK) else "",
        image=str(image or ""),
        architecture=_architecture(image) if image else "",
        machine=platform.machine(),
        foreign_manifest=bool(
            found
            and found.manifest is None
            and image
            and image.with_name(f"{found.name}.json").is_file()
        ),
        lock=_lock(found.manifest.name, here)
        if found and found.manifest and found.manifest.locked
        else "",
        unread=_unread(site, {"--image": image, "SCRIPT": script}),
        free=room.free,
        quota=room.quota,
        home=str(home),
        home_quota=None if site.scratch else space.look(home).quota,
        caches={name: os.environ[name] for name in VARIABLES if os.environ.get(name)},
    )


def submit_from(site: Site, here: Path) -> str:
    """The one directory that the site takes jobs from, where ``here`` is not in it; else empty."""
    if site.submit_directory is None:
        return ""
    only = Path(os.path.expandvars(site.submit_directory))
    return "" if here.resolve().is_relative_to(only.resolve()) else str(only)


def binds(job: Job, here: Path) -> tuple[Missing, ...]:
    """Sources of ``--bind`` that are not there."""
    sources = [here / text.split(":")[0] for text in job.bind]
    return tuple(
        Missing(str(source), _beside(source), DATASETS.get(str(source)))
        for source in sources
        if not source.exists()
    )


def _beside(path: Path) -> tuple[str, ...]:
    try:
        return tuple(str(other) for other in path.parent.iterdir())
    except OSError:
        return ()


def datasets(job: Job, site: Site) -> dict[str, str]:
    """Data sets of the job that the site says it keeps, and that are not there; one that the user binds is none of them."""
    bound = {text.split(":")[1] for text in job.bind if ":" in text}
    kept = {
        name: os.path.expandvars(site.datasets[name])
        for name in job.datasets
        if name in site.datasets
    }
    return {
        name: path
        for name, path in kept.items()
        if f"/data/{name}" not in bound and not Path(path).exists()
    }


def _architecture(image: Path) -> str:
    try:
        with open_regular(image) as stream:
            return sif.parse_architecture(stream.read(sif.HEADER_SIZE))
    except (OSError, SifError):
        return ""


def _lock(name: str, here: Path) -> str:
    for directory in (here / "recipes", shipped("recipes")):
        try:
            return hashlib.sha256((directory / f"{name}.lock").read_bytes()).hexdigest()
        except OSError:
            continue
    return ""


def _unread(site: Site, files: Mapping[str, Path | None]) -> tuple[Unread, ...]:
    """Those of some files that lie where the site deletes what nobody reads, and for how long nobody did.

    We have read the image's head by now: where the file system notes that, its time begins anew.
    """
    places = [
        Path(os.path.expandvars(place)).resolve()
        for place in (site.scratch, site.submit_directory)
        if place
    ]
    if site.purge_days is None:
        return ()
    found = []
    for option, path in files.items():
        if path is not None and any(path.resolve().is_relative_to(place) for place in places):
            try:
                status = path.stat()
            except OSError:
                continue
            found.append(
                Unread(
                    option, str(path), (time.time() - max(status.st_atime, status.st_mtime)) / _DAY
                )
            )
    return tuple(found)
