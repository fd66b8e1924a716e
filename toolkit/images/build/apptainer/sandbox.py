"""Run the steps of a build, each on an overlay of its own, and pack what it changed.

Started as ``python -m toolkit.images.build.apptainer.sandbox WORK``. This process and all below it
live in namespaces: root's own mounts, or, for an ordinary user (``users`` is set), a user namespace
in which its subordinate ids are the image's. It works in one directory, in which lower file systems
are ``l0``, ``l1``, ... and what a task changed is ``u0``, ``u1``, ...; the names are short, so that
neither a strange path nor many layers trouble the options of the mount.

Why not ``apptainer exec --overlay``: it hides parts of the image behind mounts of the machine's,
shows the environment of a run and not of a build, chooses between overlayfs and FUSE by itself
(which mark opaque directories in four ways), and root here may not start it without a changed
configuration. With mounts of our own there is one kind of overlay, whose options are known.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from toolkit.images.build.apptainer.contain import confine
from toolkit.images.build.apptainer.inroot import is_below, resolve
from toolkit.images.build.apptainer.kernel import (
    NEWIPC,
    NEWNS,
    NEWPID,
    NEWUTS,
    NODEV,
    CannotError,
    call,
    die_with_parent,
    ended,
    enter,
    in_user_namespace,
    mount,
)
from toolkit.images.build.apptainer.work import CANNOT, PACKED, WHOLE, Lower, Task, Work
from toolkit.images.build.reproducible import EPOCH, is_dropped
from toolkit.images.recipe.definitions import STEP
from toolkit.model.base import from_json

# What a directory or file is has to be in the upper directory itself, and nowhere else;
# ``userxattr`` says so for the first two already.
_OVERLAY = {True: "index=off,userxattr", False: "index=off,redirect_dir=off,metacopy=off"}
_ATTRIBUTES = (
    "trusted.overlay.",
    "user.overlay.",
)  # what overlayfs keeps of its own in the upper directory


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
        [
            "mount",
            "-t",
            "squashfs",
            "-o",
            f"loop,ro,offset={lower.offset}",
            lower.path,
            str(target),
        ],
        ["squashfuse_ll", "-o", f"offset={lower.offset}", lower.path, str(target)],
        ["squashfuse", "-o", f"offset={lower.offset}", lower.path, str(target)],
    ]
    said: list[str] = []
    for argv in tries[1 if in_user_namespace() else 0 :]:
        if shutil.which(argv[0]) is None:
            continue
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        said += done.stderr.strip().splitlines()[-1:]
    raise CannotError(
        f"{lower.path} cannot be mounted: {'; '.join(said) or 'squashfuse is not installed'}"
    )


def overlay(lowers: Sequence[str], upper: str | None, target: str) -> None:
    """Mount these, the highest first, with ``upper`` for what changes, or for reading only."""
    options = f"lowerdir={':'.join(lowers)},{_OVERLAY[in_user_namespace()]}"
    if upper is not None:
        Path(upper).mkdir(exist_ok=True)
        # The root of the image is as it was.
        shutil.copystat(lowers[0], upper)
        found = Path(lowers[0]).stat()
        os.chown(upper, found.st_uid, found.st_gid)
        # A new one each time: the kernel refuses one that a volatile mount has used.
        work = tempfile.mkdtemp(prefix="w", dir=".")
        options += f",upperdir={upper},workdir={work}"
    try:
        # Nobody needs half an upper directory after a power cut, and apt waits for the disk after
        # every file otherwise.
        mount("overlay", target, "overlay", NODEV, f"{options},volatile")
    except OSError:
        mount("overlay", target, "overlay", NODEV, options)


def run(task: Task, work: Work) -> int:
    """Run a task to its end, as root of the image; return the exit code of its shell. Whatever it left running ends with it.

    What the task left is made the same as it would be at another time (``reproducible``).
    """
    began = int(time.time()) - 1  # file systems take the time from a clock that ticks less often
    code = _in_image(task, work, task.script)
    if code == 0:
        _drop(task.upper)
        _rewrite_byte_code(task, work)
        _unfurnish(task)
        tidy(task)
        _settle_times(task.upper, began)
    return code


def _drop(upper: str) -> None:
    for path in list(_walk(upper)):
        if is_dropped(os.path.relpath(path, upper)) and stat.S_ISREG(os.lstat(path).st_mode):
            os.unlink(path)  # noqa: PTH108


def _rewrite_byte_code(task: Task, work: Work) -> None:
    """Have the image's own Python write byte code again that the task made. Where that fails, it stays as it is."""
    made = [
        path
        for path in _walk(task.upper)
        if path.endswith(".pyc") and stat.S_ISREG(os.lstat(path).st_mode)
    ]
    if made and work.byte_code:
        names = (os.path.relpath(path, task.upper) for path in sorted(made))
        Path(work.changed).write_bytes(b"".join(b"/" + os.fsencode(name) + b"\0" for name in names))
        _in_image(task, work, work.byte_code)


def _settle_times(upper: str, began: int) -> None:
    """Give what a task made or changed the same time in every build."""
    for path in _walk(upper):
        if os.lstat(path).st_mtime >= began:
            os.utime(path, (EPOCH, EPOCH), follow_symlinks=False)


def _in_image(task: Task, work: Work, script: str) -> int:
    child = os.fork()
    if child == 0:
        _apart(task, work, script)
    return ended(child)


def _apart(task: Task, work: Work, script: str) -> NoReturn:
    """Make namespaces for a script. The shell is their first process: when it ends, the kernel ends the others."""
    code = 126
    die_with_parent()
    try:
        call("unshare", NEWPID | NEWNS | NEWIPC | NEWUTS)
        shell = os.fork()
        if shell == 0:
            _become(task, work, script)
        code = ended(shell)
    except OSError as error:
        print(f"toolkit: {error}", flush=True)
    os._exit(code)


def _become(task: Task, work: Work, script: str) -> NoReturn:
    """Become the shell of a script, confined to the image before anything of it runs. Without a script, only see whether that works."""
    die_with_parent()
    try:
        overlay(task.lowers, task.upper, "root")
        confine("root", (*work.binds, *task.binds))
        if not script:
            os._exit(0)
        os.umask(0o022)
        os.execve("/bin/sh", ["/bin/sh", "-e", script], work.environment)
    except OSError as error:
        print(f"toolkit: the step cannot be started: {error}", flush=True)
    os._exit(126)


def _unfurnish(task: Task) -> None:
    """Remove the empty directories that things were shown at which only this step sees."""
    for bind in task.binds:
        with suppress(OSError):
            resolve(task.upper, bind.target).rmdir()


def tidy(task: Task) -> None:
    """Make the upper directory of a task that has ended mean the same everywhere.

    What overlayfs noted of its own goes; and a directory that it marked as new (opaque), since it
    replaces one below, gets a whiteout for each name that is to be seen no more: a device 0:0 is
    understood by all, the mark only by who may read it.
    """
    opaque: set[str] = set()
    for path in _walk(task.upper):
        if os.path.dirname(path) in opaque and _is_directory(path):  # noqa: PTH120
            opaque.add(path)
        for name in os.listxattr(path, follow_symlinks=False):
            if name.startswith(_ATTRIBUTES):
                if (
                    name.endswith(".opaque")
                    and os.getxattr(path, name, follow_symlinks=False) == b"y"
                ):
                    opaque.add(path)
                os.removexattr(path, name, follow_symlinks=False)
    for path in sorted(opaque):
        _hide(Path(path), Path(os.path.relpath(path, task.upper)), task.lowers)


def _hide(directory: Path, inner: Path, lowers: Sequence[str]) -> None:
    """A whiteout for whatever the lower directories have at ``inner`` and this one has not."""
    below: set[str] = set()
    for lower in map(Path, lowers):
        if is_below(lower, str(inner)) and (lower / inner).is_dir():
            below |= {path.name for path in (lower / inner).iterdir()}
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
    """Copy out what a throw-away task was run for: the regular files of a directory, wherever the image's own links lead."""
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(OSError):
            call("unshare", NEWNS)
            overlay((task.upper, *task.lowers), None, "root")
            _copy_files(resolve("root", task.inside), Path(task.products))
            code = 0
        os._exit(code)
    if ended(child) == 0:
        Path(f"{task.products}{WHOLE}").touch()


def _copy_files(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()) if source.is_dir() else ():
        if path.is_file() and not path.is_symlink():
            shutil.copy2(path, target / path.name, follow_symlinks=False)


def main(arguments: Sequence[str]) -> int:
    """Do the work that a file describes; ``CANNOT`` where this machine does not allow it."""
    work = from_json(Path(arguments[0]).read_text(encoding="utf-8"), Work)
    os.chdir(work.directory)
    try:
        enter(work.users, work.groups)
        for number, lower in enumerate(work.lowers):
            show(lower, Path(f"l{number}"))
        Path("root").mkdir()
        _probe(work)
    except CannotError as error:
        print(f"toolkit: {error}", flush=True)
        return CANNOT
    if work.repack:
        return subprocess.run(
            [*work.pack, "l0", work.repack, *work.packing], check=False
        ).returncode
    return work_through(work)


def _probe(work: Work) -> None:
    """Find out whether a step can be confined to an overlay file system here, before anything depends on it."""
    Path("lower").mkdir()
    probe = Task(name="probe", detail="", script="", lowers=("lower",), upper="probe")
    if _in_image(probe, Work(directory=work.directory), "") != 0:
        raise CannotError("a step cannot be confined to an overlay file system")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
