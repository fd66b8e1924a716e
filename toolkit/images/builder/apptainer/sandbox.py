"""Run the steps of a build, each on an overlay of its own, and pack what each changed.

Started as ``python -m toolkit.images.builder.apptainer.sandbox TASKS``. This process and all below
it live in namespaces: root's own mounts, or, for an ordinary user (``users`` is set), a user
namespace in which the user's subordinate ids are the image's. It works in one directory, in which
lower file systems are ``l0``, ``l1``, ... and the changes of a task are ``u0``, ``u1``, ...; the
names are short, so that neither an unusual path nor many layers exceed the options of the mount.

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
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from toolkit.images.builder.apptainer import seeds
from toolkit.images.builder.apptainer.contain import confine
from toolkit.images.builder.apptainer.inroot import resolve, walk
from toolkit.images.builder.apptainer.overlays import overlay, show, tidy
from toolkit.images.builder.apptainer.protocol import (
    PACKED,
    STEP_BEGINS,
    WHOLE,
    SandboxTasks,
    Task,
)
from toolkit.images.host.kernel import (
    BIND,
    NEWIPC,
    NEWNS,
    NEWPID,
    NEWUTS,
    CannotError,
    call,
    die_with_parent,
    enter,
    mount,
    wait_for,
)
from toolkit.images.host.remove import remove
from toolkit.images.recipe.reproducible import EPOCH, is_dropped
from toolkit.model.base import from_json

_CHUNK = 1 << 16  # bytes


def run(task: Task, tasks: SandboxTasks) -> int:
    """Run a task to its end as root of the image; return the exit code of its shell.

    Processes that it leaves end with it. Its changes are made independent of time
    (``reproducible``).
    """
    began = int(time.time()) - 1  # file systems take the time from a coarser clock
    seeded = _find_seeds(task, tasks) if task.seed else {}
    code = _run_in_image(task, tasks, task.script)
    if code == 0:
        for path in list(walk(task.upper)):
            if is_dropped(os.path.relpath(path, task.upper)) and _is_regular(path):
                os.unlink(path)  # noqa: PTH108
        _rewrite_byte_code(task, tasks)
        for bind in task.binds:  # remove the empty directories on which these were mounted
            with suppress(OSError):
                resolve(task.upper, bind.target).rmdir()
        tidy(task)
        whole: list[str] = []
        if seeded:
            if not _make_directories(task, seeded):
                remove(Path(task.upper))
                return run(msgspec.structs.replace(task, seed=""), tasks)
            whole = seeds.copy(task.upper, seeded, task.seed)
            tidy(task)
        for path in walk(task.upper):  # the same time in every build
            if os.lstat(path).st_mtime >= began:
                os.utime(path, (EPOCH, EPOCH), follow_symlinks=False)
        for directory in whole:  # for the packing; the mounts end with this process's namespace
            mount(f"{task.seed}/{directory}", f"{task.upper}/{directory}", "", BIND)
    return code


def _find_seeds(task: Task, tasks: SandboxTasks) -> seeds.Seeds:
    """Return the byte code of an earlier build that a task may take over, and tell the task.

    The mount ends with this process's namespace.
    """
    below = task.lowers[-task.seed_below :]
    if len(below) > 1:
        Path("below").mkdir()
        overlay(below, None, "below")
    seeded = seeds.find(task, "below" if len(below) > 1 else below[0])
    names = map(os.fsencode, seeded)
    Path(tasks.skipped).write_bytes(b"".join(b"/" + name + b"\0" for name in names))
    return seeded


def _make_directories(task: Task, seeded: seeds.Seeds) -> bool:
    """Make the directories of byte code in a completed task's changes.

    Overlayfs copies those above them. Returns False if the byte code does not fit the changes.
    """
    if not seeds.is_untouched(task.upper, seeded):
        return False
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(OSError):
            os.umask(0o022)
            call("unshare", NEWNS)
            overlay(task.lowers, task.upper, "root")
            seeds.make_directories("root", seeded)
            code = 0
        os._exit(code)
    return wait_for(child) == 0


def _rewrite_byte_code(task: Task, tasks: SandboxTasks) -> None:
    """Let the image's own Python rewrite the task's byte code; if that fails, it is unchanged."""
    paths = [
        os.path.relpath(path, task.upper)
        for path in walk(task.upper)
        if path.endswith(".pyc") and _is_regular(path)
    ]
    if paths and tasks.byte_code:
        names = map(os.fsencode, sorted(paths))
        Path(tasks.changed).write_bytes(b"".join(b"/" + name + b"\0" for name in names))
        _run_in_image(task, tasks, tasks.byte_code)


def _run_in_image(task: Task, tasks: SandboxTasks, script: str) -> int:
    """Run a script; return its exit code.

    It gets a pipe of its own: through ``/proc/self/fd/1`` it could read what others write to ours,
    the token of our messages.
    """
    output, end = os.pipe()
    child = os.fork()
    if child == 0:
        for number in (1, 2):
            os.dup2(end, number)
        _separate(task, tasks, script)
    os.close(end)
    with open(output, "rb", buffering=0) as stream:  # noqa: PTH123
        while data := stream.read(_CHUNK):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
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

    Without a script, end with 0 instead.
    """
    die_with_parent()
    try:
        overlay(task.lowers, task.upper, "root")
        confine("root", (*tasks.binds, *task.binds))
        if not script:
            os._exit(0)
        os.umask(0o022)
        environment = tasks.environment | ({"PYTHONPATH": tasks.passing} if task.seed else {})
        os.execve("/bin/sh", ["/bin/sh", "-e", script], environment)
    except OSError as error:
        print(f"toolkit: the step cannot be started: {error}", flush=True)
    os._exit(126)


def _is_regular(path: str) -> bool:
    return stat.S_ISREG(os.lstat(path).st_mode)


def _pack(task: Task, tasks: SandboxTasks) -> subprocess.Popen[bytes]:
    """Begin to pack a task's changes.

    The packing announces its own end, because the next task may take long.
    """
    script = f'"$@" && mv -- "$0" "$0{WHOLE}" && echo "${{TOKEN}}{PACKED}"'
    argv = ["sh", "-c", script, task.layer, *tasks.pack, task.upper, task.layer, *tasks.packing]
    environment = {**os.environ, "TOKEN": tasks.token}  # its arguments could be seen by all users
    return subprocess.Popen(
        argv, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )


def run_all(tasks: SandboxTasks) -> int:
    """Run the tasks one after the other, each beside the packing of the one before.

    Returns:
        The exit code of the first task that failed, or 0.
    """
    packing: list[tuple[Task, subprocess.Popen[bytes]]] = []
    code = 0
    for task in tasks.tasks:
        print(f"{tasks.token}{STEP_BEGINS}{task.name}", flush=True)
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
    """Run the tasks of a file; return the exit code of the first that failed, 1 if none can run.

    Without tasks there are no steps: the code tells only whether steps can be confined here.
    """
    tasks = from_json(Path(arguments[0]).read_text(encoding="utf-8"), SandboxTasks)
    os.chdir(tasks.directory)
    try:
        enter(tasks.users, tasks.groups)
        for number, lower in enumerate(tasks.lowers):
            show(lower, Path(f"l{number}"))
    except CannotError as error:
        print(f"toolkit: {error}", flush=True)
        return 1
    Path("root").mkdir()
    if not tasks.tasks:
        probe = Task(name="probe", detail="", script="", lowers=("l0",), upper="u0")
        return _run_in_image(probe, tasks, probe.script)
    return run_all(tasks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
