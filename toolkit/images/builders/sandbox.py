"""Runs the steps of a build, each on an overlay of its own, and packs what it changed: ``python -m toolkit.images.builders.sandbox WORK``

This process and all below it live in namespaces: root's own mounts, or, for an ordinary user (``users`` is set), a user namespace in which
its subordinate ids are the image's. It works in one directory, in which lower file systems are ``l0``, ``l1``, ... and what a task changed
is ``u0``, ``u1``, ...; the names are short, so that neither a strange path nor many layers trouble the options of the mount.

Why not ``apptainer exec --overlay``: it hides parts of the image behind mounts of the machine's, shows the environment of a run and not of
a build, chooses between overlayfs and FUSE by itself (which mark opaque directories in four ways), and root here may not start it without
a changed configuration. With mounts of our own there is one kind of overlay, whose options are known.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from toolkit.images.builders.work import CANNOT, PACKED, WHOLE, Bind, Lower, Task, Work
from toolkit.images.definitions import STEP
from toolkit.model.base import from_json

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEWNS, _NEWIPC, _NEWUSER, _NEWPID = 0x20000, 0x8000000, 0x10000000, 0x20000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
# What a directory or file is has to be in the upper directory itself, and nowhere else; ``userxattr`` says so for the first two already.
_OVERLAY = {True: "index=off,userxattr", False: "index=off,redirect_dir=off,metacopy=off"}
_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_ATTRIBUTES = ("trusted.overlay.", "user.overlay.")  # what overlayfs keeps of its own in the upper directory


class CannotError(Exception):
    """This machine does not let this user do it; nothing has been changed."""


def _call(name: str, *arguments: object) -> None:
    if getattr(_LIBC, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _mount(source: str, target: str | Path, kind: str, flags: int = 0, options: str = "") -> None:
    _call("mount", source.encode(), os.fsencode(target), kind.encode(), flags, options.encode())


def enter(work: Work) -> None:
    """Go into namespaces in which mounts are ours.

    Raises:
        CannotError: they are not to be had.
    """
    try:
        if work.users:
            _become_root(work)
        else:
            _call("unshare", _NEWNS)
        _mount("none", "/", "", _REC | _PRIVATE)
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotError(f"namespaces: {error}") from None


def _become_root(work: Work) -> None:
    """A user namespace whose root we are; a child that stayed outside has the ids mapped, as only ``newuidmap`` may."""
    ready, go = os.pipe()
    pid = os.getpid()
    helper = os.fork()
    if helper == 0:
        code = 1
        with suppress(OSError, subprocess.SubprocessError):
            os.close(go)
            if os.read(ready, 1):
                for program, ranges in (("newuidmap", work.users), ("newgidmap", work.groups)):
                    subprocess.run([program, str(pid), *map(str, ranges)], check=True)
                code = 0
        os._exit(code)
    os.close(ready)
    _call("unshare", _NEWUSER | _NEWNS)
    os.write(go, b"x")
    os.close(go)
    if os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1]) != 0:
        raise OSError("newuidmap failed")
    os.setgid(0)
    os.setuid(0)
    os.setgroups([])


def show(lower: Lower, target: Path) -> None:
    """Have a file system be seen at ``target``: a directory as it is, a squashfs mounted by the kernel or by FUSE.

    Raises:
        CannotError: neither works.
    """
    if lower.offset is None:
        target.symlink_to(lower.path)
        return
    target.mkdir()
    tries = [
        ["mount", "-t", "squashfs", "-o", f"loop,ro,offset={lower.offset}", lower.path, str(target)],
        ["squashfuse_ll", "-o", f"offset={lower.offset}", lower.path, str(target)],
        ["squashfuse", "-o", f"offset={lower.offset}", lower.path, str(target)],
    ]
    said: list[str] = []
    for argv in tries[1 if _in_user_namespace() else 0 :]:
        if shutil.which(argv[0]) is None:
            continue
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        said += done.stderr.strip().splitlines()[-1:]
    raise CannotError(f"{lower.path} cannot be mounted: {'; '.join(said) or 'squashfuse is not installed'}")


def _in_user_namespace() -> bool:
    return Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]


def overlay(lowers: Sequence[str], upper: str | None, target: str) -> None:
    """Mount these, the highest first, with ``upper`` for what changes, or for reading only."""
    options = f"lowerdir={':'.join(lowers)},{_OVERLAY[_in_user_namespace()]}"
    if upper is not None:
        Path(upper).mkdir(exist_ok=True)
        # The root of the image is as it was.
        shutil.copystat(lowers[0], upper)
        found = Path(lowers[0]).stat()
        os.chown(upper, found.st_uid, found.st_gid)
        work = f"w{upper}"
        Path(work).mkdir(exist_ok=True)
        options += f",upperdir={upper},workdir={work}"
    try:
        # Nobody needs half an upper directory after a power cut, and apt waits for the disk after every file otherwise.
        _mount("overlay", target, "overlay", 0, f"{options},volatile")
    except OSError:
        _mount("overlay", target, "overlay", 0, options)


def run(task: Task, work: Work) -> int:
    """Run a task to its end, as root of the image; the exit code of its shell. Whatever it left running ends with it."""
    child = os.fork()
    if child == 0:
        _first(task, work)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def _first(task: Task, work: Work) -> NoReturn:
    """In a process namespace of the task's own: its first process waits for the shell; when it ends, the kernel ends the others."""
    code = 126
    try:
        _call("unshare", _NEWPID | _NEWNS | _NEWIPC)
        first = os.fork()
        if first == 0:
            shell = os.fork()
            if shell == 0:
                _shell(task, work)
            while True:
                pid, status = os.wait()
                if pid == shell:
                    code = os.waitstatus_to_exitcode(status)
                    os._exit(code if code >= 0 else 128 - code)
        code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    except OSError as error:
        print(f"toolkit: {error}", flush=True)
    os._exit(code if code >= 0 else 128 - code)


def _shell(task: Task, work: Work) -> NoReturn:
    try:
        overlay(task.lowers, task.upper, "root")
        _furnish(Path("root"), (*work.binds, *task.binds))
        os.chroot("root")
        os.chdir("/")
        os.umask(0o022)
        os.execve("/bin/sh", ["/bin/sh", "-e", task.script], work.environment)
    except OSError as error:
        print(f"toolkit: {error}", flush=True)
        os._exit(126)


def _furnish(root: Path, binds: Sequence[Bind]) -> None:
    """What a step finds of the machine: devices, processes, name resolution, and what is lent to it."""
    for name in ("proc", "sys", "dev"):
        (root / name).mkdir(exist_ok=True)
    _mount("proc", root / "proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    _devices(root / "dev")
    with suppress(OSError):
        _bind("/sys", root / "sys", recursive=True)
    for bind in binds:
        target = root / bind.target.lstrip("/")
        if not Path(bind.source).exists():
            continue
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.mkdir() if Path(bind.source).is_dir() else target.touch()
        _bind(bind.source, target)
        if not bind.writable:
            # In a user namespace, what is locked there already has to stay so.
            locked = os.statvfs(target).f_flag & (_NOSUID | _NODEV | _NOEXEC)
            with suppress(OSError):
                _mount("none", target, "", _REMOUNT | _BIND | _RDONLY | locked)


def _devices(directory: Path) -> None:
    """The few devices that every program may expect; root's are nodes of their own, so that no step can change the machine's."""
    _mount("tmpfs", directory, "tmpfs", _NOSUID, "mode=755")
    for name, minor in _DEVICES.items():
        node = directory / name
        try:
            os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(*minor))
            node.chmod(0o666)
        except PermissionError:  # in a user namespace, which cannot change them
            node.touch()
            _bind(f"/dev/{name}", node)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2"), ("ptmx", "pts/ptmx")):
        (directory / name).symlink_to(target)
    for name, kind, options in (("shm", "tmpfs", "mode=1777"), ("pts", "devpts", "newinstance,ptmxmode=0666,mode=620")):
        (directory / name).mkdir()
        with suppress(OSError):
            _mount(kind, directory / name, kind, _NOSUID, options)


def _unfurnish(task: Task) -> None:
    """Remove the empty directories that things were shown at which only this step sees."""
    for bind in task.binds:
        with suppress(OSError):
            (Path(task.upper) / bind.target.lstrip("/")).rmdir()


def _bind(source: str, target: Path, *, recursive: bool = False) -> None:
    _mount(source, target, "", _BIND | (_REC if recursive else 0))


def tidy(task: Task) -> None:
    """Make the upper directory of a task that has ended mean the same everywhere.

    What overlayfs noted of its own goes; and a directory that it marked as new (opaque), since it replaces one below, gets a whiteout for
    each name that is to be seen no more: a device 0:0 is understood by all, the mark only by who may read it.
    """
    opaque: set[str] = set()
    for path in _walk(task.upper):
        if os.path.dirname(path) in opaque and _is_directory(path):  # noqa: PTH120
            opaque.add(path)
        for name in os.listxattr(path, follow_symlinks=False):
            if name.startswith(_ATTRIBUTES):
                if name.endswith(".opaque") and os.getxattr(path, name, follow_symlinks=False) == b"y":
                    opaque.add(path)
                os.removexattr(path, name, follow_symlinks=False)
    for path in sorted(opaque):
        _hide(Path(path), Path(os.path.relpath(path, task.upper)), task.lowers)


def _hide(directory: Path, inner: Path, lowers: Sequence[str]) -> None:
    """A whiteout for whatever the lower directories have at ``inner`` and this one has not."""
    below: set[str] = set()
    for lower in map(Path, lowers):
        found = lower / inner
        if found.resolve() == lower.resolve() / inner and found.is_dir():  # no symbolic link leads elsewhere
            below |= {path.name for path in found.iterdir()}
    times = directory.stat()
    for name in below - {path.name for path in directory.iterdir()}:
        os.mknod(directory / name, stat.S_IFCHR, 0)
    os.utime(directory, ns=(times.st_atime_ns, times.st_mtime_ns))


def _is_directory(path: str) -> bool:
    return stat.S_ISDIR(os.lstat(path).st_mode)


def _walk(directory: str) -> Iterator[str]:
    """Every path below and with a directory, that first; by plain strings, for there are tens of thousands."""
    yield directory
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path)
            else:
                yield entry.path


def _pack(task: Task, work: Work) -> subprocess.Popen[bytes]:
    """Begin to pack what a task changed; it says so itself when it is whole, for the next task may take long."""
    script = f'"$@" && mv -- "$0" "$0{WHOLE}" && echo "{PACKED}"'
    argv = ["sh", "-c", script, task.layer, *work.pack, task.upper, task.layer, *work.packing]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT)


def work_through(work: Work) -> int:
    """Every task, one after the other; the packing of one goes on beside the next. The exit code of the first that fails."""
    packing: list[tuple[Task, subprocess.Popen[bytes]]] = []
    code = 0
    for task in work.tasks:
        print(f"{STEP}{task.name}: {task.detail}", flush=True)
        code = run(task, work)
        if code != 0:
            break
        _unfurnish(task)
        tidy(task)
        if task.products:
            _take_products(task)
        if task.layer:
            packing.append((task, _pack(task, work)))
    for task, process in packing:
        if process.wait() != 0:
            print(f"toolkit: what {task.name} changed could not be packed", flush=True)
            code = code or 125
    return code


def _take_products(task: Task) -> None:
    """What a throw-away task was run for: copied out of the image before that goes."""
    found = next((one for one in (f"{layer}{task.inside}" for layer in (task.upper, *task.lowers)) if Path(one).is_dir()), None)
    if found is not None:
        shutil.copytree(found, task.products, symlinks=True, dirs_exist_ok=True)
    Path(f"{task.products}{WHOLE}").touch()


def main(arguments: Sequence[str]) -> int:
    """Do the work that a file describes; ``CANNOT`` where this machine does not allow it."""
    work = from_json(Path(arguments[0]).read_text(encoding="utf-8"), Work)
    os.chdir(work.directory)
    try:
        enter(work)
        for number, lower in enumerate(work.lowers):
            show(lower, Path(f"l{number}"))
        Path("root").mkdir()
        _probe()
    except CannotError as error:
        print(f"toolkit: {error}", flush=True)
        return CANNOT
    if work.repack:
        return subprocess.run([*work.pack, "l0", work.repack, *work.packing], check=False).returncode
    return work_through(work)


def _probe() -> None:
    """Whether overlays work here, before anything depends on it."""
    Path("lower").mkdir()
    try:
        overlay(["lower"], "probe", "root")
        _call("umount2", b"root", 0)
    except OSError as error:
        raise CannotError(f"overlay file systems: {error}") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
