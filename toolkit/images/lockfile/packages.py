"""Files of Python packages: which one a package came from, and what an index offers. Pure."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import msgspec

from toolkit.images.recipe.names import is_file_name
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
        return (
            len(parts) in (5, 6)
            and normal(parts[0]) == normal(name)
            and _same_version(parts[1], version)
        )
    ending = next((one for one in _SOURCES if file.endswith(one)), None)
    if ending is None:
        return False
    found, _, has = file.removesuffix(ending).rpartition("-")
    return normal(found) == normal(name) and _same_version(has, version)


def tags(wheel: str) -> frozenset[str]:
    """All tags that a wheel's name stands for: ``py2.py3-none-any`` are two."""
    pythons, abis, platforms = (
        part.split(".") for part in wheel.removesuffix(".whl").split("-")[-3:]
    )
    return frozenset(
        f"{python}-{abi}-{platform}" for python in pythons for abi in abis for platform in platforms
    )


def origin(
    name: str, version: str, installed: Iterable[str], offered: Iterable[File]
) -> File | None:
    """The file that an installed package came from.

    Args:
        installed: the tags that the package has of its wheel.
        offered: what there is, what pip prefers first.

    Returns:
        The wheel with just these tags; else the source, from which such a wheel was made; None: neither is there.
    """
    fitting = [file for file in offered if matches(file.name, name, version)]
    wanted = frozenset(installed)
    wheel = next(
        (file for file in fitting if file.name.endswith(".whl") and tags(file.name) == wanted), None
    )
    return wheel or next((file for file in fitting if is_source(file.name)), None)


def for_python(
    name: str,
    version: str,
    python: str,
    machine: str,
    offered: Iterable[File],
    glibc: tuple[int, int] | None = None,
) -> File | None:
    """Return a package's file for a Python: a pure wheel, the best native one, or the source.

    Args:
        name, version: of the package.
        python: its version: ``3.11.2``.
        machine: the architecture as ``uname -m`` says it.
        offered: what there is, what pip prefers first.
        glibc: the version of the C library; None: unknown, so any is taken to do.
    """
    fitting = [file for file in offered if matches(file.name, name, version)]
    wheels = [file for file in fitting if file.name.endswith(".whl")]
    ranks = _ranks(python, machine, glibc or _NEWEST_GLIBC)
    pure = [file for file in wheels if _PURE in tags(file.name)]
    native = sorted(
        (file for file in wheels if _rank(file, ranks) is not None),
        key=lambda file: _rank(file, ranks) or 0,
    )
    return next(iter([*pure, *native, *(file for file in fitting if is_source(file.name))]), None)


_PURE = "py3-none-any"
_NEWEST_GLIBC = (2, 99)


def _ranks(python: str, machine: str, glibc: tuple[int, int]) -> dict[str, int]:
    """Return every tag that a Python takes, the best first, as ``packaging`` has them for pip."""
    found = re.match(r"(\d{1,2})\.(\d{1,3})", python)
    if not found:
        return {}
    from packaging.tags import compatible_tags, cpython_tags  # most commands choose no wheels

    own, interpreter = (int(found[1]), int(found[2])), f"cp{found[1]}{found[2]}"
    platforms = list(_platforms(machine, glibc))
    native = cpython_tags(own, abis=[interpreter], platforms=platforms)
    every = (*native, *compatible_tags(own, interpreter, platforms))
    return {str(tag): rank for rank, tag in reversed(list(enumerate(every)))}


def _platforms(machine: str, glibc: tuple[int, int]) -> Iterator[str]:
    """Yield what wheels call this machine with this C library, or an older one (PEP 600)."""
    aliases = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    for minor in range(glibc[1], 4, -1):
        yield f"manylinux_{glibc[0]}_{minor}_{machine}"
        if minor in aliases:
            yield f"{aliases[minor]}_{machine}"
    yield f"linux_{machine}"


def _rank(file: File, ranks: dict[str, int]) -> int | None:
    return min((ranks[tag] for tag in tags(file.name) if tag in ranks), default=None)


class _Entry(msgspec.Struct):
    """A file on a page in JSON."""

    filename: str
    url: str
    hashes: dict[str, str] = {}


class _Page(msgspec.Struct):
    """A page in JSON."""

    files: list[_Entry]


def offered(page: str, url: str, *, is_json: bool) -> tuple[File, ...]:
    """Return the files that a page of an index links to (PEP 503, or 691 where it is JSON).

    What cannot be the name of a package's file is left out, and so are files of this machine on a
    page of another.

    Raises:
        ValueError: it is no such page.
    """
    found = _of_json(page, url) if is_json else _of_html(page, url)
    local = urlsplit(url).scheme in ("", "file")
    return tuple(
        file
        for file in found
        if is_file_name(file.name) and (local or urlsplit(file.url).scheme in ("http", "https"))
    )


def _of_json(page: str, url: str) -> Iterator[File]:
    try:
        entries = msgspec.json.decode(page, type=_Page).files
    except RecursionError as error:
        raise ValueError(str(error)) from None
    for one in entries:
        target = _joined(url, one.url)
        if target:
            yield File(name=one.filename, url=target, sha256=one.hashes.get("sha256", ""))


# A tag up to the next one, and its link. Python's own parser takes minutes for some kilobytes of
# "<a ".
_TAG = re.compile(r"<(?P<tag>a|base)\s(?P<rest>[^<]*)", re.IGNORECASE)
_LINK = re.compile(
    r"(?<![\w-])href\s{0,8}=\s{0,8}(?:\"(?P<two>[^\"]*)\"|'(?P<one>[^']*)'|(?P<bare>[^\s>\"']+))",
    re.IGNORECASE,
)
_LONGEST_TAG = 8192


def _of_html(page: str, url: str) -> Iterator[File]:
    for tag in _TAG.finditer(page):
        link = _LINK.search(tag["rest"][:_LONGEST_TAG])
        target = (
            _joined(url, html.unescape(link["two"] or link["one"] or link["bare"] or ""))
            if link
            else ""
        )
        if target and tag["tag"].lower() == "base":
            url = target
        elif target:
            yield _linked(target)


def _joined(url: str, target: str) -> str:
    """Return where a link leads; empty where it is no URL."""
    try:
        joined = urljoin(url, target) if target else ""
        urlsplit(joined)
    except ValueError:
        return ""
    return joined


def _linked(target: str) -> File:
    place, fragment = urldefrag(target)
    digest = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else ""
    return File(name=unquote(urlsplit(place).path.rsplit("/", 1)[-1]), url=place, sha256=digest)
