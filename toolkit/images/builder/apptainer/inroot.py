"""Resolve paths of an unpacked root file system from outside, as a process within it would.

An image decides where its symbolic links lead. Joining a path to the root and opening it lets an
absolute link, or one with enough ``..``, lead to a file of the host. These functions follow links
within the root only, as ``openat2(2)`` does with ``RESOLVE_IN_ROOT``, which kernels before 5.6
lack. No process of the image may run meanwhile: a link that changes between two look-ups is not
noticed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

_MAX_LINKS = 40  # as in Linux, path_resolution(7)


def resolve(root: str | Path, path: str) -> Path:
    """Return the target of `path` within `root`, without symbolic links below the root.

    Components that do not exist are unchanged, so that they can be made.

    Raises:
        OSError: There are too many symbolic links.
    """
    resolved: list[str] = []
    left = path.split("/")[::-1]
    links = 0
    while left:
        word = left.pop()
        if word in ("", "."):
            continue
        if word == "..":
            del resolved[-1:]
            continue
        target = _read_link(os.path.join(root, *resolved, word))  # noqa: PTH118
        if target is None:
            resolved.append(word)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        resolved = [] if target.startswith("/") else resolved
        left += target.split("/")[::-1]
    return Path(root, *resolved)


def _read_link(path: str) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return None


def is_below(root: str | Path, path: str) -> bool:
    """Return whether `path` can be reached in `root` without following a symbolic link."""
    return resolve(root, path) == Path(root, path.lstrip("/"))


def walk(directory: str) -> Iterator[str]:
    """Yield a directory and every path below it, as strings: there are tens of thousands."""
    yield directory
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from walk(entry.path)
            else:
                yield entry.path
