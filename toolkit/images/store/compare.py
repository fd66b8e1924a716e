"""Comparison of two images.

``unsquashfs`` lists their file systems, and unpacks them where only the contents show a difference.
"""

from __future__ import annotations

import filecmp
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from toolkit import shell
from toolkit.errors import BuildError
from toolkit.images.host.workspace import require_space, workspace
from toolkit.images.recipe.recipe import Space
from toolkit.images.sif.header import PARTITION
from toolkit.images.store import store
from toolkit.images.store.contents import read_contents
from toolkit.images.store.diff import (
    Change,
    Difference,
    Entry,
    alike,
    files,
    listing,
    merged,
    named,
    variables,
)
from toolkit.images.store.settings import inspect
from toolkit.images.store.sif_files import partition_digest, read_descriptors
from toolkit.images.store.store import StoredImage
from toolkit.model.image import Packages

_PATIENCE = 3600.0  # seconds


def compare(first: StoredImage, second: StoredImage, *, read: bool = True) -> Difference:
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
    paths = (Path(first.path), Path(second.path))
    if partition_digest(paths[0]) == partition_digest(paths[1]):
        return Difference(identical=True, contents=True)
    changes = [*_packages(first, second), *_metadata_changes(*paths)]
    before, after = (_entries(path) for path in paths)
    candidates = alike(before, after)
    if not read:
        changed_files, times, _ = files(before, after, lambda _: None)
        return Difference(
            identical=False,
            contents=None,
            changes=(*changes, *changed_files),
            times=times,
            uncompared=len(candidates),
        )
    store.images_directory().mkdir(parents=True, exist_ok=True)
    megabytes = sum(_bytes(entries) for entries in (before, after)) // 10**6 + 1
    require_space(store.images_directory(), Space(image=0, build=megabytes))
    with workspace(store.images_directory()) as place:
        roots = tuple(
            _unpacked(path, place.scratch / str(number)) for number, path in enumerate(paths)
        )
        changed_files, times, unknown = files(before, after, _same(before, after, *roots))
    same = not changed_files and not unknown
    return Difference(
        identical=False,
        contents=same,
        changes=(*changes, *changed_files),
        times=times,
        uncompared=unknown,
    )


def _packages(first: StoredImage, second: StoredImage) -> list[Change]:
    before, after = (_known(image) for image in (first, second))
    return [
        *named("packages", before.apt, after.apt),
        *named("packages", _python(before), _python(after)),
    ]


def _python(packages: Packages) -> dict[str, str]:
    return {f"{name} (pip)": version for name, version in packages.pip.items()}


def _known(image: StoredImage) -> Packages:
    """Return the packages in the manifest.

    If there is none, or an older one without them, read them from the image.
    """
    known = image.manifest.packages if image.manifest else Packages()
    return known if known.apt or known.pip else read_contents(image.path).packages


def _metadata_changes(before: Path, after: Path) -> list[Change]:
    """Return the changed labels and environment variables."""
    was, now = inspect(before), inspect(after)
    scripts = (variables(metadata["environment"].values()) for metadata in (was, now))
    return [*named("labels", was["labels"], now["labels"]), *named("environment", *scripts)]


def _offsets(path: Path) -> list[int]:
    return [
        descriptor.offset
        for descriptor in read_descriptors(path)
        if descriptor.data_type == PARTITION
    ]


def _entries(path: Path) -> dict[str, Entry]:
    listings = []
    for part, offset in enumerate(_offsets(path)):
        environment = {**os.environ, "TZ": "UTC", "LC_ALL": "C.UTF-8"}
        answer = shell.run(
            ["unsquashfs", "-lls", "-o", str(offset), path],
            env=environment,
            check=False,
            timeout=_PATIENCE,
        )
        entries = listing(answer.stdout, part)
        if not entries:
            raise BuildError(
                "the image's file system cannot be listed", place=str(path), details=answer.tail(3)
            )
        listings.append(entries)
    return merged(listings)


def _bytes(entries: Mapping[str, Entry]) -> int:
    return sum(int(entry.size) for entry in entries.values() if entry.mode.startswith("-"))


def _unpacked(path: Path, target: Path) -> list[Path]:
    """Unpack the file systems of an image, each into its own directory.

    Files that this user may not create, such as devices, are left out.
    """
    roots = []
    for part, offset in enumerate(_offsets(path)):
        root = target / str(part)
        root.parent.mkdir(exist_ok=True)
        shell.run(
            ["unsquashfs", "-q", "-n", "-no-xattrs", "-o", str(offset), "-d", root, path],
            check=False,
            timeout=_PATIENCE,
        )
        roots.append(root)
    return roots


def _same(
    before: Mapping[str, Entry], after: Mapping[str, Entry], roots: list[Path], others: list[Path]
) -> Callable[[str], bool | None]:
    def same(path: str) -> bool | None:
        try:
            old = roots[before[path].part] / path.lstrip("/")
            new = others[after[path].part] / path.lstrip("/")
            return filecmp.cmp(old, new, shallow=False)
        except OSError:
            return None

    return same
