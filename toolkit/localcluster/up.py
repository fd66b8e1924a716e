"""Bring a cluster up, wholly or not at all."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from toolkit import shell
from toolkit.errors import ClusterError, UsageError
from toolkit.files import read_json, write_atomically
from toolkit.localcluster import access, config, packages, processes
from toolkit.localcluster.down import remove_files
from toolkit.localcluster.failure import StartError, tails
from toolkit.localcluster.lock import held
from toolkit.localcluster.paths import PRIVATE, Paths, below_private, paths_of
from toolkit.localcluster.plan import KEEP, Plan
from toolkit.localcluster.shape import Shape, all_nodes, summary
from toolkit.localcluster.waiting import Reports, await_idle
from toolkit.model.base import to_json
from toolkit.progress import Progress
from toolkit.resources import package_directory, shipped


def up(name: str, shape: Shape, progress: Progress, *, share: tuple[str, ...] = ()) -> bool:
    """Bring a cluster up, and wait until each node is idle.

    Args:
        name: of the cluster.
        shape: a checked one.
        progress: is told what happens.
        share: directories that all nodes shall see.

    Returns:
        whether it was started; False if it was up already, in this shape.

    Raises:
        NeedsInstallError: packages are missing.
        BusyError: somebody else is bringing it up or down.
        ClusterError: it is up in another shape, or did not start; then nothing of it is left, and the details have the tail of the log.
        UsageError: a directory to share is not there, or cannot be shared.
    """
    paths = paths_of(name)
    shared = shared_directories(paths, share)
    packages.require(shape.accounting)
    with held(paths):
        if access.running(paths):
            _same_or_error(paths, shape, shared, asked=share)
            return False
        _remove_left_over(paths)
        plan = Plan(
            name=name,
            shape=shape,
            shared=shared,
            user=pwd.getpwuid(os.geteuid()).pw_name,
            as_user=os.geteuid() != 0,
        )
        progress.say("cluster", f"{name}: {summary(shape)}")
        try:
            _write_files(paths, plan)
            _start(paths, plan, progress)
        except BaseException as error:
            # Also after an interrupt: nothing half-started stays. The reason is read before its log
            # goes.
            found = _explained(error)
            processes.stop(paths)
            remove_files(paths)
            if found is error:
                raise
            raise found from error
    return True


def _explained(error: BaseException) -> BaseException:
    if not isinstance(error, StartError):
        return error
    details = (*error.details, *tails(error.logs))
    forbidden = any(
        "unshare failed" in line or "Operation not permitted" in line for line in details
    )
    return ClusterError(
        f"the local cluster did not start: {error.cause}",
        details=details,
        next_step="namespaces are not permitted here: run as root, or in a container with --privileged"
        if forbidden
        else "nothing of it was left behind; change what the log complains about, then up again",
    )


def _same_or_error(
    paths: Paths, shape: Shape, shared: tuple[str, ...], asked: tuple[str, ...]
) -> None:
    plan = read_json(paths.plan, Plan)
    next_step = f"toolkit cluster down --name {paths.name}, then up again"
    if plan.shape != shape:
        both = (f"is up     {summary(plan.shape)}", f"asked for {summary(shape)}")
        raise ClusterError(
            f"cluster {paths.name} is up in another shape", next_step=next_step, details=both
        )
    missing = [
        directory
        for directory in shared
        if directory not in plan.shared and not _within(directory, plan.shared)
    ]
    wanted = [
        directory
        for directory in missing
        if directory in {os.path.realpath(path) for path in asked}
    ]
    if wanted:
        raise ClusterError(
            f"cluster {paths.name} is up, and its nodes do not see {wanted[0]}", next_step=next_step
        )


def _remove_left_over(paths: Paths) -> None:
    """What an `up` left that was killed, or a cluster whose machine was switched off."""
    processes.stop(paths)
    remove_files(paths)


def shared_directories(paths: Paths, share: tuple[str, ...]) -> tuple[str, ...]:
    """The directories below /tmp or /dev/shm that are bound back into each node, outermost only, sorted.

    Raises:
        UsageError: one that was asked for is not there, or is private as a whole.
    """
    for directory in share:
        if not Path(directory).is_dir():
            raise UsageError(f"there is no directory {directory}", place="--share")
        if os.path.realpath(directory) in PRIVATE:
            raise UsageError(
                f"each node has its own {directory}; share a directory below it", place="--share"
            )
    package = package_directory("")
    own = (
        Path.home(),
        access.here(),
        paths.directory,
        package,
        shipped("jobs"),
        shipped("recipes"),
    )
    found = sorted({os.path.realpath(path) for path in (*map(str, own), *share)})
    below = [directory for directory in found if below_private(directory)]
    return tuple(directory for directory in below if not _within(directory, below))


def _within(directory: str, others: list[str] | tuple[str, ...]) -> bool:
    return any(directory.startswith(other + "/") for other in others)


def _write_files(paths: Paths, plan: Plan) -> None:
    for directory in (
        paths.etc,
        paths.logs,
        paths.run,
        paths.secrets,
        paths.directory / "state",
        paths.directory / "dev",
    ):
        directory.mkdir(mode=0o700 if directory == paths.secrets else 0o755, exist_ok=True)
    (paths.secrets / "key").touch(mode=0o600)
    (paths.secrets / "key").write_bytes(secrets.token_bytes(1024))
    nsswitch = Path("/etc/nsswitch.conf")
    text = nsswitch.read_text() if nsswitch.exists() else ""
    written = config.files(
        plan.shape,
        name=plan.name,
        directory=PurePosixPath(paths.directory),
        user=plan.user,
        nsswitch=text,
    )
    for name, content in written.items():
        write_atomically(
            paths.etc / name, content, mode=0o600 if name == "slurmdbd.conf" else 0o644
        )
    nodes = all_nodes(plan.shape)
    for node in nodes:
        (paths.directory / "node" / node.name / "spool").mkdir(parents=True)
    for number in range(max(node.gpus for node in nodes)):
        # Stands in for /dev/nvidia0: Slurm takes any character device, and numbers GPUs by the
        # digits of its name.
        (paths.directory / "dev" / f"gpu{number}").symlink_to("/dev/null")
    write_atomically(paths.plan, to_json(plan))


def _start(paths: Paths, plan: Plan, progress: Progress) -> None:
    with paths.log_of("cluster").open("wb") as log:
        process = shell.start(
            _command(paths, plan),
            env=_environment(paths),
            cwd=package_directory("").parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.fileno(),
            new_session=True,
        )
    nodes = [node.name for node in all_nodes(plan.shape)]
    with _ended_with(process):
        reports = Reports(process, paths)
        reports.await_ready(progress)
        pid = processes.first_process(paths)
        if pid is None:
            raise StartError("its first process is gone", (paths.log_of("cluster"),))
        progress.begin("nodes", f"{len(nodes)} x slurmd")
        await_idle(paths, nodes, reports, access.prefix(paths, pid, "/"))
        write_atomically(
            paths.started,
            to_json(access.Started(pid=pid, shared=plan.shared, like=plan.shape.like)),
        )
        assert process.stdin is not None
        process.stdin.write(KEEP)
        process.stdin.flush()
        progress.end()


@contextlib.contextmanager
def _ended_with(process: subprocess.Popen[str]) -> Iterator[None]:
    """Close the input of the cluster's first process at the end, which ends it unless ``keep`` was said."""
    try:
        yield
    finally:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _command(paths: Paths, plan: Plan) -> tuple[str, ...]:
    as_user = ("--user", "--map-current-user", "--keep-caps") if plan.as_user else ()
    return (
        *(
            "unshare",
            *as_user,
            "--uts",
            "--mount",
            "--ipc",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
        ),
        *(sys.executable, "-m", processes.SUPERVISOR, str(paths.directory)),
    )


def _environment(paths: Paths) -> dict[str, str]:
    """What daemons and, through them, nothing of a job gets: no variable of the user's shell but what finds programs and libraries."""
    kept = (
        "HOME",
        "USER",
        "LOGNAME",
        "LANG",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONDONTWRITEBYTECODE",
    )
    found = {name: os.environ[name] for name in kept if name in os.environ}
    parts = os.environ.get("PATH", "/usr/bin:/bin").split(os.pathsep)
    parts += [
        directory
        for directory in ("/usr/sbin", "/sbin", "/usr/bin", "/bin")
        if directory not in parts
    ]
    return found | {"PATH": os.pathsep.join(parts), "SLURM_CONF": str(paths.conf)}
