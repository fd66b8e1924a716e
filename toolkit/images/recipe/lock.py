"""The lock of an image: every file that it is built from.

It is ``recipes/<name>.lock``, written by `toolkit image lock`: a requirements file with hashes, as
pip and uv read it. What else the image is built from is TOML in its comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import Meta, to_builtins

from toolkit.model.base import AnyModel, BadDataError, Model, convert, toml, toml_value
from toolkit.model.image import BaseImage, Layer

FORMAT = 4
_TOML = "#: "  # begins each line of TOML
_HASH = " --hash=sha256:"
_REQUIREMENT = re.compile(rf"(?P<name>[^\s=]+)==(?P<version>[^\s=]+)(?P<hashes>(?:{_HASH}\w+)+)")


class Pinned(Model, frozen=True, kw_only=True):
    """A Python package, and the SHA-256 of each file that it may be installed from."""

    name: str
    version: str
    sha256: tuple[Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z", description="a SHA-256")], ...]


class Lock(Model, frozen=True, kw_only=True):
    """The inputs of a build that come from outside.

    Attributes:
        format: of the file.
        name: of the recipe.
        recipe_hash: of the recipe that was locked.
        epoch: time of the lock, in seconds since 1970; files that a locked build creates have this
            time (SOURCE_DATE_EPOCH).
        base: the base of the image.
        python: version of the image's Python; empty if it has none.
        tools: the programs that the locked image was built with; other versions may give other
            bytes.
        apt: Debian packages in the image, and their versions.
        apt_build: Debian packages that are installed only during the build.
        pip: Python packages in the image.
        pip_build: Python packages that are installed only during the build.
        brought: Python packages that came with the base, or from no package index.
        layers: of the locked image, the base first; empty if it was not built in layers.
    """

    format: int = FORMAT
    name: str
    recipe_hash: str
    epoch: int
    base: BaseImage
    python: str = ""
    tools: dict[str, str] = {}
    apt: dict[str, str] = {}
    apt_build: dict[str, str] = {}
    pip: tuple[Pinned, ...] = ()
    pip_build: tuple[Pinned, ...] = ()
    brought: dict[str, str] = {}
    layers: tuple[Layer, ...] = ()


def format_lock(lock: Lock) -> str:
    """Format a lock: equal locks give equal bytes, and each package is one line."""
    name = "".join(character for character in lock.name if character.isprintable())
    # The text is part of the digest that manifests record (``locked``).
    lines = [
        f"# What {name} is built from. Written by: toolkit image lock {name}",
        f"# Build exactly this: toolkit image build {name} --locked",
        "# Only its Python packages: pip install --no-deps --require-hashes -r FILE",
    ]
    for pinned in lock.pip:
        hashes = "".join(f"{_HASH}{digest}" for digest in pinned.sha256)
        lines.append(f"{pinned.name}=={pinned.version}{hashes}")
    lines += [f"{_TOML}{line}" for line in _toml_lines(lock)]
    return "\n".join(lines) + "\n"


def _toml_lines(lock: Lock) -> Iterator[str]:
    """Yield all but the requirements as TOML, whose tables come last."""
    data = {"format": lock.format, **to_builtins(lock)}
    data.pop("pip", None)
    for key, value in data.items():
        if isinstance(value, list | tuple):
            yield f"{key} = ["
            yield from (f"    {toml_value(item)}," for item in value)
            yield "]"
        elif not isinstance(value, Mapping):
            yield f"{key} = {toml_value(value)}"
    for key, table in data.items():
        if isinstance(table, Mapping):
            yield f"[{key}]"
            yield from (f"{toml_value(name)} = {toml_value(table[name])}" for name in sorted(table))


def parse_lock(text: str, model: type[AnyModel]) -> AnyModel:
    """Parse a lock; errors as ``from_toml``."""
    pinned: list[dict[str, object]] = []
    own: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith(_TOML):
            own.append(line.removeprefix(_TOML))
        elif line and not line.startswith("#"):
            match = _REQUIREMENT.fullmatch(line)
            if not match:
                raise BadDataError(
                    "this is no requirement with a hash: make the lock again", line=number
                )
            hashes = match["hashes"].split(_HASH)[1:]
            pinned.append({"name": match["name"], "version": match["version"], "sha256": hashes})
    data = toml("\n".join((f"pip = {toml_value(pinned)}", *own)))
    form = data.get("format", FORMAT)
    if isinstance(form, int) and form != FORMAT:  # whose keys may be others
        raise BadDataError(f"the lock is of format {form}, not {FORMAT}: make the lock again")
    return convert(data, model)
