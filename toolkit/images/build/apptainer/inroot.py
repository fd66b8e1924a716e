"""Resolve paths inside an unpacked root file system from outside, as a process would whose root directory it is.

An image decides where its symbolic links lead. Joining a path to the root and opening it lets an
absolute link, or one with enough ``..``, lead to a file of the host. These functions follow links
within the root only, as ``openat2(2)`` does with ``RESOLVE_IN_ROOT``, which kernels before 5.6
lack. No process of the image may run meanwhile: a link that is changed between two look-ups is not
noticed.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

_MOST_LINKS = 40  # as in Linux, path_resolution(7)


def resolve(root: str | Path, path: str) -> Path:
    """Return where `path` leads within `root`, with no symbolic link in any component below it.

    Components that do not exist are kept as they are, so that they can be made there.

    Raises:
        OSError: there are too many symbolic links.
    """
    found: list[str] = []
    left = path.split("/")[::-1]
    links = 0
    while left:
        word = left.pop()
        if word in ("", "."):
            continue
        if word == "..":
            del found[-1:]
            continue
        target = _link(os.path.join(root, *found, word))  # noqa: PTH118
        if target is None:
            found.append(word)
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        found = [] if target.startswith("/") else found
        left += target.split("/")[::-1]
    return Path(root, *found)


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return None


def is_below(root: str | Path, path: str) -> bool:
    """Return whether `path` can be reached in `root` without following a symbolic link."""
    return resolve(root, path) == Path(root, path.lstrip("/"))
