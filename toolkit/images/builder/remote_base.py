"""One build, and its base from a registry or an archive, which is exactly one image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from toolkit.errors import ConfigError, ImageMissingError
from toolkit.files import hash_file
from toolkit.images.builder.follow import Follower
from toolkit.images.host.workspace import Workspace
from toolkit.images.recipe import library
from toolkit.images.recipe.bases import Base, BaseOutput
from toolkit.images.recipe.lock import Lock
from toolkit.images.recipe.plan import Plan
from toolkit.images.registry.references import parse
from toolkit.images.registry.registry import Source, apptainer_login, resolve_source
from toolkit.model.image import BaseImage

_ARCHIVES = ("docker-archive", "oci-archive")


class PinnedBase(Base, frozen=True, kw_only=True):
    """A base pinned to one image. No recipe can name it.

    Attributes:
        bootstrap: Apptainer's way to fetch it.
        place: The place from which Apptainer fetches it.
        description: A description for people.
    """

    bootstrap: str
    place: str
    description: str

    def output(self) -> BaseOutput:
        """Return what a definition gets from this base."""
        return BaseOutput(
            detail=self.description,
            header=(f"Bootstrap: {self.bootstrap}", f"From: {self.place}"),
            reads=(self.place,) if self.bootstrap in _ARCHIVES else (),
        )


@dataclass(frozen=True)
class RemoteBase:
    """The image of a base from a registry or an archive.

    Attributes:
        base: The base for Apptainer.
        image: The base for the manifest: the recipe's reference, and the digest.
        source: The place in a registry; None for an archive.
        archive: The file; None for a registry.
    """

    base: PinnedBase
    image: BaseImage
    source: Source | None = None
    archive: Path | None = None


def resolve_base(base: Base, *, digest: str = "") -> RemoteBase | None:
    """Find the image of a base; return None for a base from neither a registry nor an archive.

    Args:
        base: The recipe's base.
        digest: The digest to use, whatever the tag's digest is now.

    Raises:
        BuildError: The registry has another image under this name than the recipe pins.
        UsageError, ConfigError, UnknownImageError, ForbiddenError, CommandFailedError: The
            registry failed.
        ImageMissingError: The archive cannot be read.
    """
    output = base.output()
    reference = output.reference
    if not reference:
        return None
    archive = getattr(base, "archive", None)
    if archive:
        return _resolve_archive(output, str(archive))
    if digest:
        wanted = parse(reference)
        pinned = resolve_source(str(msgspec.structs.replace(wanted, tag="", digest=digest)))
        named = msgspec.structs.replace(pinned.wanted, tag=wanted.tag)
        resolved = Source(named, pinned.place)
    else:
        resolved = resolve_source(reference, getattr(base, "digest", None) or None)
    name = str(msgspec.structs.replace(resolved.wanted, digest=""))
    return RemoteBase(
        PinnedBase(bootstrap="docker", place=resolved.place.pinned, description=output.detail),
        BaseImage(reference=name, digest=resolved.place.digest),
        source=resolved,
    )


def _resolve_archive(base: BaseOutput, archive: str) -> RemoteBase:
    """Identify a file that `docker save`, skopeo or podman wrote by the hash of its bytes."""
    kind, colon, rest = archive.partition(":")
    if not colon:
        kind, rest = _ARCHIVES[0], archive
    if kind not in _ARCHIVES or not rest.startswith("/"):
        raise ConfigError(
            f"{archive!r} does not name an archive of an image",
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
    return RemoteBase(
        PinnedBase(bootstrap=kind, place=rest, description=f"{base.detail} from {path.name}"),
        BaseImage(reference=base.reference, digest=f"sha256:{digest}"),
        archive=path,
    )


@dataclass(frozen=True)
class BuildTask:
    """One build.

    Attributes:
        plan: The plan, with the keys of the present version of its base.
        base: The image of a base from a registry or an archive.
        lock: The lock to build, if there is one.
        place: The directories of this build.
        follower: Follows it.
        fresh: Build without cached results, except for what was compiled on exactly the same
            layers.
    """

    plan: Plan
    base: RemoteBase | None
    lock: Lock | None
    place: Workspace
    follower: Follower
    fresh: bool = False

    def exact(self) -> Plan:
        """Return the plan on exactly this base."""
        return msgspec.structs.replace(self.plan, base=self.base.base) if self.base else self.plan

    def definition(self) -> str:
        """Return the definition for Apptainer, which names exactly this base."""
        return library.render(self.plan, base=self.exact().base)

    def login(self) -> dict[str, str]:
        """Return the variables for Apptainer to fetch the base."""
        source = self.base.source if self.base else None
        return apptainer_login(source.place.registry, self.place.output) if source else {}
