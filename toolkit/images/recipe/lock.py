"""The lock of an image: every file that it is built from.

It is ``recipes/<name>.lock``, written by `toolkit image lock`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from toolkit.model.base import Model, toml_value
from toolkit.model.image import BaseImage, Layer

FORMAT = 2


class Pinned(Model, frozen=True, kw_only=True):
    """A Python package.

    Attributes:
        file: the file that it is installed from; empty if it came with the base, or with a Debian
            package.
        sha256: of that file.
        source: the file is a source distribution, and the installed package was compiled from it.
    """

    name: str
    version: str
    file: str = ""
    sha256: str = ""
    source: bool = False


class Lock(Model, frozen=True, kw_only=True):
    """The inputs of a build that come from outside.

    Attributes:
        format: of the file.
        name: of the recipe.
        recipe_hash: of the recipe that was locked.
        epoch: time of the lock, in seconds since 1970; files that a locked build creates have this
            time (SOURCE_DATE_EPOCH).
        base: the base of the image.
        parts: hashes of the base and of each step of the recipe, to report which of them changed.
        tools: the programs that the locked image was built with; other versions may give other
            bytes.
        apt: Debian packages in the image, and their versions.
        apt_build: Debian packages that are installed only during the build.
        pip: Python packages in the image.
        pip_build: files of the Python packages that are installed only during the build.
        layers: of the locked image, the base first; empty if it was not built in layers.
        products: SHA-256 of the compiled products.
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
        """Return all files of Python packages that a build needs."""
        return tuple(package for package in (*self.pip, *self.pip_build) if package.sha256)


def to_toml(lock: Lock) -> str:
    """Format a lock as TOML: equal locks give equal bytes, and each package is one line."""
    return "\n".join(_lines(lock)) + "\n"


def _lines(lock: Lock) -> Iterator[str]:
    # The comments are part of the digest that manifests record (``locked``): do not change them.
    name = _plain(lock.name)
    yield f"# What {name} is built from. Written by: toolkit image lock {name}"
    yield f"# Build exactly this: toolkit image build {name} --locked"
    for key in ("format", "name", "recipe_hash", "epoch"):
        yield f"{key} = {toml_value(getattr(lock, key))}"
    if lock.products:
        yield f"products = {toml_value(lock.products)}"
    if lock.layers:
        yield ""
        yield (
            "# What each step gave: a locked build uses what is kept of these, and makes them "
            "again, to the last byte, where nothing is."
        )
        yield "layers = ["
        yield from (
            f"    {{ name = {toml_value(layer.name)}, sha256 = {toml_value(layer.sha256)} }},"
            for layer in lock.layers
        )
        yield "]"
    yield ""
    yield (
        "# `source`: compiled from that file. Without a file: it came with the base, "
        "or with a package of Debian."
    )
    for key, packages in (("pip", lock.pip), ("pip_build", lock.pip_build)):
        yield f"{key} = ["
        yield from (f"    {{ {', '.join(_pinned(package))} }}," for package in packages)
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


def _pinned(package: Pinned) -> Iterator[str]:
    for key in ("name", "version", "file", "sha256", "source"):
        value = getattr(package, key)
        if value:
            yield f"{key} = {toml_value(value)}"


def _plain(text: str) -> str:
    return "".join(character for character in text if character.isprintable())


def _table(name: str, values: Mapping[str, str], *, order: bool = True) -> Iterator[str]:
    yield ""
    yield f"[{name}]"
    for key in sorted(values) if order else values:
        yield f"{toml_value(key)} = {toml_value(values[key])}"
