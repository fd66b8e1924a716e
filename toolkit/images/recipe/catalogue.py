"""The catalogue of NGC releases: ``catalogue.toml``, as facts that each know their source.

Pure, but for reading that file.
"""

from __future__ import annotations

from functools import lru_cache

from toolkit.config import package_directory
from toolkit.errors import UnknownImageError
from toolkit.files import read_toml
from toolkit.images.recipe.releases import Fact, Release
from toolkit.model.base import Model
from toolkit.units import numbers


class StatedFact(Model, frozen=True, kw_only=True):
    """A fact with the keys of its source and its note, where it is more than a value."""

    value: str
    source: str | None = None
    note: str | None = None


class ReleaseEntry(Model, frozen=True, kw_only=True):
    """A release in the file. Its facts come from ``source`` unless they name another one."""

    framework: str
    release: str
    source: str = "sheet"
    version: str | StatedFact | None = None
    python: str | StatedFact | None = None
    ubuntu: str | StatedFact | None = None
    cuda: str | StatedFact | None = None
    nccl: str | StatedFact | None = None
    openmpi: str | StatedFact | None = None
    hpcx: str | StatedFact | None = None
    driver: str | StatedFact | None = None
    horovod: str | StatedFact | None = None
    constraints: str | StatedFact | None = None


class CatalogueFile(Model, frozen=True, kw_only=True):
    """The contents of ``catalogue.toml``."""

    sources: dict[str, str]
    notes: dict[str, str]
    references: dict[str, str]
    drivers: dict[str, str]
    releases: tuple[ReleaseEntry, ...]


@lru_cache(maxsize=1)
def _read_catalogue() -> CatalogueFile:
    return read_toml(package_directory("images/recipe") / "catalogue.toml", CatalogueFile)


@lru_cache(maxsize=1)
def list_releases() -> tuple[Release, ...]:
    """Return every release in the catalogue by framework, the newest first."""
    written = _read_catalogue()
    return tuple(
        sorted(
            (_release(entry, written) for entry in written.releases),
            key=lambda release: (release.framework, *(-part for part in release.month)),
        )
    )


def _release(entry: ReleaseEntry, written: CatalogueFile) -> Release:
    reference = written.references[entry.framework].format(release=entry.release)
    facts = {"reference": Fact(value=reference, source=written.sources["registry"])}
    for name in ReleaseEntry.__struct_fields__:
        stated = getattr(entry, name)
        if name in ("framework", "release", "source") or stated is None:
            continue
        whole = stated if isinstance(stated, StatedFact) else StatedFact(value=stated)
        source = written.sources[whole.source or entry.source]
        facts[name] = Fact(
            value=whole.value, source=source, note=written.notes[whole.note] if whole.note else ""
        )
    return Release(framework=entry.framework, release=entry.release, facts=facts)


def list_frameworks() -> tuple[str, ...]:
    """Return the frameworks that there are NGC images of."""
    return tuple(sorted(_read_catalogue().references))


def find(framework: str, release: str) -> Release:
    """Return a release by its framework (``pytorch``) and month (``22.03``).

    Raises:
        UnknownImageError: It is not in the catalogue; names the nearest that is.
    """
    if framework not in list_frameworks():
        raise UnknownImageError(
            f"the catalogue has no framework {framework!r}",
            choices=list_frameworks(),
            value=framework,
            next_step="toolkit image list",
        )
    known = {
        known_release.release: known_release
        for known_release in list_releases()
        if known_release.framework == framework
    }
    if release not in known:
        raise UnknownImageError(
            f"the catalogue has no release {release} of {framework}",
            choices=known,
            value=release,
            next_step=f"toolkit image search framework:{framework}",
        )
    return known[release]


def find_by_name(text: str) -> Release | None:
    """Return the release that a name means, or None.

    A name is ``pytorch:22.03``, ``pytorch:22.03-py3`` or ``nvcr.io/nvidia/pytorch:22.03-py3``.
    An image of another registry, such as a mirror, may be another image.
    """
    name = text.removeprefix("docker://")
    return next(
        (
            release
            for release in list_releases()
            if name == release.reference
            or text in (release.name, release.reference.rsplit("/", 1)[-1])
        ),
        None,
    )


def find_oldest_driver(cuda: str) -> tuple[str, str] | None:
    """Return the oldest driver that runs programs of a CUDA version, and the source of that fact.

    None if the catalogue has no such fact. From CUDA 11 on there is one driver for each major
    version: NVIDIA's "minor version compatibility".
    """
    written = _read_catalogue()
    parts = numbers(cuda)
    keys = (".".join(map(str, parts[:2])), str(parts[0]) if parts else "")
    driver = next((written.drivers[key] for key in keys if key in written.drivers), None)
    return (driver, written.sources["cuda-guide"]) if driver else None
