"""Bases that come from a registry or an archive: exactly which image it is now, and what either engine has to be told to get it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from toolkit.errors import ConfigError, ImageMissingError
from toolkit.files import hash_file
from toolkit.images.recipe.bases import Base
from toolkit.images.registry.references import parse
from toolkit.images.registry.source import Source, source
from toolkit.model.image import BaseImage

_ARCHIVES = ("docker-archive", "oci-archive")


class PinnedBase(Base, frozen=True, kw_only=True):
    """A base as it is now. No recipe can name it.

    Attributes:
        bootstrap, place: for Apptainer: how and from where it is got.
        spoken: what it is, for people.
    """

    bootstrap: str
    place: str
    spoken: str

    def header(self) -> tuple[str, ...]:
        return (f"Bootstrap: {self.bootstrap}", f"From: {self.place}")

    def detail(self) -> str:
        return self.spoken

    def reads(self) -> tuple[str, ...]:
        return (self.place,) if self.bootstrap in _ARCHIVES else ()


@dataclass(frozen=True)
class ResolvedBase:
    """Which image a base is.

    Attributes:
        base: for Apptainer.
        image: for the manifest: the reference as the recipe names it, and the digest that it has.
        source: of the registry; None for an archive.
        archive: the file; None for a registry.
        environment: that Apptainer needs to get it; holds a login.
    """

    base: PinnedBase
    image: BaseImage
    source: Source | None = None
    archive: Path | None = None
    environment: dict[str, str] = field(default_factory=dict, repr=False)

    def definition(self, text: str, base: Base) -> str:
        """The definition of a recipe, with this in place of its base."""
        return text.replace("\n".join(base.header()), "\n".join(self.base.header()))


def resolve_base(base: Base, *, exactly: str = "") -> ResolvedBase | None:
    """Find out which image a base is; None for one that is neither in a registry nor an archive.

    Args:
        exactly: the digest to take, whatever its tag is now.

    Raises:
        BuildError: the registry has another image under this name than the recipe pins.
        UsageError, ConfigError, UnknownImageError, ForbiddenError, CommandFailedError: of the registry.
        ImageMissingError: the archive cannot be read.
    """
    reference = str(getattr(base, "reference", ""))
    if not reference:
        return None
    archive = getattr(base, "archive", None)
    if archive:
        return _archived(base, str(archive), reference)
    if exactly:
        wanted = parse(reference)
        found = source(str(msgspec.structs.replace(wanted, tag="", digest=exactly)))
        found = Source(
            msgspec.structs.replace(found.wanted, tag=wanted.tag), found.place, found.login
        )
    else:
        found = source(reference, getattr(base, "digest", None) or None)
    named = str(msgspec.structs.replace(found.wanted, digest=""))
    return ResolvedBase(
        PinnedBase(bootstrap="docker", place=found.place.pinned, spoken=base.detail()),
        BaseImage(reference=named, digest=found.place.digest),
        source=found,
        environment=found.environment(),
    )


def _archived(base: Base, archive: str, reference: str) -> ResolvedBase:
    """A file that `docker save`, skopeo or podman wrote; which it is, is told by its bytes."""
    kind, colon, rest = archive.partition(":")
    if not colon:
        kind, rest = _ARCHIVES[0], archive
    if kind not in _ARCHIVES or not rest.startswith("/"):
        raise ConfigError(
            f"{archive!r} is no archive of an image",
            place="the recipe's [base], key archive",
            next_step=f"write {_ARCHIVES[0]}:/path/to/file",
        )
    path = Path(rest)
    try:
        digest = hash_file(path)
    except OSError as error:
        raise ImageMissingError(
            f"the archive of the base cannot be read: {error.strerror}", place=str(path)
        ) from None
    said = BaseImage(reference=reference, digest=f"sha256:{digest}")
    return ResolvedBase(
        PinnedBase(bootstrap=kind, place=rest, spoken=f"{base.detail()} from {path.name}"),
        said,
        archive=path,
    )
