"""Compare two images: packages, labels, environment, files. Pure: works on what others have listed and read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from toolkit.model.base import Model

_LINE = re.compile(
    r"(?P<mode>[bcdlps-][rwxsStT-]{9}) (?P<owner>\S+)\s+(?P<size>\d+(?:,\s*\d+)?) (?P<time>\d{4}-\d\d-\d\d \d\d:\d\d) (?P<path>.*)"
)
_ROOT = "squashfs-root"
_WHITEOUT = re.compile(r"0,\s*0")


class Entry(Model, frozen=True, kw_only=True):
    """A file of an image, as ``unsquashfs -lls`` says it.

    Attributes:
        mode: as ``ls`` writes it, with the kind of file first.
        size: in bytes; of a device, its numbers.
        target: where a symbolic link leads.
        part: which of the image's file systems it is from, the lowest first.
    """

    path: str
    mode: str
    owner: str
    size: str
    time: str
    target: str = ""
    part: int = 0


class Change(Model, frozen=True, kw_only=True):
    """One thing that is not the same in both images.

    Attributes:
        kind: ``packages``, ``labels``, ``environment`` or ``files``.
        name: which.
        before, after: what it is; empty where it is not there.
    """

    kind: Literal["packages", "labels", "environment", "files"]
    name: str
    before: str
    after: str


class Difference(Model, frozen=True, kw_only=True):
    """The differences between two images.

    Attributes:
        identical: their file systems are the same in every byte.
        contents: every file is the same but for times; None: contents were not compared.
        times: how many files differ in nothing but their time.
        uncompared: files whose contents could not be read here.
    """

    identical: bool
    contents: bool | None
    changes: tuple[Change, ...] = ()
    times: int = 0
    uncompared: int = 0


def listing(text: str, part: int = 0) -> dict[str, Entry]:
    """What ``unsquashfs -lls`` said, by path."""
    found: dict[str, Entry] = {}
    for line in text.splitlines():
        fields = _LINE.fullmatch(line)
        if not fields or not (fields["path"] == _ROOT or fields["path"].startswith(f"{_ROOT}/")):
            continue
        path, _, target = (
            fields["path"].partition(" -> ")
            if fields["mode"].startswith("l")
            else (fields["path"], "", "")
        )
        path = path[len(_ROOT) :] or "/"
        found[path] = Entry(
            path=path,
            mode=fields["mode"],
            owner=fields["owner"],
            size=fields["size"],
            time=fields["time"],
            target=target,
            part=part,
        )
    return found


def merged(listings: Iterable[dict[str, Entry]]) -> dict[str, Entry]:
    """What is seen of file systems on top of each other, the lowest first: a device 0:0 hides what is below."""
    seen: dict[str, Entry] = {}
    for one in listings:
        for path, entry in one.items():
            if entry.mode.startswith("c") and _WHITEOUT.fullmatch(entry.size):
                seen = {
                    known: value
                    for known, value in seen.items()
                    if known != path and not known.startswith(f"{path}/")
                }
            else:
                seen[path] = entry
    return seen


def alike(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> tuple[str, ...]:
    """The files of which only their contents can tell whether they are the same."""
    return tuple(
        path
        for path, entry in before.items()
        if entry.mode.startswith("-")
        and (other := after.get(path))
        and other.mode[0] == "-"
        and other.size == entry.size
        and entry.size != "0"
    )


def files(
    before: Mapping[str, Entry], after: Mapping[str, Entry], same: Callable[[str], bool | None]
) -> tuple[list[Change], int, int]:
    """Changed files, how many differ in time only, and of how many it is not known.

    Args:
        same: whether the contents of a file that is ``alike`` are the same; None: it cannot be told.
    """
    changes: list[Change] = []
    times = unknown = 0
    candidates = set(alike(before, after))
    for path in sorted({*before, *after}):
        one, other = before.get(path), after.get(path)
        if one is None or other is None:
            changes.append(
                Change(kind="files", name=path, before=_spoken(one), after=_spoken(other))
            )
            continue
        was, now = _meta(one), _meta(other)
        equal = same(path) if path in candidates else True
        if was != now:
            changes.append(Change(kind="files", name=path, before=was, after=now))
        elif equal is False:
            changes.append(Change(kind="files", name=path, before=was, after="other contents"))
        else:
            unknown += equal is None
            times += one.time != other.time
    return changes, times, unknown


def _spoken(entry: Entry | None) -> str:
    return _meta(entry) if entry else ""


def _meta(entry: Entry) -> str:
    """What is compared of an entry; the size of a directory is that of its list."""
    size = "" if entry.mode.startswith("d") else f" {entry.size}"
    return f"{entry.mode} {entry.owner}{size}" + (f" -> {entry.target}" if entry.target else "")


def named(
    kind: Literal["packages", "labels", "environment"],
    before: Mapping[str, str],
    after: Mapping[str, str],
) -> list[Change]:
    """What differs of things that have names."""
    names = sorted({*before, *after})
    return [
        Change(kind=kind, name=name, before=before.get(name, ""), after=after.get(name, ""))
        for name in names
        if before.get(name) != after.get(name)
    ]


def variables(scripts: Iterable[str]) -> dict[str, str]:
    """What the environment scripts of an image set, as they write it; the last word counts."""
    found: dict[str, str] = {}
    for script in scripts:
        for line in script.splitlines():
            name, equals, value = line.strip().removeprefix("export ").partition("=")
            if equals and name.isidentifier():
                found[name] = value
    return found
