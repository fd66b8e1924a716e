"""Decide whether another user could have written a configuration file. Pure.

A file that the user named on the command line is the user's decision. A file that was found by
searching, such as a ``toolkit.toml`` in a parent directory, is not: it is obeyed only if its owner
is root or the user, and if no other user can replace it or any directory on the way to it.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import NamedTuple


class Entry(NamedTuple):
    """A directory, symbolic link or file on the way to a configuration file.

    Attributes:
        path: physical path, without symbolic links in its directories.
        mode: ``st_mode``.
        uid: owner.
        gid: group.
        in_shared: the directory above may be written by other users; its sticky bit is set.
    """

    path: str
    mode: int
    uid: int
    gid: int
    in_shared: bool = False


class Reader(NamedTuple):
    """The user on whose behalf configuration is read.

    Attributes:
        uid: effective user id.
        is_private: whether a group has no members but this user and root.
        unmapped: in a user namespace, the id that stands for every user outside of it; else None.
        trusted: directories whose content the user trusts, regardless of the owner.
    """

    uid: int
    is_private: Callable[[int], bool]
    unmapped: int | None = None
    trusted: tuple[str, ...] = ()


class Distrust(NamedTuple):
    """The reason why a path is not trusted.

    Attributes:
        entry: the first entry that another user controls.
        writers: who may write to it: ``owner``, ``group`` or ``others``.
    """

    entry: Entry
    writers: str


def find_distrust(
    entries: Sequence[Entry],
    reader: Reader,
    *,
    own: bool = False,
) -> Distrust | None:
    """Return the first entry that another user controls, or None.

    Args:
        entries: from the root directory to the file, in the order of the walk.
        reader: the user who reads.
        own: the last entry must be the reader's; root's or a trusted directory will not do.
    """
    last = entries[-1]
    for entry in entries:
        if not (own and entry is last) and _is_exempt(entry.path, last.path, reader.trusted):
            continue
        writers = _foreign_writers(entry, reader, own=own and entry is last)
        if writers:
            return Distrust(entry, writers)
    return None


def _is_exempt(path: str, target: str, trusted: Sequence[str]) -> bool:
    """Return whether the entry is within a directory that the user trusts, or leads to one."""
    place = PurePath(path)
    return any(
        place.is_relative_to(directory)
        or (
            PurePath(directory).is_relative_to(place) and PurePath(target).is_relative_to(directory)
        )
        for directory in trusted
    )


def _foreign_writers(entry: Entry, reader: Reader, *, own: bool) -> str:
    if not _has_trusted_owner(entry, reader, own=own):
        return "owner"
    is_sticky = stat.S_ISDIR(entry.mode) and bool(entry.mode & stat.S_ISVTX)
    if stat.S_ISLNK(entry.mode) or (is_sticky and not own):
        return ""  # a link has no mode; in a sticky directory only owners replace entries
    if entry.mode & stat.S_IWOTH:
        return "others"
    return "group" if entry.mode & stat.S_IWGRP and not reader.is_private(entry.gid) else ""


def _has_trusted_owner(entry: Entry, reader: Reader, *, own: bool) -> bool:
    if entry.uid == reader.uid or (entry.uid == 0 and not own):
        return True
    # In a user namespace root's directories and another user's look alike. The way to a file may
    # be of either, unless any user could have put it there; the file itself may not.
    is_way = stat.S_ISDIR(entry.mode) or stat.S_ISLNK(entry.mode)
    return entry.uid == reader.unmapped and is_way and not entry.in_shared and not own
