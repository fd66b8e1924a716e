"""Bring a cluster up, completely or not at all, and take it down, whatever state it is in."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from toolkit import quoting, shell
from toolkit.config import package_directory, shipped
from toolkit.errors import ClusterError, UsageError
from toolkit.files import read_json, write_atomically
from toolkit.localcluster import access, config, devices, packages, processes
from toolkit.localcluster.control import KEEP, Plan, StartError
from toolkit.localcluster.daemon_logs import fatal_errors, log_tails
from toolkit.localcluster.directory import is_ours, locked, refuse_foreign, remove_files
from toolkit.localcluster.paths import PRIVATE, Paths, below_private, paths_of
from toolkit.localcluster.shape import Shape, all_nodes, summary
from toolkit.localcluster.waiting import Reports, await_idle
from toolkit.model.base import to_json
from toolkit.shell import Progress

_NAMED = 3  # daemons in a message


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
            _same_or_error(paths, shape, shared, requested=share)
            return False
        # The rest of an `up` that was killed, or of a cluster whose machine was switched off.
        processes.stop(paths)
        remove_files(paths)
        plan = Plan(
            name=name,
            shape=shape,
            shared=shared,
            user=pwd.getpwuid(os.geteuid()).pw_name,
            as_user=os.geteuid() != 0,
            gpus=devices.gpus_of(shape),
        )
        progress.say("cluster", f"{name}: {summary(shape)}")
        try:
            _write_files(paths, plan)
            _start(paths, plan, progress)
        except BaseException as error:
            # Also after an interrupt, nothing half-started stays. The reason is read before its log
            # is removed.
            explained = _explained(error, paths)
            processes.stop(paths)
            remove_files(paths)
            if explained is error:
                raise
            raise explained from error
    return True


def _explained(error: BaseException, paths: Paths) -> BaseException:
    """Return the error with the reasons in the daemons' logs; why a daemon stopped comes first."""
    if not isinstance(error, StartError):
        return error
    fatal = fatal_errors(paths.daemon_logs())
    stopped = [
        ", ".join(daemons[:_NAMED])
        + (f" and {len(daemons) - _NAMED} more" if len(daemons) > _NAMED else "")
        + f" stopped: {text}"
        for text, daemons in fatal.items()
    ]
    details = (*error.details, *log_tails(error.logs))
    forbidden = any(
        "unshare failed" in line or "Operation not permitted" in line
        for line in (*stopped, *details)
    )
    cause, *others = (stopped[0], error.cause, *stopped[1:]) if stopped else (error.cause,)
    return ClusterError(
        f"the local cluster did not start: {cause}",
        details=(*others, *details),
        next_step=_next_step(fatal, forbidden=forbidden),
    )


def _next_step(fatal: Iterable[str], *, forbidden: bool) -> str:
    if forbidden:
        return "namespaces are not permitted: run as root, or in a container with --privileged"
    if any("plugin" in text for text in fatal):
        return (
            "fix the plugin's name, or install Slurm's plugins: toolkit setup;"
            " then: toolkit cluster up"
        )
    return "nothing of it is left; fix the error in the log, then: toolkit cluster up"


def _same_or_error(
    paths: Paths, shape: Shape, shared: tuple[str, ...], requested: tuple[str, ...]
) -> None:
    plan = read_json(paths.plan, Plan)
    next_step = f"toolkit cluster down --name {paths.name}, then up again"
    if plan.shape != shape:
        both = (f"running   {summary(plan.shape)}", f"requested {summary(shape)}")
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
        if directory in {os.path.realpath(path) for path in requested}
    ]
    if wanted:
        raise ClusterError(
            f"cluster {paths.name} is up, and its nodes do not see {wanted[0]}", next_step=next_step
        )


def shared_directories(paths: Paths, share: tuple[str, ...]) -> tuple[str, ...]:
    """Return the directories below /tmp or /dev/shm that all nodes see, outermost only, sorted.

    Raises:
        UsageError: a directory of ``share`` does not exist, or is private as a whole.
    """
    for directory in share:
        if not Path(directory).is_dir():
            raise UsageError(
                f"there is no directory {directory}",
                place="--share",
                next_step=f"mkdir -p {quoting.shell(str(directory))}, or another directory",
            )
        if os.path.realpath(directory) in PRIVATE:
            raise UsageError(
                f"each node has its own {directory}, which cannot be shared as a whole",
                place="--share",
                next_step=f"share a directory below it: --share {directory}/NAME",
            )
    package = package_directory("")
    own = (
        Path.home(),
        access.current_directory(),
        paths.directory,
        package,
        shipped("jobs"),
        shipped("recipes"),
    )
    shared = sorted({os.path.realpath(path) for path in (*map(str, own), *share)})
    below = [directory for directory in shared if below_private(directory)]
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
        gpus=plan.gpus,
    )
    for name, content in written.items():
        write_atomically(
            paths.etc / name, content, mode=0o600 if name == "slurmdbd.conf" else 0o644
        )
    nodes = all_nodes(plan.shape)
    for node in nodes:
        (paths.directory / "node" / node.name / "spool").mkdir(parents=True)
    for number in range(max(node.gpus for node in nodes)):
        # A substitute for /dev/nvidia0: Slurm accepts any character device, and numbers GPUs by the
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
        reports.await_ready(progress, len(nodes))
        pid = processes.first_process(paths)
        if pid is None:
            raise StartError("its first process has ended", (paths.log_of("cluster"),))
        await_idle(paths, nodes, reports, access.prefix(paths, pid, "/"))
        write_atomically(
            paths.started,
            to_json(
                access.Started(
                    pid=pid, shared=plan.shared, like=plan.shape.like, real_gpus=bool(plan.gpus)
                )
            ),
        )
        assert process.stdin is not None
        process.stdin.write(KEEP)
        process.stdin.flush()
        progress.end()


@contextlib.contextmanager
def _ended_with(process: subprocess.Popen[str]) -> Iterator[None]:
    """Close stdin of the cluster's first process, which ends it unless ``keep`` was sent."""
    try:
        yield
    finally:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _command(paths: Paths, plan: Plan) -> tuple[str, ...]:
    as_user = ("--user", "--map-current-user", "--keep-caps") if plan.as_user else ()
    supervisor = (sys.executable, "-m", processes.SUPERVISOR, str(paths.directory))
    return (*processes.UNSHARE, *as_user, *supervisor)


def _environment(paths: Paths) -> dict[str, str]:
    """Return the environment of the daemons: only variables that locate programs and libraries."""
    names = (
        "HOME",
        "USER",
        "LOGNAME",
        "LANG",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONDONTWRITEBYTECODE",
    )
    environment = {name: os.environ[name] for name in names if name in os.environ}
    parts = os.environ.get("PATH", "/usr/bin:/bin").split(os.pathsep)
    parts += [
        directory
        for directory in ("/usr/sbin", "/sbin", "/usr/bin", "/bin")
        if directory not in parts
    ]
    return environment | {"PATH": os.pathsep.join(parts), "SLURM_CONF": str(paths.conf)}


def down(name: str, progress: Progress, *, keep_logs: bool = False) -> bool:
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
    if not is_ours(paths) and not processes.supervisors(paths):
        return False
    with locked(paths):
        progress.begin("down", f"cluster {name}")
        ended = processes.stop(paths)
        removed = remove_files(paths, keep_logs=keep_logs)
        progress.end()
    return ended or removed
