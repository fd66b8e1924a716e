"""Run the steps of a build, each on an overlay of its own, and pack what each changed.

Started as ``python -m toolkit.images.build.apptainer.sandbox TASKS``. This process and all below it
live in namespaces: root's own mounts, or, for an ordinary user (``users`` is set), a user namespace
in which the user's subordinate ids are the image's. It works in one directory, in which lower file
systems are ``l0``, ``l1``, ... and the changes of a task are ``u0``, ``u1``, ...; the names are
short, so that neither an unusual path nor many layers exceed the options of the mount.

Why not ``apptainer exec --overlay``: it hides parts of the image behind mounts of the machine's,
shows the environment of a run and not of a build, chooses between overlayfs and FUSE by itself
(which mark opaque directories in four ways), and root may not start it here without a changed
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
from toolkit.images.build.apptainer.protocol import (
    CANNOT,
    PACKED,
    WHOLE,
    Lower,
    SandboxTasks,
    Task,
)
from toolkit.images.host.kernel import (
    NEWIPC,
    NEWNS,
    NEWPID,
    NEWUTS,
    NODEV,
    CannotError,
    call,
    die_with_parent,
    enter,
    in_user_namespace,
    mount,
    wait_for,
)
from toolkit.images.recipe.definitions import STEP
from toolkit.images.recipe.reproducible import EPOCH, is_dropped
from toolkit.model.base import from_json

# All that a directory or file is must be in the upper directory itself; ``userxattr`` implies
# the other two options.
_OVERLAY = {True: "index=off,userxattr", False: "index=off,redirect_dir=off,metacopy=off"}
_ATTRIBUTES = ("trusted.overlay.", "user.overlay.")  # overlayfs's own notes in the upper directory


def show(lower: Lower, target: Path) -> None:
    """Show a file system at ``target``: a directory by a link, a squashfs by the kernel or FUSE.

    Raises:
        CannotError: Neither works.
    """
    if lower.offset is None:
        target.symlink_to(lower.path)
        return
    target.mkdir()
    option, place = f"offset={lower.offset}", (lower.path, str(target))
    commands = [
        ["mount", "-t", "squashfs", "-o", f"loop,ro,{option}", *place],
        ["squashfuse_ll", "-o", option, *place],
        ["squashfuse", "-o", option, *place],
    ]
    reasons: list[str] = []
    for argv in commands[1 if in_user_namespace() else 0 :]:
        if shutil.which(argv[0]) is None:
            continue
        result = subprocess.run(argv, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            return
        reasons += result.stderr.strip().splitlines()[-1:]
    reason = "; ".join(reasons) or "squashfuse is not installed"
    raise CannotError(f"{lower.path} cannot be mounted: {reason}")


def overlay(lowers: Sequence[str], upper: str | None, target: str) -> None:
    """Mount directories, the highest first, with ``upper`` for changes, or read-only."""
    options = f"lowerdir={':'.join(lowers)},{_OVERLAY[in_user_namespace()]}"
    if upper is not None:
        Path(upper).mkdir(exist_ok=True)
        # The image's root keeps its mode and owner.
        shutil.copystat(lowers[0], upper)
        status = Path(lowers[0]).stat()
        os.chown(upper, status.st_uid, status.st_gid)
        # A new directory each time: the kernel refuses one that a volatile mount has used.
        options += f",upperdir={upper},workdir={tempfile.mkdtemp(prefix='w', dir='.')}"
    try:
        # An upper directory is worthless after a power failure, and apt otherwise waits for the
        # disk after every file.
        mount("overlay", target, "overlay", NODEV, f"{options},volatile")
    except OSError:
        mount("overlay", target, "overlay", NODEV, options)


def run(task: Task, tasks: SandboxTasks) -> int:
    """Run a task to its end as root of the image; return the exit code of its shell.

    Processes that it leaves end with it. Its changes are made independent of time
    (``reproducible``).
    """
    began = int(time.time()) - 1  # file systems take the time from a coarser clock
    code = _run_in_image(task, tasks, task.script)
    if code == 0:
        for path in list(_walk(task.upper)):
            if is_dropped(os.path.relpath(path, task.upper)) and _is_regular(path):
                os.unlink(path)  # noqa: PTH108
        _rewrite_byte_code(task, tasks)
        for bind in task.binds:  # remove the empty directories on which these were mounted
            with suppress(OSError):
                resolve(task.upper, bind.target).rmdir()
        tidy(task)
        for path in _walk(task.upper):  # the same time in every build
            if os.lstat(path).st_mtime >= began:
                os.utime(path, (EPOCH, EPOCH), follow_symlinks=False)
    return code


def _rewrite_byte_code(task: Task, tasks: SandboxTasks) -> None:
    """Let the image's own Python rewrite the task's byte code; if that fails, it is unchanged."""
    paths = [path for path in _walk(task.upper) if path.endswith(".pyc") and _is_regular(path)]
    if paths and tasks.byte_code:
        names = (os.fsencode(os.path.relpath(path, task.upper)) for path in sorted(paths))
        Path(tasks.changed).write_bytes(b"".join(b"/" + name + b"\0" for name in names))
        _run_in_image(task, tasks, tasks.byte_code)


def _run_in_image(task: Task, tasks: SandboxTasks, script: str) -> int:
    child = os.fork()
    if child == 0:
        _separate(task, tasks, script)
    return wait_for(child)


def _separate(task: Task, tasks: SandboxTasks, script: str) -> NoReturn:
    """Make namespaces for a script.

    The shell is their first process: when it ends, the kernel ends the others.
    """
    code = 126
    die_with_parent()
    try:
        call("unshare", NEWPID | NEWNS | NEWIPC | NEWUTS)
        shell = os.fork()
        if shell == 0:
            _become(task, tasks, script)
        code = wait_for(shell)
    except OSError as error:
        print(f"toolkit: {error}", flush=True)
    os._exit(code)


def _become(task: Task, tasks: SandboxTasks, script: str) -> NoReturn:
    """Become the shell of a script, confined to the image before any of it runs.

    Without a script, only test whether that works.
    """
    die_with_parent()
    try:
        overlay(task.lowers, task.upper, "root")
        confine("root", (*tasks.binds, *task.binds))
        if not script:
            os._exit(0)
        os.umask(0o022)
        os.execve("/bin/sh", ["/bin/sh", "-e", script], tasks.environment)
    except OSError as error:
        print(f"toolkit: the step cannot be started: {error}", flush=True)
    os._exit(126)


def tidy(task: Task) -> None:
    """Make the upper directory of a completed task mean the same everywhere.

    Notes of overlayfs are removed. A directory that overlayfs marked as new (opaque), because it
    replaces a lower one, gets a whiteout for each name that must disappear: every overlay
    understands a device 0:0, but only those who may read the mark understand the mark.
    """
    opaque: set[str] = set()
    for path in _walk(task.upper):
        if os.path.dirname(path) in opaque and stat.S_ISDIR(os.lstat(path).st_mode):  # noqa: PTH120
            opaque.add(path)
        for name in os.listxattr(path, follow_symlinks=False):
            if name.startswith(_ATTRIBUTES):
                value = os.getxattr(path, name, follow_symlinks=False)
                if name.endswith(".opaque") and value == b"y":
                    opaque.add(path)
                os.removexattr(path, name, follow_symlinks=False)
    for path in sorted(opaque):
        _hide(Path(path), Path(os.path.relpath(path, task.upper)), task.lowers)


def _hide(directory: Path, inner: Path, lowers: Sequence[str]) -> None:
    """Add a whiteout for each name of the lower directories at ``inner`` that this one lacks."""
    below: set[str] = set()
    for lower in map(Path, lowers):
        if is_below(lower, str(inner)) and (lower / inner).is_dir():
            below |= {path.name for path in (lower / inner).iterdir()}
    times = directory.stat()
    for name in below - {path.name for path in directory.iterdir()}:
        os.mknod(directory / name, stat.S_IFCHR, 0)
    os.utime(directory, ns=(times.st_atime_ns, times.st_mtime_ns))


def _is_regular(path: str) -> bool:
    return stat.S_ISREG(os.lstat(path).st_mode)


def _walk(directory: str) -> Iterator[str]:
    """Yield a directory and every path below it, as strings: there are tens of thousands."""
    yield directory
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path)
            else:
                yield entry.path


def _pack(task: Task, tasks: SandboxTasks) -> subprocess.Popen[bytes]:
    """Begin to pack a task's changes.

    The packing announces its own end, because the next task may take long.
    """
    script = f'"$@" && mv -- "$0" "$0{WHOLE}" && echo "{PACKED}"'
    argv = ["sh", "-c", script, task.layer, *tasks.pack, task.upper, task.layer, *tasks.packing]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT)


def run_all(tasks: SandboxTasks) -> int:
    """Run the tasks one after the other, each beside the packing of the one before.

    Returns:
        The exit code of the first task that failed, or 0.
    """
    packing: list[tuple[Task, subprocess.Popen[bytes]]] = []
    code = 0
    for task in tasks.tasks:
        print(f"{STEP}{task.name}: {task.detail}", flush=True)
        code = run(task, tasks)
        if code != 0:
            break
        if task.products:
            _copy_products(task)
        if task.layer:
            packing.append((task, _pack(task, tasks)))
    for task, process in packing:
        if process.wait() != 0:
            print(f"toolkit: the changes of {task.name} could not be packed", flush=True)
            code = code or 125
    return code


def _copy_products(task: Task) -> None:
    """Copy the regular files of a throw-away task's result, wherever the image's links lead."""
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(OSError):
            call("unshare", NEWNS)
            overlay((task.upper, *task.lowers), None, "root")
            source = resolve("root", task.product_source)
            for path in sorted(source.iterdir()) if source.is_dir() else ():
                if path.is_file() and not path.is_symlink():
                    shutil.copy2(path, Path(task.products, path.name), follow_symlinks=False)
            code = 0
        os._exit(code)
    if wait_for(child) == 0:
        Path(f"{task.products}{WHOLE}").touch()


def main(arguments: Sequence[str]) -> int:
    """Run the tasks of a file; return ``CANNOT`` if this machine does not allow it."""
    tasks = from_json(Path(arguments[0]).read_text(encoding="utf-8"), SandboxTasks)
    os.chdir(tasks.directory)
    try:
        enter(tasks.users, tasks.groups)
        for number, lower in enumerate(tasks.lowers):
            show(lower, Path(f"l{number}"))
        Path("root").mkdir()
        _probe(tasks)
    except CannotError as error:
        print(f"toolkit: {error}", flush=True)
        return CANNOT
    if tasks.repack:
        argv = [*tasks.pack, "l0", tasks.repack, *tasks.packing]
        return subprocess.run(argv, check=False).returncode
    return run_all(tasks)


def _probe(tasks: SandboxTasks) -> None:
    """Test whether a step can be confined to an overlay here, before anything depends on it."""
    Path("lower").mkdir()
    probe = Task(name="probe", detail="", script="", lowers=("lower",), upper="probe")
    if _run_in_image(probe, SandboxTasks(directory=tasks.directory), "") != 0:
        raise CannotError("a step cannot be confined to an overlay file system")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
