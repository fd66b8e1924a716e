"""Where the base of an image is fetched from: its registry or a mirror, exactly which one, and with which login."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from toolkit.configuration import settings_files
from toolkit.errors import BuildError, ConfigError, UsageError
from toolkit.files import read_toml
from toolkit.images.registry import client as registry
from toolkit.images.registry.auth import Credentials, credentials
from toolkit.images.registry.references import Reference, mirrors, parse, require_mirror, rewritten
from toolkit.model.project import Project

VARIABLE = "TOOLKIT_REGISTRIES"


@dataclass(frozen=True)
class Source:
    """A base in a registry.

    Attributes:
        wanted: as the recipe names it, with the digest that it has now.
        place: where it is fetched from; its digest says which image that is, whatever the tag becomes.
        login: for the registry of ``place``.
    """

    wanted: Reference
    place: Reference
    login: Credentials | None = None

    def environment(self) -> dict[str, str]:
        """What Apptainer needs to be told, in its environment, to fetch it."""
        if self.login is None or not self.login.secret:
            return {}
        names = ("APPTAINER_DOCKER", "SINGULARITY_DOCKER")
        return {
            f"{name}_{key}": value
            for name in names
            for key, value in (("USERNAME", self.login.user), ("PASSWORD", self.login.secret))
        }


def source(
    reference: str,
    digest: str | None = None,
    *,
    known: Mapping[str, str] | None = None,
    written: str = "the recipe's [base]",
) -> Source:
    """Find out which image a base is now.

    Args:
        reference: as a recipe or the catalogue names it.
        digest: that it has to have.
        known: mirrors, instead of those that the user configured.
        written: where the reference is written, for messages.

    Raises:
        UsageError: the reference, or what names the mirrors, cannot be read.
        BuildError: the registry has another image under this name than the recipe pins.
        UnknownImageError, ForbiddenError, CommandFailedError: of the registry.
    """
    try:
        wanted = parse(reference)
    except ValueError as error:
        raise UsageError(str(error), place=written) from None
    place = rewritten(wanted, configured_mirrors() if known is None else known)
    login = credentials(place.registry)
    found = registry.digest_of(
        place if place.tag else msgspec.structs.replace(place, digest=place.digest or digest or ""),
        login,
    )
    pinned = digest or wanted.digest
    if pinned and found != pinned:
        raise BuildError(
            f"{place.repository}:{place.tag} is not the image that the recipe pins",
            place=str(wanted),
            details=(f"recipe    {pinned}", f"registry  {found}"),
            next_step="somebody moved the tag, or the mirror differs: find out which; to take the new one, change `digest` in the recipe",
        )
    return Source(
        msgspec.structs.replace(wanted, digest=found),
        msgspec.structs.replace(place, digest=found),
        login,
    )


def configured_mirrors() -> dict[str, str]:
    """What stands for which registry: ``$TOOLKIT_REGISTRIES`` over ``[registries]`` of each ``toolkit.toml`` that holds here.

    Raises:
        UsageError, ConfigError: one of them cannot be read.
    """
    try:
        chosen = mirrors(os.environ.get(VARIABLE, ""))
    except ValueError as error:
        raise UsageError(
            str(error),
            place=VARIABLE,
            next_step=f"{VARIABLE}='nvcr.io=mirror.site/ngc' toolkit image build ...",
        ) from None
    found: dict[str, str] = {}
    for file in settings_files(Path.cwd()):
        found |= _of_file(file.path)
    return {**found, **chosen}


def _of_file(path: Path) -> dict[str, str]:
    table = read_toml(path, Project).registries
    try:
        for name, target in table.items():
            require_mirror(name, target)
    except ValueError as error:
        raise ConfigError(
            str(error),
            place=f"{path}, key registries",
            next_step='write: "nvcr.io" = "mirror.site/ngc"',
        ) from None
    return {name.rstrip("/"): target.rstrip("/") for name, target in table.items()}
