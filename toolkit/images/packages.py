"""Files of Python packages: which one an installed package came from, and what an index or a directory offers. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from toolkit.model.base import Model

_SOURCES = (".tar.gz", ".zip", ".tar.bz2")


class File(Model, frozen=True, kw_only=True):
    """A file of a package, and where it is. ``sha256`` is empty where the place does not say it."""

    name: str
    url: str
    sha256: str = ""


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _same_version(one: str, other: str) -> bool:
    parts = (re.sub(r"[-_.]+", ".", text.lower().removeprefix("v")) for text in (one, other))
    return len(set(parts)) == 1


def is_source(file: str) -> bool:
    """Whether a file is the source of a package."""
    return file.endswith(_SOURCES)


def matches(file: str, name: str, version: str) -> bool:
    """Whether a file is a wheel or the source of this version of this package."""
    if file.endswith(".whl"):
        parts = file.removesuffix(".whl").split("-")
        return len(parts) in (5, 6) and normal(parts[0]) == normal(name) and _same_version(parts[1], version)
    ending = next((one for one in _SOURCES if file.endswith(one)), None)
    if ending is None:
        return False
    found, _, has = file.removesuffix(ending).rpartition("-")
    return normal(found) == normal(name) and _same_version(has, version)


def tags(wheel: str) -> frozenset[str]:
    """All tags that a wheel's name stands for: ``py2.py3-none-any`` are two."""
    pythons, abis, platforms = (part.split(".") for part in wheel.removesuffix(".whl").split("-")[-3:])
    return frozenset(f"{python}-{abi}-{platform}" for python in pythons for abi in abis for platform in platforms)


def origin(name: str, version: str, installed: Iterable[str], offered: Iterable[File]) -> File | None:
    """The file that an installed package came from.

    Args:
        installed: the tags that the package has of its wheel.
        offered: what there is, what pip prefers first.

    Returns:
        The wheel with just these tags; else the source, from which such a wheel was made; None: neither is there.
    """
    fitting = [file for file in offered if matches(file.name, name, version)]
    wanted = frozenset(installed)
    wheel = next((file for file in fitting if file.name.endswith(".whl") and tags(file.name) == wanted), None)
    return wheel or next((file for file in fitting if is_source(file.name)), None)


def for_python(name: str, version: str, python: str, machine: str, offered: Iterable[File]) -> File | None:
    """The file of a package for a Python: a wheel for every one, else one for this and this machine, else the source.

    Args:
        python: its version: ``3.11.2``.
        machine: the architecture as ``uname -m`` says it.
    """
    fitting = [file for file in offered if matches(file.name, name, version)]
    own = "cp" + "".join(python.split(".")[:2])
    wheels = [file for file in fitting if file.name.endswith(".whl")]
    pure = [file for file in wheels if any(tag.startswith("py3-none-any") for tag in tags(file.name))]
    native = [
        file
        for file in wheels
        for tag in tags(file.name)
        if tag.startswith((f"{own}-", "py3-none-")) and "linux" in tag and tag.endswith(machine)
    ]
    native += [file for file in wheels for tag in tags(file.name) if "-abi3-" in tag and "manylinux" in tag and tag.endswith(machine)]
    return next(iter([*pure, *native, *(file for file in fitting if is_source(file.name))]), None)


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        target = dict(attrs).get("href") or ""
        if tag == "base":
            self.base = self.base or target
        elif tag == "a" and target:
            self.found.append(target)


def offered(page: str, url: str, *, is_json: bool) -> tuple[File, ...]:
    """The files that a page of an index links to (PEP 503, or 691 where it is JSON).

    Raises:
        ValueError: it is no such page.
    """
    if is_json:
        entries = json.loads(page).get("files", ())
        return tuple(
            File(name=one["filename"], url=urljoin(url, one["url"]), sha256=one.get("hashes", {}).get("sha256", "")) for one in entries
        )
    anchors = _Anchors()
    anchors.feed(page)
    return tuple(_linked(urljoin(urljoin(url, anchors.base), target)) for target in anchors.found)


def _linked(target: str) -> File:
    place, fragment = urldefrag(target)
    digest = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else ""
    return File(name=unquote(urlsplit(place).path.rsplit("/", 1)[-1]), url=place, sha256=digest)
