"""The catalogue of NGC releases: ``catalogue.toml``, as facts that each know their source. Pure, but for reading that file."""

from __future__ import annotations

from functools import lru_cache

from toolkit.errors import UnknownImageError
from toolkit.files import read_toml
from toolkit.model.base import Model
from toolkit.model.catalogue import Fact, Release
from toolkit.resources import package_directory
from toolkit.versions import numbers


class Stated(Model, frozen=True, kw_only=True):
    """A fact as it is written, where it is more than a value: the keys of its source and its note."""

    value: str
    source: str | None = None
    note: str | None = None


class Entry(Model, frozen=True, kw_only=True):
    """A release as it is written. ``source``: where its facts come from that name no other source."""

    framework: str
    release: str
    source: str = "sheet"
    version: str | Stated | None = None
    python: str | Stated | None = None
    ubuntu: str | Stated | None = None
    cuda: str | Stated | None = None
    nccl: str | Stated | None = None
    openmpi: str | Stated | None = None
    hpcx: str | Stated | None = None
    driver: str | Stated | None = None
    horovod: str | Stated | None = None
    constraints: str | Stated | None = None


class Written(Model, frozen=True, kw_only=True):
    """The whole file."""

    sources: dict[str, str]
    notes: dict[str, str]
    references: dict[str, str]
    drivers: dict[str, str]
    releases: tuple[Entry, ...]


@lru_cache(maxsize=1)
def _written() -> Written:
    return read_toml(package_directory("images/recipe") / "catalogue.toml", Written)


@lru_cache(maxsize=1)
def releases() -> tuple[Release, ...]:
    """Every release that is known, the newest first, by framework."""
    written = _written()
    return tuple(
        sorted(
            (_release(entry, written) for entry in written.releases),
            key=lambda one: (one.framework, _newest_first(one)),
        )
    )


def _newest_first(release: Release) -> tuple[int, int]:
    year, month = release.month
    return -year, -month


def _release(entry: Entry, written: Written) -> Release:
    reference = written.references[entry.framework].format(release=entry.release)
    facts = {"reference": Fact(value=reference, source=written.sources["registry"])}
    for name in Entry.__struct_fields__:
        stated = getattr(entry, name)
        if name in ("framework", "release", "source") or stated is None:
            continue
        whole = stated if isinstance(stated, Stated) else Stated(value=stated)
        source = written.sources[whole.source or entry.source]
        facts[name] = Fact(
            value=whole.value, source=source, note=written.notes[whole.note] if whole.note else ""
        )
    return Release(framework=entry.framework, release=entry.release, facts=facts)


def frameworks() -> tuple[str, ...]:
    """The frameworks that there are NGC images of."""
    return tuple(sorted(_written().references))


def find(framework: str, release: str) -> Release:
    """A release by its framework (``pytorch``) and month (``22.03``).

    Raises:
        UnknownImageError: it is not in the catalogue; names the nearest that is.
    """
    if framework not in frameworks():
        raise UnknownImageError(
            f"the catalogue has no framework {framework!r}",
            choices=frameworks(),
            value=framework,
            next_step="toolkit image list",
        )
    known = {one.release: one for one in releases() if one.framework == framework}
    if release not in known:
        raise UnknownImageError(
            f"the catalogue has no release {release} of {framework}",
            choices=known,
            value=release,
            next_step=f"toolkit image search framework:{framework}",
        )
    return known[release]


def find_by_name(text: str) -> Release | None:
    """The release that a person means by ``pytorch:22.03``, ``pytorch:22.03-py3`` or ``nvcr.io/nvidia/pytorch:22.03-py3``; None: none."""
    name = text.removeprefix("docker://").rsplit("/", 1)[-1]
    wanted = {name, text.removeprefix("docker://")}
    return next(
        (
            one
            for one in releases()
            if wanted & {one.name, one.reference, one.reference.rsplit("/", 1)[-1]}
            and _same_place(text, one)
        ),
        None,
    )


def _same_place(text: str, release: Release) -> bool:
    """A reference with a registry in it means that registry's image; a mirror's is another thing until somebody says otherwise."""
    return "/" not in text or text.removeprefix("docker://") == release.reference


def oldest_driver(cuda: str) -> tuple[str, str] | None:
    """The oldest driver that runs programs of a CUDA version at all, and where that is written; None where nobody wrote it down.

    From CUDA 11 on that is one for each major version, NVIDIA's "minor version compatibility".
    """
    written = _written()
    parts = numbers(cuda)
    keys = (".".join(map(str, parts[:2])), str(parts[0]) if parts else "")
    found = next((written.drivers[key] for key in keys if key in written.drivers), None)
    return (found, written.sources["cuda-guide"]) if found else None


def newest(framework: str) -> Release:
    """The newest release of a framework."""
    return next(one for one in releases() if one.framework == framework)
