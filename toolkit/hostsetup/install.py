"""Carry actions out as root; size and origin of packages are announced before they come."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from toolkit import shell
from toolkit.errors import CommandFailedError
from toolkit.hostsetup import apt, fit_apptainer, parts
from toolkit.hostsetup.decide import Facts, SetupOptions, adjustments, decide
from toolkit.hostsetup.facts import complaint, read_facts
from toolkit.shell import Progress, interrupted_by_signals

_LOCK = Path("/run/toolkit-setup.lock")
# Debian's switch that keeps packages from starting their daemons: the local cluster starts its own.
POLICY = Path("/usr/sbin/policy-rc.d")
MARK = "# written by toolkit setup, for as long as it installs packages"
# Debian package -> the services that it would start at boot.
_SERVICES = {
    "docker-registry": ("docker-registry",),
    "docker.io": ("docker",),
    "mariadb-server": ("mariadb",),
    "munge": ("munge",),
    "openssh-server": ("ssh",),
    "podman": (
        *("podman.service", "podman.socket", "podman-restart.service"),
        *("podman-auto-update.service", "podman-auto-update.timer"),
    ),
    "slurmctld": ("slurmctld",),
    "slurmd": ("slurmd",),
    "slurmdbd": ("slurmdbd",),
}
_DENY = f"#!/bin/sh\n{MARK}\nexit 101\n"


def install(options: SetupOptions, progress: Progress) -> Facts:
    """Make this machine ready.

    Returns:
        The facts of the machine afterwards.

    Raises:
        CommandFailedError: a step failed; the next call goes on from there.
        NeedsInstallError: Debian's Apptainer does not fit this release.
    """
    with interrupted_by_signals(), _exclusive_lock(progress) as lock, _workplace():
        facts = _healed(read_facts(options), progress)
        actions = decide(facts)
        packages = tuple(sorted({package for action in actions for package in action.packages}))
        apptainer = any(action.kind == "apptainer" for action in actions)
        if packages:
            _packages(packages, apptainer, facts, lock, progress)
        facts = read_facts(options)
        changes = adjustments(facts)
        for action in changes:
            progress.begin(action.kind, action.summary)
            for line in action.by_hand:
                shell.run(["bash", "-c", line], timeout=60)
            progress.end()
        if facts.runtime and (changes or apptainer):
            _try(facts.runtime, progress)
    return read_facts(options)


@contextmanager
def _exclusive_lock(progress: Progress) -> Iterator[int]:
    """Allow one setup at a time; dpkg holds the lock, too, also after the setup was killed."""
    with _LOCK.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            progress.say("waits", "another toolkit setup is at work on this machine")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle.fileno()


@contextmanager
def _workplace() -> Iterator[None]:
    """``parts.WORKPLACE``, empty, for as long as this takes."""
    shutil.rmtree(parts.WORKPLACE, ignore_errors=True)
    parts.WORKPLACE.mkdir(parents=True)
    parts.WORKPLACE.chmod(0o755)  # apt reads here as a user of its own, whatever our umask is
    try:
        yield
    finally:
        shutil.rmtree(parts.WORKPLACE, ignore_errors=True)


def _healed(facts: Facts, progress: Progress) -> Facts:
    """Finish an interrupted installation; a partly unpacked Apptainer counts as missing."""
    if not facts.apt:
        return facts
    with prevented_from_starting():
        apt.heal()
        if not apt.forget_if_half_installed(fit_apptainer.PACKAGE):
            return facts
    progress.say("healed", "an Apptainer that was only partly unpacked is installed again")
    return msgspec.structs.replace(facts, runtime=None)


def _packages(
    packages: tuple[str, ...], apptainer: bool, facts: Facts, lock: int, progress: Progress
) -> None:
    progress.begin("lists", "apt's package lists", expected=15 if apptainer else 6)
    complaints = apt.update()
    codename = facts.os.codename
    direct = apptainer and apt.candidate(fit_apptainer.PACKAGE) is not None
    wanted = (*packages, fit_apptainer.PACKAGE) if direct else packages
    try:
        plan = apt.describe(wanted)
    except CommandFailedError as error:
        raise CommandFailedError(
            error.cause,
            place=error.place,
            details=(*complaints, *error.details),
            next_step=error.next_step,
        ) from error
    suite, options, version = parts.WORKPLACE / "rolling", tuple[str, ...](), ""
    if apptainer and not direct:
        options, version = fit_apptainer.open_suite(suite, codename)
    progress.end()
    for line in plan:
        progress.say("plan", line)
    files: tuple[Path, ...] = ()
    if version:
        progress.say("plan", f"apptainer {version} of Debian's {fit_apptainer.SUITE}")
        progress.begin("fetch", f"apptainer, fitted to {codename}'s glibc", expected=7)
        files = (fit_apptainer.fetch_fitted(suite, options, codename),)
    progress.begin("fetch", "packages")
    apt.fetch(wanted)
    progress.begin("install", ", ".join(wanted))
    with prevented_from_starting():
        apt.install([*wanted, *files], held=(lock,))
        keep_off_at_boot(wanted)
    progress.end()


def _try(runtime: str, progress: Progress) -> None:
    """Start a container as root and as an ordinary user.

    Raises:
        CommandFailedError: root cannot start one.
    """
    progress.begin("try", "tiny container, as root and as a user", expected=1)
    if reason := complaint(runtime):
        raise CommandFailedError("root cannot start a container here", details=[reason])
    reason = complaint(runtime, as_user=True)
    progress.end()
    if reason:
        progress.say("warning", f"ordinary users cannot start containers here: {reason}")


@contextmanager
def prevented_from_starting(policy: Path = POLICY) -> Iterator[None]:
    """Prevent packages from starting daemons when they are installed."""
    restore(policy)
    before = _backup_of(policy)
    try:
        if policy.exists():
            policy.rename(before)
        policy.write_text(_DENY)
        policy.chmod(0o755)
        yield
    finally:
        restore(policy)


def restore(policy: Path = POLICY) -> None:
    """Restore the earlier policy; does nothing if it is in place."""
    if policy.exists() and MARK in policy.read_text(errors="replace"):
        policy.unlink()
    before = _backup_of(policy)
    if before.exists() and not policy.exists():
        before.rename(policy)


def keep_off_at_boot(packages: Iterable[str]) -> None:
    """Disable the services of these packages at boot.

    They were just installed: a service in use is never among them.
    """
    for service in (name for package in packages for name in _SERVICES.get(package, ())):
        # A package that knows systemd only has units with an ending.
        is_unit = "." in service
        argv = ("systemctl", "disable", service) if is_unit else ("update-rc.d", service, "disable")
        if shell.which(argv[0]):
            shell.run(argv, check=False)


def _backup_of(policy: Path) -> Path:
    return policy.with_name(f"{policy.name}.before-toolkit")
