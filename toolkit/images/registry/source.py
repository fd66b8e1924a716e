"""The source of an image's base: registry or mirror, digest, and login."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from toolkit.config import settings_files
from toolkit.errors import BuildError, ConfigError, UsageError
from toolkit.files import read_toml, write_atomically
from toolkit.images.registry import client as registry
from toolkit.images.registry.auth import Credentials, find_credentials
from toolkit.images.registry.references import (
    Reference,
    parse,
    parse_mirrors,
    redirect,
    require_mirror,
)
from toolkit.model.job import Project

VARIABLE = "TOOLKIT_REGISTRIES"
_TOOLS = ("APPTAINER", "SINGULARITY")
_NO_USER = base64.b64encode(b"<token>:").decode()  # as credential helpers mark a token


@dataclass(frozen=True)
class Source:
    """A base in a registry.

    Attributes:
        wanted: the reference in the recipe, with the digest that it has now.
        place: the reference that is fetched; its digest names the image, even if the tag moves.
        login: for the registry of ``place``.
    """

    wanted: Reference
    place: Reference
    login: Credentials | None = None

    def environment(self, private: Path) -> dict[str, str]:
        """Return the environment by which Apptainer gets the login.

        Args:
            private: A directory of this user alone. Apptainer has no variable for an identity
                token, and reads it from a file of its settings, which is written there.
        """
        if self.login is None:
            return {}
        values = {"DOCKER_USERNAME": self.login.user, "DOCKER_PASSWORD": self.login.secret}
        if self.login.token:
            settings = private / "login"
            settings.mkdir(mode=0o700, exist_ok=True)
            entry = {"auth": _NO_USER, "identitytoken": self.login.token}
            write_atomically(
                settings / "docker-config.json",
                json.dumps({"auths": {self.place.registry: entry}}),
                mode=0o600,
            )
            values = {"CONFIGDIR": str(settings)}
        return {f"{tool}_{key}": text for tool in _TOOLS for key, text in values.items()}


def resolve_source(
    reference: str,
    digest: str | None = None,
    *,
    known: Mapping[str, str] | None = None,
    written: str = "the recipe's [base]",
) -> Source:
    """Resolve the reference of a base to its digest.

    Args:
        reference: as a recipe or the catalogue names it.
        digest: the digest that it must have.
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
    place = redirect(wanted, read_mirrors() if known is None else known)
    login = find_credentials(place.registry)
    current = registry.find_digest(
        place if place.tag else msgspec.structs.replace(place, digest=place.digest or digest or ""),
        login,
    )
    pinned = digest or wanted.digest
    if pinned and current != pinned:
        raise BuildError(
            f"{place.repository}:{place.tag} is not the image that the recipe pins",
            place=str(wanted),
            details=(f"recipe    {pinned}", f"registry  {current}"),
            next_step="the tag was moved, or the mirror differs: find out which; to take the new "
            "image, change `digest` in the recipe",
        )
    return Source(
        msgspec.structs.replace(wanted, digest=current),
        msgspec.structs.replace(place, digest=current),
        login,
    )


def read_mirrors() -> dict[str, str]:
    """Return the mirrors: ``$TOOLKIT_REGISTRIES`` over ``[registries]`` of each ``toolkit.toml``.

    Raises:
        UsageError, ConfigError: one of them cannot be read.
    """
    try:
        chosen = parse_mirrors(os.environ.get(VARIABLE, ""))
    except ValueError as error:
        raise UsageError(
            str(error),
            place=VARIABLE,
            next_step=f"{VARIABLE}='nvcr.io=mirror.site/ngc' toolkit image build ...",
        ) from None
    mirrors_of_files: dict[str, str] = {}
    for file in settings_files(Path.cwd()):
        mirrors_of_files |= _read_settings_file(file.path)
    return {**mirrors_of_files, **chosen}


def _read_settings_file(path: Path) -> dict[str, str]:
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
