"""The differences between two images: packages, labels, environment, files.

Pure: it works on lists and texts that its caller has read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from toolkit.model.base import Model

_LINE = re.compile(
    r"(?P<mode>[bcdlps-][rwxsStT-]{9}) (?P<owner>\S+)\s+(?P<size>\d+(?:,\s*\d+)?) "
    r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d) (?P<path>.*)"
)
_ROOT = "squashfs-root"


class Entry(Model, frozen=True, kw_only=True):
    """A file of an image, as ``unsquashfs -lls`` lists it.

    Attributes:
        mode: as ``ls`` writes it, with the kind of file first.
        size: in bytes; of a device, its numbers.
        target: the target of a symbolic link.
    """

    path: str
    mode: str
    owner: str
    size: str
    time: str
    target: str = ""


class Change(Model, frozen=True, kw_only=True):
    """One difference between two images.

    Attributes:
        kind: ``packages``, ``labels``, ``environment`` or ``files``.
        name: of the package, label, variable or file.
        before, after: its value; empty in an image that does not have it.
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
        uncompared: files whose contents could not be read on this machine.
    """

    identical: bool
    contents: bool | None
    changes: tuple[Change, ...] = ()
    times: int = 0
    uncompared: int = 0


def listing(text: str) -> dict[str, Entry]:
    """Parse the output of ``unsquashfs -lls`` into entries by path."""
    entries: dict[str, Entry] = {}
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
        entries[path] = Entry(
            path=path,
            mode=fields["mode"],
            owner=fields["owner"],
            size=fields["size"],
            time=fields["time"],
            target=target,
        )
    return entries


def alike(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> tuple[str, ...]:
    """Return the files that differ, if at all, in their contents only."""
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
    """Return the changed files and two counts: files that differ in time only, and unknown ones.

    Args:
        before: the entries of the first image.
        after: the entries of the second image.
        same: returns whether the contents of a file that is ``alike`` are the same; None: unknown.
    """
    changes: list[Change] = []
    times = unknown = 0
    candidates = set(alike(before, after))
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        was, now = _meta(old), _meta(new)
        equal = same(path) if path in candidates else True
        if was == now and equal is False:
            now = "other contents"
        if was != now:
            changes.append(Change(kind="files", name=path, before=was, after=now))
        elif old and new:
            unknown += equal is None
            times += old.time != new.time
    return changes, times, unknown


def _meta(entry: Entry | None) -> str:
    """Return the fields of an entry that are compared; empty if there is none.

    The size of a directory is left out: it is that of its list.
    """
    if entry is None:
        return ""
    size = "" if entry.mode.startswith("d") else f" {entry.size}"
    return f"{entry.mode} {entry.owner}{size}" + (f" -> {entry.target}" if entry.target else "")


def named(
    kind: Literal["packages", "labels", "environment"],
    before: Mapping[str, str],
    after: Mapping[str, str],
) -> list[Change]:
    """Return the changes between two mappings of names to values."""
    names = sorted({*before, *after})
    return [
        Change(kind=kind, name=name, before=before.get(name, ""), after=after.get(name, ""))
        for name in names
        if before.get(name) != after.get(name)
    ]


def variables(scripts: Iterable[str]) -> dict[str, str]:
    """Return the variables that environment scripts of an image set, unexpanded; the last wins."""
    values: dict[str, str] = {}
    for script in scripts:
        for line in script.splitlines():
            name, equals, value = line.strip().removeprefix("export ").partition("=")
            if equals and name.isidentifier():
                values[name] = value
    return values
