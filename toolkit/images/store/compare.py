"""Comparison of two images.

``unsquashfs`` lists their file systems, and unpacks them where only the contents show a difference.
"""

from __future__ import annotations

import filecmp
import os
from collections.abc import Mapping
from functools import partial
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
    files,
    listing,
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
    if not read:
        changed, times, unknown = files(before, after, lambda _: None)
        contents = None
    else:
        images = store.images_directory()
        images.mkdir(parents=True, exist_ok=True)
        megabytes = sum(_bytes(entries) for entries in (before, after)) // 10**6 + 1
        require_space(images, Space(image=0, build=megabytes))
        with workspace(images) as place:
            old, new = (
                _unpacked(path, place.scratch / f"{number}") for number, path in enumerate(paths)
            )
            changed, times, unknown = files(before, after, partial(_same, old, new))
        contents = not changed and not unknown
    return Difference(
        identical=False,
        contents=contents,
        changes=(*changes, *changed),
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


def _entries(path: Path) -> dict[str, Entry]:
    answer = _unsquashfs(path, "-lls")
    entries = listing(answer.stdout)
    if not entries:
        raise BuildError(
            "the image's file system cannot be listed", place=str(path), details=answer.tail(3)
        )
    return entries


def _bytes(entries: Mapping[str, Entry]) -> int:
    return sum(int(entry.size) for entry in entries.values() if entry.mode.startswith("-"))


def _unpacked(path: Path, root: Path) -> Path:
    """Unpack an image; files that this user may not create, such as devices, are left out."""
    _unsquashfs(path, "-q", "-n", "-no-xattrs", "-d", root)
    return root


def _same(old: Path, new: Path, path: str) -> bool | None:
    inner = path.lstrip("/")
    try:
        return filecmp.cmp(old / inner, new / inner, shallow=False)
    except OSError:
        return None
