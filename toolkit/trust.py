"""Decide whether another user wrote what would be obeyed, or can exchange it.

The rule is that of OpenSSH's StrictModes. It holds for settings that were found by searching, for
runs, and for private directories. What users name on the command line is their own decision.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from toolkit.errors import UntrustedError, UsageError
from toolkit.quoting import shell

VARIABLE = "TOOLKIT_TRUST"
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # root's on every machine


def require_trusted(path: Path, *, must_exist: bool = False) -> None:
    """Check that no other user wrote what is at a path, can write to it or can exchange it.

    The way is examined from the root directory on, as the kernel goes it: each directory, each
    symbolic link, and the way to where a link leads. Behind a directory that has passed, only root
    and the user exchange entries. So the path leads to what was examined afterwards, too, even for
    a job hours later.

    Args:
        path: of a file or directory. If it does not exist, the existing part of the way is
            examined. Examine it again once it is created: in a directory such as /tmp, another user
            may have been faster.
        must_exist: it is read next, so that its absence is an error: another user may make it now.

    Raises:
        UntrustedError: another user controls a directory, link or file on the way; the first one.
        UsageError: TOOLKIT_TRUST has a relative path, which would trust another directory in each.
        OSError: the path cannot be followed.
    """
    path = Path.cwd() / path
    with suppress(FileNotFoundError, PermissionError):  # the kernel may refuse links of others
        path.stat()  # links in a circle are an error here
    target = Path(os.path.realpath(path))
    trusted = [*_trusted()]
    for entry in _way(path):
        place = Path(os.path.realpath(entry.parent), entry.name)
        if any(
            place.is_relative_to(each)
            or (each.is_relative_to(place) and target.is_relative_to(each))
            for each in trusted
        ):
            continue
        try:
            status = entry.lstat()
        except FileNotFoundError:
            if must_exist:
                raise
            return
        writers = _foreign_writers(place, status, is_way=place != target)
        if writers:
            raise _error(path, target, place, status, writers)


def _trusted() -> Iterator[Path]:
    for text in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        directory = os.path.expanduser(text)  # noqa: PTH111 - pathlib fails on unknown users
        if not directory.startswith("/"):
            raise UsageError(
                f"{text!r} is not an absolute path",
                place=VARIABLE,
                next_step=f"export {VARIABLE}=/DIR:/OTHER",
            )
        yield Path(os.path.realpath(directory))


def _way(path: Path) -> Iterator[Path]:
    for entry in (*reversed(path.parents), path):
        yield entry
        if entry.is_symlink():
            yield from _way(entry.parent / entry.readlink())


def _foreign_writers(place: Path, status: os.stat_result, *, is_way: bool) -> str:
    """Return who else can exchange an entry: "owner", "group", "others", or "" for no user."""
    is_ours = status.st_uid in (0, os.geteuid())
    # In a user namespace, root's directories look like those of other users. They may lead to what
    # is the user's own, unless they lie where others could have put them.
    is_hidden = is_way and status.st_uid == Path("/").stat().st_uid
    if not is_ours and (not is_hidden or place.parent.stat().st_mode & 0o022):
        return "owner"
    is_sticky = status.st_mode & stat.S_ISVTX and (is_ours or str(place) in _TEMPORARY)
    if stat.S_ISLNK(status.st_mode) or (is_way and is_sticky):
        return ""  # a link has no mode; in a sticky directory only owners exchange entries
    if status.st_mode & stat.S_IWOTH:
        return "others"
    return "group" if status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid) else ""


def _is_private(gid: int) -> bool:
    """Return whether a group is the user's own (useradd(8)) or root's, without other members.

    Members are only those that the group lists: to find all users whose first group it is would
    mean to read the whole directory of a site.
    """
    try:
        group, name = grp.getgrgid(gid), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return (gid == 0 or group.gr_name == name) and set(group.gr_mem) <= {name, "root"}


def _error(
    path: Path, target: Path, place: Path, status: os.stat_result, writers: str
) -> UntrustedError:
    what = "it" if place == path else str(place)
    causes = {
        "owner": f"{what} belongs to user {_name(pwd.getpwuid, status.st_uid)}",
        "group": f"the members of group {_name(grp.getgrgid, status.st_gid)} can write to {what}",
        "others": f"every user of this machine can write to {what}",
    }
    is_project = writers == "group" and stat.S_ISDIR(status.st_mode)
    around = (place if stat.S_ISLNK(status.st_mode) else target).parent
    directory = place if is_project else around
    before = f'"${VARIABLE}":' if os.environ.get(VARIABLE) else ""
    step = f"if you trust all who can write there: export {VARIABLE}={before}{shell(directory)}"
    if writers != "owner" and status.st_uid == os.geteuid():
        chmod = f"chmod {writers[0]}-w {shell(place)}"
        step = f"{chmod}; or {step}" if writers == "group" else chmod
    return UntrustedError(
        f"{path} is not trusted: {causes[writers]}", place=str(path), next_step=step
    )


def _name(find: Callable[[int], Sequence[object]], number: int) -> str:
    try:
        return str(find(number)[0])
    except KeyError:
        return str(number)
