"""Comparison of two images: packages, labels, environment and files.

``unsquashfs`` lists their file systems, and unpacks them where only the contents show a difference.
"""

from __future__ import annotations

import filecmp
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, NamedTuple

from toolkit import shell
from toolkit.errors import BuildError
from toolkit.images.host.workspace import require_space, workspace
from toolkit.images.recipe.recipe import Space
from toolkit.images.sif.header import PARTITION
from toolkit.images.store import store
from toolkit.images.store.contents import read_contents
from toolkit.images.store.settings import inspect
from toolkit.images.store.sif_files import partition_digest, read_descriptors
from toolkit.model.base import Model
from toolkit.model.image import Packages

Kind = Literal["packages", "labels", "environment", "files"]
_PATIENCE = 3600.0  # seconds
_LINE = re.compile(
    r"(?P<mode>[bcdlps-][rwxsStT-]{9}) (?P<owner>\S+)\s+(?P<size>\d+(?:,\s*\d+)?) "
    r"\d{4}-\d\d-\d\d \d\d:\d\d squashfs-root(?P<path>/.*|)"
)


class Entry(NamedTuple):
    """A file of an image, as ``unsquashfs -lls`` lists it.

    Attributes:
        facts: all that is compared: mode, owner and size, but for directories, whose size is that
            of their lists; and the target of a symbolic link.
        size: in bytes, of a regular file; else 0.
    """

    facts: str
    size: int


class Change(Model, frozen=True, kw_only=True):
    """One difference between two images.

    Attributes:
        kind: of what differs.
        name: of the package, label, variable or file.
        before, after: its value; empty in an image that does not have it.
    """

    kind: Kind
    name: str
    before: str
    after: str


class Difference(Model, frozen=True, kw_only=True):
    """The differences between two images.

    Attributes:
        identical: their file systems are the same in every byte.
        contents: contents of files were compared, too.
    """

    identical: bool
    contents: bool = True
    changes: tuple[Change, ...] = ()


def compare(
    first: store.StoredImage, second: store.StoredImage, *, read: bool = True
) -> Difference:
    """Compare two images.

    Args:
        first: the image that is compared from.
        second: the image that is compared to.
        read: also compare the contents of files of the same size; else their directory entries
            only.

    Raises:
        NeedsInstallError: unsquashfs or Apptainer is not installed.
        BuildError: an image cannot be read.
        NoSpaceError: there is no room to unpack both.
    """
    before, after = Path(first.path), Path(second.path)
    if partition_digest(before) == partition_digest(after):
        return Difference(identical=True)
    changes = compare_values("packages", _packages(first), _packages(second))
    was, now = inspect(before), inspect(after)
    changes += compare_values("labels", was["labels"], now["labels"])
    scripts = (variables(each["environment"].values()) for each in (was, now))
    changes += compare_values("environment", *scripts)
    entries = (_list_files(before), _list_files(after))
    with ExitStack() as stack:
        differs = _unpack(before, after, entries, stack) if read else lambda _: ""
        changes += compare_files(*entries, differs)
    return Difference(identical=False, contents=read, changes=tuple(changes))


def _unpack(
    before: Path, after: Path, entries: Iterable[Mapping[str, Entry]], stack: ExitStack
) -> Callable[[str], str]:
    """Unpack two images until the stack ends, and return what compares the contents of a file."""
    images = store.images_directory()
    images.mkdir(parents=True, exist_ok=True)
    size = sum(entry.size for listed in entries for entry in listed.values())
    require_space(images, Space(image=0, build=size // 10**6 + 1))
    place = stack.enter_context(workspace(images)).scratch
    for path, name in ((before, "before"), (after, "after")):
        # Files that this user may not create, such as devices, are left out.
        _unsquashfs(path, "-q", "-n", "-no-xattrs", "-d", place / name)

    def differs(name: str) -> str:
        try:
            same = filecmp.cmp(f"{place}/before{name}", f"{place}/after{name}", shallow=False)
        except OSError as error:
            return f"contents not compared: {error.strerror}"
        return "" if same else "other contents"

    return differs


def _packages(image: store.StoredImage) -> dict[str, str]:
    """Return the packages in the manifest; if it has none, read them from the image."""
    known = image.manifest.packages if image.manifest else Packages()
    if not known.apt and not known.pip:
        known = read_contents(image.path).packages
    return {**known.apt, **{f"{name} (pip)": version for name, version in known.pip.items()}}


def _unsquashfs(path: Path, *options: str | Path) -> shell.Result:
    """Run unsquashfs on the file system of an image.

    Raises:
        BuildError: the image has none, or several on top of each other.
    """
    systems = [each for each in read_descriptors(path) if each.data_type == PARTITION]
    if len(systems) != 1:
        raise BuildError(f"the image has {len(systems)} file systems, not one", place=str(path))
    words = ["unsquashfs", *options, "-o", str(systems[0].offset)]
    environment = {**os.environ, "TZ": "UTC", "LC_ALL": "C.UTF-8"}
    return shell.run([*words, path], env=environment, check=False, timeout=_PATIENCE)


def _list_files(path: Path) -> dict[str, Entry]:
    answer = _unsquashfs(path, "-lls")
    entries = parse_listing(answer.stdout)
    if not entries:
        reason = "the image's file system cannot be listed"
        raise BuildError(reason, place=str(path), details=answer.tail(3))
    return entries


def parse_listing(text: str) -> dict[str, Entry]:
    """Parse the output of ``unsquashfs -lls`` into entries by path."""
    entries: dict[str, Entry] = {}
    for fields in filter(None, map(_LINE.fullmatch, text.splitlines())):
        mode, path, arrow = fields["mode"], fields["path"], ""
        facts = f"{mode} {fields['owner']}"
        if mode[0] != "d":
            facts += f" {fields['size']}"
        if mode[0] == "l":
            path, arrow, target = path.partition(" -> ")
            facts += f"{arrow}{target}"
        size = int(fields["size"]) if mode[0] == "-" else 0
        entries[path or "/"] = Entry(facts, size)
    return entries


def compare_files(
    before: Mapping[str, Entry], after: Mapping[str, Entry], differs: Callable[[str], str]
) -> list[Change]:
    """Return the changed files.

    Args:
        before: the entries of the first image.
        after: the entries of the second image.
        differs: returns how the contents of a file that is in both with the same size differ.
    """
    changes: list[Change] = []
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        was, now = old.facts if old else "", new.facts if new else ""
        if old and new and was == now and old.size:
            now = differs(path) or now
        if was != now:
            changes.append(Change(kind="files", name=path, before=was, after=now))
    return changes


def compare_values(kind: Kind, before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    """Return the changes between two mappings of names to values."""
    return [
        Change(kind=kind, name=name, before=before.get(name, ""), after=after.get(name, ""))
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]


def variables(scripts: Iterable[str]) -> dict[str, str]:
    """Return the variables that environment scripts of an image set, unexpanded; the last wins."""
    lines = (line.strip().removeprefix("export ") for text in scripts for line in text.splitlines())
    pairs = (line.partition("=") for line in lines)
    return {name: value for name, equals, value in pairs if equals and name.isidentifier()}
