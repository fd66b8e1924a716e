"""What an image is built from, down to the file: ``recipes/<name>.lock``, written by `toolkit image lock`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from toolkit.model.base import Model
from toolkit.model.image import BaseImage, Layer

FORMAT = 2


class Pinned(Model, frozen=True, kw_only=True):
    """A package of Python.

    Attributes:
        file: that it is installed from; empty where it came with the base, or with a package of Debian.
        sha256: of that file.
        source: the file is its source: what is installed was compiled from it.
    """

    name: str
    version: str
    file: str = ""
    sha256: str = ""
    source: bool = False


class Lock(Model, frozen=True, kw_only=True):
    """Everything that a build takes from elsewhere.

    Attributes:
        format: of the file.
        name: of the recipe.
        recipe_hash: of the recipe that was locked.
        epoch: when, in seconds since 1970: the time of everything that a locked build makes (SOURCE_DATE_EPOCH).
        base: what the image begins as.
        parts: hashes of the base and each step of the recipe, for saying what has changed.
        tools: what the locked image was built with; another version may give other bytes.
        apt: packages of Debian in the image, and their versions.
        apt_build: those that are there while it is built only.
        pip: packages of Python in the image.
        pip_build: files of those that are there while it is built only.
        layers: of the locked image, the base first; empty where it was not built in layers.
        products: SHA-256 of what was compiled for it.
    """

    format: int = FORMAT
    name: str
    recipe_hash: str
    epoch: int
    base: BaseImage
    parts: dict[str, str] = {}
    tools: dict[str, str] = {}
    apt: dict[str, str] = {}
    apt_build: dict[str, str] = {}
    pip: tuple[Pinned, ...] = ()
    pip_build: tuple[Pinned, ...] = ()
    layers: tuple[Layer, ...] = ()
    products: str = ""

    @property
    def files(self) -> tuple[Pinned, ...]:
        """Every file of Python's packages that a build needs."""
        return tuple(one for one in (*self.pip, *self.pip_build) if one.sha256)


def to_toml(lock: Lock) -> str:
    """The file of a lock: equal locks give equal bytes, and one package is one line."""
    return "\n".join(_lines(lock)) + "\n"


def _lines(lock: Lock) -> Iterator[str]:
    yield f"# What {_plain(lock.name)} is built from. Written by: toolkit image lock {_plain(lock.name)}"
    yield f"# Build exactly this: toolkit image build {_plain(lock.name)} --locked"
    for key in ("format", "name", "recipe_hash", "epoch"):
        yield f"{key} = {_value(getattr(lock, key))}"
    if lock.products:
        yield f"products = {_value(lock.products)}"
    if lock.layers:
        yield ""
        yield "# What each step gave: a locked build uses what is kept of these, and makes them again, to the last byte, where nothing is."
        yield "layers = ["
        yield from (
            f"    {{ name = {_value(one.name)}, sha256 = {_value(one.sha256)} }},"
            for one in lock.layers
        )
        yield "]"
    yield ""
    yield "# `source`: compiled from that file. Without a file: it came with the base, or with a package of Debian."
    for key, packages in (("pip", lock.pip), ("pip_build", lock.pip_build)):
        yield f"{key} = ["
        yield from (f"    {{ {', '.join(_pinned(one))} }}," for one in packages)
        yield "]"
    yield from _table(
        "base",
        {
            "reference": lock.base.reference,
            **({"digest": lock.base.digest} if lock.base.digest else {}),
        },
        order=False,
    )
    yield from _table("parts", lock.parts, order=False)
    for key in ("tools", "apt", "apt_build"):
        yield from _table(key, getattr(lock, key))


def _pinned(one: Pinned) -> Iterator[str]:
    for key in ("name", "version", "file", "sha256", "source"):
        value = getattr(one, key)
        if value:
            yield f"{key} = {_value(value)}"


def _value(value: object) -> str:
    """A string, number or truth value as TOML writes it: as JSON does, but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _plain(text: str) -> str:
    return "".join(character for character in text if character.isprintable())


def _table(name: str, values: Mapping[str, str], *, order: bool = True) -> Iterator[str]:
    yield ""
    yield f"[{name}]"
    for key in sorted(values) if order else values:
        yield f"{_value(key)} = {_value(values[key])}"
