"""Files of Python packages: parse pages of indexes, and find the file of a package. Pure."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import msgspec

from toolkit.images.recipe.names import is_file_name, normalize_name
from toolkit.model.base import Model

_SOURCES = (".tar.gz", ".zip", ".tar.bz2")


class File(Model, frozen=True, kw_only=True):
    """A file of a package and its URL. ``sha256`` is empty if the index does not give it."""

    name: str
    url: str
    sha256: str = ""


def is_source(file: str) -> bool:
    """Return whether a file is the source of a package."""
    return file.endswith(_SOURCES)


def matches(file: str, name: str, version: str) -> bool:
    """Return whether a file is a wheel or the source of this version of this package."""
    from packaging.utils import parse_sdist_filename, parse_wheel_filename
    from packaging.version import Version

    try:
        if file.endswith(".whl"):
            file_name, file_version = parse_wheel_filename(file)[:2]
        else:  # packaging refuses .tar.bz2, which old releases on PyPI are
            file_name, file_version = parse_sdist_filename(re.sub(r"\.tar\.bz2\Z", ".zip", file))
        return file_name == normalize_name(name) and file_version == Version(version)
    except ValueError:  # a name or version from before PEP 440, as pytz 2004d; or no package at all
        return _matches_text(file, name, version)


def _matches_text(file: str, name: str, version: str) -> bool:
    """Return whether a file that `packaging` cannot parse has this name and version in its name."""
    ending = next((ending for ending in (".whl", *_SOURCES) if file.endswith(ending)), None)
    if ending is None:
        return False
    stem = file.removesuffix(ending)
    if ending == ".whl":
        parts = stem.split("-")
        if len(parts) not in (5, 6):
            return False
        file_name, file_version = parts[:2]
    else:
        file_name, _, file_version = stem.rpartition("-")
    return normalize_name(file_name) == normalize_name(name) and normalize_name(
        file_version.removeprefix("v")
    ) == normalize_name(version.removeprefix("v"))


def parse_tags(wheel: str) -> frozenset[str]:
    """Return the tags that the name of a wheel stands for: ``py2.py3-none-any`` are two."""
    from packaging.tags import parse_tag

    return frozenset(map(str, parse_tag("-".join(wheel.removesuffix(".whl").split("-")[-3:]))))


def find_origin(
    name: str, version: str, installed: Iterable[str], offered: Iterable[File]
) -> File | None:
    """Return the file that an installed package came from.

    Args:
        name, version: of the package.
        installed: the tags in the metadata of the installed wheel.
        offered: the files of indexes; those that pip prefers come first.

    Returns:
        The wheel with exactly these tags, else the source, from which such a wheel was built.
        None if there is neither.
    """
    fitting = [file for file in offered if matches(file.name, name, version)]
    wanted = frozenset(map(str.lower, installed))
    wheel = next(
        (
            file
            for file in fitting
            if file.name.endswith(".whl") and parse_tags(file.name) == wanted
        ),
        None,
    )
    return wheel or next((file for file in fitting if is_source(file.name)), None)


def choose_file(
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
        python: the version of Python: ``3.11.2``.
        machine: the architecture as ``uname -m`` writes it.
        offered: the files of indexes; those that pip prefers come first.
        glibc: the version of the C library; None: unknown, so every wheel is taken to fit.
    """
    fitting = [file for file in offered if matches(file.name, name, version)]
    wheels = [file for file in fitting if file.name.endswith(".whl")]
    ranks = _ranks(python, machine, glibc or _NEWEST_GLIBC)
    pure = [file for file in wheels if _PURE in parse_tags(file.name)]
    native = sorted(
        (file for file in wheels if _rank(file, ranks) is not None),
        key=lambda file: _rank(file, ranks) or 0,
    )
    return next(iter([*pure, *native, *(file for file in fitting if is_source(file.name))]), None)


_PURE = "py3-none-any"
_NEWEST_GLIBC = (2, 99)


def _ranks(python: str, machine: str, glibc: tuple[int, int]) -> dict[str, int]:
    """Return the rank of every tag that a Python accepts, in pip's order; 0 is the best."""
    numbers = re.match(r"(\d{1,2})\.(\d{1,3})", python)
    if not numbers:
        return {}
    from packaging.tags import compatible_tags, cpython_tags  # most commands choose no wheels

    own, interpreter = (int(numbers[1]), int(numbers[2])), f"cp{numbers[1]}{numbers[2]}"
    platforms = list(_platforms(machine, glibc))
    native = cpython_tags(own, abis=[interpreter], platforms=platforms)
    every = (*native, *compatible_tags(own, interpreter, platforms))
    return {str(tag): rank for rank, tag in reversed(list(enumerate(every)))}


def _platforms(machine: str, glibc: tuple[int, int]) -> Iterator[str]:
    """Yield the platform tags of this machine with this C library or an older one (PEP 600)."""
    aliases = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    for minor in range(glibc[1], 4, -1):
        yield f"manylinux_{glibc[0]}_{minor}_{machine}"
        if minor in aliases:
            yield f"{aliases[minor]}_{machine}"
    yield f"linux_{machine}"


def _rank(file: File, ranks: dict[str, int]) -> int | None:
    return min((ranks[tag] for tag in parse_tags(file.name) if tag in ranks), default=None)


class _Entry(msgspec.Struct):
    """A file on a page in JSON."""

    filename: str
    url: str
    hashes: dict[str, str] = {}


class _Page(msgspec.Struct):
    """A page in JSON."""

    files: list[_Entry]


def parse_page(page: str, url: str, *, is_json: bool) -> tuple[File, ...]:
    """Return the files that a page of an index links to (PEP 503, or 691 where it is JSON).

    Links that are not the name of a package's file are left out, and so are files of this machine
    on a page of another.

    Raises:
        ValueError: the text is not such a page.
    """
    files = _parse_json(page, url) if is_json else _parse_html(page, url)
    local = urlsplit(url).scheme in ("", "file")
    return tuple(
        file
        for file in files
        if is_file_name(file.name) and (local or urlsplit(file.url).scheme in ("http", "https"))
    )


def _parse_json(page: str, url: str) -> Iterator[File]:
    try:
        entries = msgspec.json.decode(page, type=_Page).files
    except RecursionError as error:
        raise ValueError(str(error)) from None
    for entry in entries:
        target = _joined(url, entry.url)
        if target:
            yield File(name=entry.filename, url=target, sha256=entry.hashes.get("sha256", ""))


# A tag up to the next one, and its link. Python's own parser takes minutes for some kilobytes of
# "<a ".
_TAG = re.compile(r"<(?P<tag>a|base)\s(?P<rest>[^<]*)", re.IGNORECASE)
_LINK = re.compile(
    r"(?<![\w-])href\s{0,8}=\s{0,8}(?:\"(?P<two>[^\"]*)\"|'(?P<one>[^']*)'|(?P<bare>[^\s>\"']+))",
    re.IGNORECASE,
)
_LONGEST_TAG = 8192


def _parse_html(page: str, url: str) -> Iterator[File]:
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
    """Return the URL that a link leads to; empty if it is not a URL."""
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
