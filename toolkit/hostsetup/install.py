"""Carry actions out as root."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from toolkit import shell
from toolkit.hostsetup import apt, fit_apptainer, parts
from toolkit.hostsetup.decide import Facts, adjustments, packages
from toolkit.hostsetup.facts import read_facts
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


def install(extras: Collection[str], progress: Progress, *, updates: bool = False) -> Facts:
    """Make this machine ready, as far as it can be; return the facts of the machine afterwards.

    Args:
        extras: what is installed too: ``accounting`` or ``tests``.
        progress: shows the steps.
        updates: install the newest Apptainer.

    Raises:
        CommandFailedError: a step failed; the next call goes on from there.
        NeedsInstallError: Debian's Apptainer does not fit this release.
    """
    was_interrupted = parts.WORKPLACE.exists()
    with interrupted_by_signals(), _workplace():
        if was_interrupted and shell.which("dpkg"):
            with prevented_from_starting():
                apt.heal(fit_apptainer.PACKAGE)
        facts = read_facts(extras, updates=updates)
        if names := packages(facts):
            _install_packages(names, facts, progress)
        for summary, lines in adjustments(read_facts(extras)).items():
            progress.begin("adjust", summary)
            for line in lines:
                shell.run(["bash", "-c", line], timeout=60)
            progress.end()
    return read_facts(extras)


@contextmanager
def _workplace() -> Iterator[None]:
    """``parts.WORKPLACE``, empty and for one setup at a time; it stays if this is interrupted.

    dpkg has a lock of its own, also after the setup was killed.
    """
    with _LOCK.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        shutil.rmtree(parts.WORKPLACE, ignore_errors=True)
        parts.WORKPLACE.mkdir(parents=True)
        parts.WORKPLACE.chmod(0o755)  # apt reads here as another user, whatever our umask is
        yield
        shutil.rmtree(parts.WORKPLACE)


def _install_packages(names: list[str], facts: Facts, progress: Progress) -> None:
    progress.begin("lists", "apt's package lists", expected=6)
    apt.update()
    files: tuple[Path, ...] = ()
    if facts.needs_apptainer and apt.candidate(fit_apptainer.PACKAGE) and not facts.updates:
        names = [*names, fit_apptainer.PACKAGE]
    elif facts.needs_apptainer:
        progress.begin("fetch", f"apptainer of Debian's {fit_apptainer.SUITE}", expected=15)
        files = (fit_apptainer.fetch(parts.WORKPLACE / "rolling"),)
    progress.begin("install", ", ".join(names))
    with prevented_from_starting():
        apt.install([*names, *files])
        keep_off_at_boot(names)
    progress.end()


@contextmanager
def prevented_from_starting(policy: Path = POLICY) -> Iterator[None]:
    """Prevent packages from starting daemons when they are installed.

    A policy of the administrator's stays as it is, and decides by itself.
    """
    is_ours = not policy.exists() or MARK in policy.read_text(errors="replace")
    if is_ours:
        policy.write_text(f"#!/bin/sh\n{MARK}\nexit 101\n")
        policy.chmod(0o755)
    try:
        yield
    finally:
        if is_ours:
            policy.unlink()
            with suppress(FileNotFoundError):  # put aside by an earlier version that was killed
                policy.with_name(f"{policy.name}.before-toolkit").rename(policy)


def keep_off_at_boot(packages: Iterable[str]) -> None:
    """Disable the services of these packages at boot.

    They were just installed: a service in use is never among them.
    """
    for service in (name for package in packages for name in _SERVICES.get(package, ())):
        if shell.which("systemctl"):
            shell.run(("systemctl", "disable", service), check=False)
