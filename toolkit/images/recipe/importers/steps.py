"""Parts of imported recipes that Dockerfiles and definitions share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.errors import UsageError
from toolkit.images.recipe import catalogue
from toolkit.images.recipe.quoting import list_references
from toolkit.model.base import Model

# Sections of definitions and instructions of Dockerfiles that have no use in our images, and what
# to do instead.
ALTERNATIVES = {
    "setup": "it changes the building machine: find another way within the image",
    "runscript": "name the program on the command line: our images run what they are given",
    "startscript": "nothing: instances are not used by jobs",
    "test": "write a check: `checks` of a step",
    "help": "write it into the recipe's summary or comments",
    "labels": "write them into the recipe's summary or comments",
    "pre": "run its commands before the build",
    "CMD": "name the program on the command line: our images run what they are given",
    "ENTRYPOINT": "name the program on the command line: our images run what they are given",
    "EXPOSE": "nothing: containers on a cluster use the node's network as it is",
    "HEALTHCHECK": "write a check: `checks` of a step",
    "LABEL": "write it into the recipe's summary or comments",
    "MAINTAINER": "write it into the recipe's comments",
    "ONBUILD": "write its command as a step of the recipe that extends this one",
    "STOPSIGNAL": "nothing: Slurm's signals are forwarded as they are",
    "VOLUME": "bind a directory when the job runs: --bind",
}


class UnsupportedLine(Model, frozen=True, kw_only=True):
    """A line that a recipe cannot carry, and what to do about it."""

    line: int
    text: str
    instead: str


def refuse_stages(place: str) -> UsageError:
    """Return the error for a file with several stages; ``place`` is where the second begins."""
    return UsageError(
        "the file has several stages, and a recipe has none: "
        "it is not known which commands are for the image",
        place=place,
        next_step="keep one stage; what has to be compiled goes into a block of a recipe, "
        "such as horovod",
    )


def make_base(reference: str) -> dict[str, Any]:
    """Return the ``[base]`` for an image of a registry."""
    release = catalogue.find_by_name(reference)
    if release is not None:
        return {"kind": "ngc", "framework": release.framework, "release": release.release}
    image, _, digest = reference.partition("@")
    return {"kind": "docker", "image": image, **({"digest": digest} if digest else {})}


def encode_variables(values: Mapping[str, str]) -> dict[str, Any]:
    """Return ``variables`` and ``expand`` of a step, from values in the form of ``quoting``."""
    expand = [name for name, value in values.items() if list_references(value)]
    variables = {
        name: value if name in expand else value.replace("$$", "$")
        for name, value in values.items()
    }
    return {
        **({"variables": variables} if variables else {}),
        **({"expand": expand} if expand else {}),
    }


def encode_command(text: str) -> dict[str, Any]:
    """Return ``command`` of a step, encoded where a recipe could not carry it as it is."""
    if text.isprintable():
        return {"command": text}
    encoded = "".join(
        character if character.isprintable() and character != "\\" else _octal(character)
        for character in text
    )
    return {"command": encoded, "encoded": True}


def _octal(character: str) -> str:
    return "\\\\" if character == "\\" else "".join(f"\\0{byte:03o}" for byte in character.encode())
