"""Bring a cluster up, completely or not at all, and take it down, whatever state it is in."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import subprocess
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from toolkit import shell
from toolkit.config import package_directory, shipped
from toolkit.errors import ClusterError, UsageError
from toolkit.files import read_json, write_atomically
from toolkit.localcluster import access, config, packages, processes
from toolkit.localcluster.directory import is_ours, locked, refuse_foreign, remove_files
from toolkit.localcluster.packages import gpus_of
from toolkit.localcluster.paths import PRIVATE, Paths, is_on_nodes, paths_of
from toolkit.localcluster.processes import CLUSTER_INIT
from toolkit.localcluster.shape import Plan, Shape, all_nodes, summary
from toolkit.localcluster.waiting import await_idle
from toolkit.model.base import to_json
from toolkit.shell import Progress


def up(name: str, shape: Shape, progress: Progress, *, share: tuple[str, ...] = ()) -> bool:
    """Bring a cluster up, and wait until each node is idle.

    Args:
        name: of the cluster.
        shape: a checked one.
        progress: shows the steps.
        share: directories that all nodes see.

    Returns:
        Whether it was started; False if it was up already, in this shape.

    Raises:
        NeedsInstallError: packages are missing.
        BusyError: another process is bringing it up or down.
        ClusterError: it is up in another shape, or did not start; then nothing of it is left, and
            the details have the tail of the log.
        UsageError: a directory to share does not exist, or cannot be shared.
    """
    paths = paths_of(name)
    shared = shared_directories(paths, share)
    packages.require(shape.accounting)
    with locked(paths):
        if access.running(paths):
            _require_same(paths, shape, share)
            return False
        # The rest of an `up` that was killed, or of a cluster whose machine was switched off.
        processes.stop(paths)
        remove_files(paths)
        plan = Plan(shape=shape, shared=shared, gpus=gpus_of(shape))
        progress.say("cluster", f"{name}: {summary(shape)}")
        try:
            _write_files(paths, plan)
            _start(paths, plan, progress)
        except BaseException:  # also after an interrupt, nothing half-started stays
            processes.stop(paths)
            remove_files(paths)
            raise
    return True


def _require_same(paths: Paths, shape: Shape, requested: Iterable[str]) -> None:
    """Check that a cluster that is up has this shape, and that its nodes see these directories."""
    plan = read_json(paths.plan, Plan)
    next_step = f"toolkit cluster down --name {paths.name}, then up again"
    if plan.shape != shape:
        raise ClusterError(
            f"cluster {paths.name} is up in another shape: {summary(plan.shape)}",
            next_step=next_step,
        )
    for directory in map(os.path.realpath, requested):
        if not is_on_nodes(directory, plan.shared):
            raise ClusterError(
                f"cluster {paths.name} is up, and its nodes do not see {directory}",
                next_step=next_step,
            )


def shared_directories(paths: Paths, share: tuple[str, ...]) -> tuple[str, ...]:
    """Return the directories below /tmp or /dev/shm that all nodes see, outermost only, sorted.

    Raises:
        UsageError: a directory of ``share`` does not exist, or is private as a whole.
    """
    for directory in share:
        if not Path(directory).is_dir() or os.path.realpath(directory) in PRIVATE:
            raise UsageError(
                f"{directory} cannot be shared: each node has its own /tmp",
                place="--share",
                next_step="share a directory that exists, below /tmp: --share /tmp/NAME",
            )
    shipped_files = (package_directory(""), shipped("jobs"), shipped("recipes"))
    own = (Path.home(), Path.cwd(), paths.directory, *shipped_files)
    real = sorted({os.path.realpath(path) for path in (*map(str, own), *share)})
    shared: list[str] = []
    for directory in real:  # those above come first
        if not is_on_nodes(directory, shared):
            shared.append(directory)
    return tuple(shared)


def _write_files(paths: Paths, plan: Plan) -> None:
    secret, devices = paths.directory / "munge", paths.directory / "dev"
    for directory in (paths.etc, paths.logs, paths.run, paths.directory / "state", devices):
        directory.mkdir(mode=0o755, exist_ok=True)
    secret.mkdir(mode=0o700)
    (secret / "key").touch(mode=0o600)
    (secret / "key").write_bytes(secrets.token_bytes(1024))
    os.mkfifo(paths.control, 0o600)
    nsswitch = Path("/etc/nsswitch.conf")
    written = config.files(
        plan.shape,
        name=paths.name,
        directory=PurePosixPath(paths.directory),
        user=_user(),
        nsswitch=nsswitch.read_text() if nsswitch.exists() else "",
        gpus=plan.gpus,
    )
    for name, content in written.items():
        mode = 0o600 if name == "slurmdbd.conf" else 0o644
        write_atomically(paths.etc / name, content, mode=mode)
    for node in all_nodes(plan.shape):
        (paths.directory / "node" / node.name / "spool").mkdir(parents=True)
    for number in range(max(group.gpus for group in plan.shape.nodes)):
        # A substitute for /dev/nvidia0: Slurm accepts any character device, and numbers GPUs by the
        # digits of its name.
        (devices / f"gpu{number}").symlink_to("/dev/null")
    write_atomically(paths.plan, to_json(plan))


def _user() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def _start(paths: Paths, plan: Plan, progress: Progress) -> None:
    as_user = os.geteuid() != 0
    # Each runs as process 1 of namespaces of its own, and ends when its `unshare` is ended.
    namespaces = ["--uts", "--mount", "--ipc", "--net", "--pid", "--fork", "--kill-child"]
    own = ("--user", "--map-current-user", "--keep-caps") if as_user else ()
    flags = (as_user, plan.shape.accounting, plan.shape.is_light)
    script = ("bash", package_directory("localcluster") / CLUSTER_INIT, paths.directory)
    with paths.log_of("cluster").open("wb") as log:
        process = shell.start(
            (
                *("unshare", *namespaces, *own, *script, paths.name, _user()),
                *(str(int(flag)) for flag in flags),
                *plan.shared,
            ),
            env=_environment(paths),
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=log.fileno(),
            stderr=log.fileno(),
            new_session=True,
        )
    assert process.stdin is not None
    try:
        names = [node.name for node in all_nodes(plan.shape)]
        pid = await_idle(paths, process, names, progress)
        started = access.Started(
            pid=pid, shared=plan.shared, like=plan.shape.like, real_gpus=bool(plan.gpus)
        )
        write_atomically(paths.started, to_json(started))
        process.stdin.write("keep\n")
        process.stdin.flush()
    finally:
        # Without that line the end of its input ends the cluster's first process.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    progress.end()


def _environment(paths: Paths) -> dict[str, str]:
    """Return the environment of the daemons: only variables that locate programs and libraries."""
    names = ("HOME", "USER", "LOGNAME", "LANG", "LD_LIBRARY_PATH")
    passed = {name: os.environ[name] for name in names if name in os.environ}
    return {**passed, "PATH": access.path(), "SLURM_CONF": str(paths.conf)}


def down(name: str, progress: Progress) -> bool:
    """Take the cluster ``name`` down: no process, mount, interface or file of it stays.

    Returns:
        Whether there was a process or a file of it.

    Raises:
        BusyError: another process is bringing it up or down.
        ClusterError: a part of it cannot be removed, or no cluster made its directory.
    """
    paths = paths_of(name)
    refuse_foreign(paths)
    if processes.is_within(paths):
        raise ClusterError(
            "this shell is in the cluster", next_step="exit it, then: toolkit cluster down"
        )
    if not is_ours(paths) and not processes.inits(paths):
        return False
    with locked(paths):
        progress.begin("down", f"cluster {name}")
        ended = processes.stop(paths)
        removed = remove_files(paths)
        progress.end()
    return ended or removed
