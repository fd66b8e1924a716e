"""Prevent packages from starting their daemons, since the local cluster starts its own.

``/usr/sbin/policy-rc.d`` is Debian's switch for that. A machine may have one already (containers
do); it is put back afterwards, also after Ctrl-C or, at the next call, after ``kill -9``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from toolkit import shell

POLICY = Path("/usr/sbin/policy-rc.d")
MARK = "# written by toolkit setup, for as long as it installs packages"
# Debian package -> the services that it would start at boot.
_SERVICES = {
    "docker-registry": ("docker-registry",),
    "docker.io": ("docker",),
    "mariadb-server": ("mariadb",),
    "munge": ("munge",),
    "podman": (
        *("podman.service", "podman.socket", "podman-restart.service"),
        *("podman-auto-update.service", "podman-auto-update.timer"),
    ),
    "slurmctld": ("slurmctld",),
    "slurmd": ("slurmd",),
    "slurmdbd": ("slurmdbd",),
}
_DENY = f"#!/bin/sh\n{MARK}\nexit 101\n"


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
        argv = ["systemctl", "disable"] if is_unit else ["update-rc.d"]
        if shell.which(argv[0]):
            shell.run([*argv, service, *(() if is_unit else ("disable",))], check=False)


def _backup_of(policy: Path) -> Path:
    return policy.with_name(f"{policy.name}.before-toolkit")
