"""Read configuration that was found by searching, if no other user could have written it.

The walk is that of Kupsch and Miller, "How to Open a File and Not Get Hacked" (2008): every
directory, symbolic link and file is opened from its parent and examined by ``fstat``. Once a
directory has passed, only trusted users can change its entries, so nothing changes between the
examination and the use.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack
from errno import EINVAL, ELOOP, ENOTDIR
from pathlib import Path
from types import TracebackType

from toolkit.errors import UntrustedError
from toolkit.model.job import PROJECT_FILE
from toolkit.quoting import shell
from toolkit.trust import Distrust, Entry, Reader, find_distrust

VARIABLE = "TOOLKIT_TRUST"
_MAX_LINKS = 40  # as in the kernel: path_resolution(7)
_ANCHOR = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_text(path: Path) -> str:
    """Read a configuration file that was found by searching.

    Raises:
        UntrustedError: another user could have written it.
        OSError: it cannot be read or is not a regular file.
        UnicodeDecodeError: it is not UTF-8.
    """
    with _Walk(path) as walk:
        _require(path, walk.entries, own=False)
        if not stat.S_ISREG(walk.entries[-1].mode):
            raise OSError(EINVAL, "it is not a regular file", str(path))
        with os.fdopen(os.dup(walk.handle), encoding="utf-8") as stream:
            return stream.read()


def require_trusted(path: Path) -> None:
    """Raise UntrustedError if another user could have put ``path`` there or can change it."""
    with _Walk(path) as walk:
        _require(path, walk.entries, own=False)


def require_own(directory: Path) -> None:
    """Raise UntrustedError unless the user owns a directory and no other user can write to it."""
    with _Walk(directory) as walk:
        _require(directory, walk.entries, own=True)


class _Walk:
    """The way from the root directory to a path, each step opened from its parent.

    Attributes:
        entries: everything met, in order; the last is the target.
        handle: the open target; a regular file is open for reading.
    """

    def __init__(self, path: Path) -> None:
        self.entries: list[Entry] = []
        self.handle = -1
        self._path = path
        self._handles = ExitStack()
        self._directories: list[tuple[Entry, int]] = []
        self._links = 0

    def __enter__(self) -> _Walk:
        try:
            self._enter(*self._open("/", None))
            parts = list(reversed((Path.cwd() / self._path).parts[1:]))
            while parts:
                parts += reversed(self._step(parts.pop(), is_last=not parts))
        except BaseException:
            self._handles.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._handles.close()

    def _step(self, name: str, *, is_last: bool) -> Sequence[str]:
        """Take one step; return the further steps that a symbolic link asks for."""
        if name == "..":
            self._leave()
            return ()
        entry, handle = self._open(name, self._directories[-1])
        if stat.S_ISLNK(entry.mode):
            self.entries.append(entry)
            return self._follow(name)
        if not (stat.S_ISDIR(entry.mode) or is_last):
            raise OSError(ENOTDIR, os.strerror(ENOTDIR), str(self._path))
        self._enter(entry, handle)
        return ()

    def _enter(self, entry: Entry, handle: int) -> None:
        self._directories.append((entry, handle))
        self.entries.append(entry)
        self.handle = handle

    def _leave(self) -> None:
        # Above the root directory is itself.
        del self._directories[max(1, len(self._directories) - 1) :]
        self._enter(*self._directories.pop())

    def _follow(self, name: str) -> Sequence[str]:
        self._links += 1
        if self._links > _MAX_LINKS:
            raise OSError(ELOOP, os.strerror(ELOOP), str(self._path))
        # The link may have been replaced since it was opened, but only by those who could do so
        # before: its directory is examined, and in a sticky one its owner is.
        target = Path(os.readlink(name, dir_fd=self._directories[-1][1]))
        if not target.is_absolute():
            return target.parts
        del self._directories[1:]
        self._enter(*self._directories.pop())
        return target.parts[1:]

    def _open(self, name: str, parent: tuple[Entry, int] | None) -> tuple[Entry, int]:
        above, at = parent or (None, None)
        path = str(Path(above.path, name)) if above else name
        handle = self._opened(name, _ANCHOR, at)
        if stat.S_ISREG(os.fstat(handle).st_mode):
            handle = self._opened(name, _READ, at)
        status = os.fstat(handle)
        in_shared = above is not None and bool(above.mode & (stat.S_IWOTH | stat.S_IWGRP))
        return Entry(path, status.st_mode, status.st_uid, status.st_gid, in_shared), handle

    def _opened(self, name: str, flags: int, parent: int | None) -> int:
        handle = os.open(name, flags, dir_fd=parent)
        self._handles.callback(os.close, handle)
        return handle


def _require(path: Path, entries: Sequence[Entry], *, own: bool) -> None:
    distrust = find_distrust(entries, _reader(), own=own)
    if distrust is not None:
        raise _error(path, entries[-1], distrust, own=own)


def _reader() -> Reader:
    uid = os.geteuid()
    trusted = filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))
    return Reader(
        uid=uid,
        is_private=lambda gid: _is_private_group(gid, uid),
        unmapped=_unmapped_user(),
        trusted=tuple(os.path.realpath(Path(directory).expanduser()) for directory in trusted),
    )


def _is_private_group(gid: int, uid: int) -> bool:
    """Return whether a group is the user's own (useradd(8)) or root's, without other members.

    Members are only those that the group lists: to find all users whose first group it is would
    mean to read the whole directory of a site.
    """
    import grp
    import pwd

    try:
        group, name = grp.getgrgid(gid), pwd.getpwuid(uid).pw_name
    except KeyError:
        return False
    return (gid == 0 or group.gr_name == name) and set(group.gr_mem) <= {name, "root"}


def _unmapped_user() -> int | None:
    owner = Path("/").stat().st_uid
    if owner == 0:
        return None
    try:
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return owner if owner == overflow else None


def _error(path: Path, target: Entry, distrust: Distrust, *, own: bool) -> UntrustedError:
    entry = distrust.entry
    kinds = {stat.S_IFLNK: "symbolic link", stat.S_IFDIR: "directory"}
    noun = kinds.get(stat.S_IFMT(entry.mode), "file")
    what = "it" if entry.path == str(path) else f"the {noun} {entry.path}"
    why = {
        "owner": f"{what} belongs to {_user_name(entry.uid)}",
        "group": f"the members of {_group_name(entry.gid)} can write to {what}",
        "others": f"every user of this machine can write to {what}",
    }[distrust.writers]
    return UntrustedError(
        f"{path} is not trusted: {why}",
        place=str(path),
        next_step=_next_step(target, distrust, own=own),
    )


def _next_step(target: Entry, distrust: Distrust, *, own: bool) -> str:
    entry = distrust.entry
    if distrust.writers != "owner" and entry.uid == os.geteuid():
        return f"chmod {'g' if distrust.writers == 'group' else 'o'}-w {shell(entry.path)}"
    if own:
        return "use a directory of your own"
    place = str(Path((entry if stat.S_ISLNK(entry.mode) else target).path).parent)
    before = f'"${VARIABLE}":' if os.environ.get(VARIABLE) else ""
    hide = f"; or hide it with a {PROJECT_FILE} of your own, empty or not, where you work"
    trusting = f"if you trust all who can write there: export {VARIABLE}={before}{shell(place)}"
    return trusting + (hide if Path(target.path).name == PROJECT_FILE else "")


def _user_name(uid: int) -> str:
    import pwd

    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def _group_name(gid: int) -> str:
    import grp

    try:
        return f"group {grp.getgrgid(gid).gr_name}"
    except KeyError:
        return f"group {gid}"
