"""Read the facts about a machine, and change nothing.

No program is started unless a part is missing or doubtful: a ready machine is recognized in a few
milliseconds.
"""

from __future__ import annotations

import os
import platform
import pwd
import socket
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from toolkit import shell
from toolkit.hostsetup import parts
from toolkit.hostsetup.decide import Facts
from toolkit.localcluster import packages

_SWITCHES = ("/proc/sys/user/max_user_namespaces", "/proc/sys/kernel/unprivileged_userns_clone")


def read_facts(extras: Collection[str] = (), *, updates: bool = False) -> Facts:
    """Return the facts about this machine.

    Args:
        extras: what else it is to be ready for: ``accounting`` or ``tests``.
        updates: the newest Apptainer is wanted.
    """
    is_root, user = os.geteuid() == 0, str(os.geteuid())
    with suppress(KeyError):  # it has no name, as in docker run --user
        user = pwd.getpwuid(os.geteuid()).pw_name
    system = dict[str, str]()
    with suppress(OSError):  # there is no such file
        system = platform.freedesktop_os_release()
    runtime = shell.find_apptainer()
    setuid = runtime is not None and _setuid(runtime)
    return Facts(
        installs=system.get("ID") == "debian" and shell.which("apt-get") is not None,
        root=is_root,
        user=user,
        toolkit=f"{sys.executable} -m toolkit",
        runtime=runtime,
        updates=updates,
        missing=_missing(extras, system.get("VERSION_CODENAME")),
        interrupted=parts.WORKPLACE.exists(),
        fuse=setuid or _is_fuse_open(),
        ids=_has_ids(user),
        namespaces=is_root or setuid or not any(_says(path, "0") for path in _SWITCHES),
        unresolved=_unresolved(socket.gethostname()),
        root_exec=not is_root or runtime is None or _can_start_as_root(runtime),
    )


def _has_own_slurm() -> bool:
    """Return whether this machine has a Slurm that is in use, or is not of Debian's packages."""
    is_used = "SLURM_CONF" in os.environ or any(
        Path(path).exists() for path in ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf")
    )
    # One of Debian's was installed for the local cluster.
    is_debians = Path("/var/lib/dpkg/info/slurm-client.list").exists()
    return shell.which("sbatch") is not None and (is_used or not is_debians)


def _missing(extras: Collection[str], codename: str | None) -> dict[str, tuple[str, ...]]:
    slurm = packages.needed("accounting" in extras)
    if has_slurm := _has_own_slurm():  # beside which no other Slurm is installed
        slurm = tuple(name for name in slurm if not name.startswith("slurm"))
    tests = parts.TESTS | ({} if codename == "bookworm" else parts.TESTS_AFTER_BOOKWORM)
    missing = {
        "a real Slurm on this machine": slurm,
        "build images from a Debian base": _lacking(parts.BUILD),
        "toolkit ssh, forward and notebook": () if has_slurm else _lacking(parts.SESSIONS),
        "run the test-suite": _lacking(tests) if "tests" in extras else (),
    }
    return {purpose: names for purpose, names in missing.items() if names}


def _lacking(table: dict[str, str]) -> tuple[str, ...]:
    """Return the packages of a table whose program this machine lacks."""
    return tuple(package for program, package in table.items() if not _is_installed(program))


def _is_installed(program: str) -> bool:
    if program.startswith("/"):
        return any(Path("/").glob(program.lstrip("/")))
    return shell.which(program) is not None


def _setuid(runtime: str) -> bool:
    """Return whether this Apptainer mounts images as root, without namespaces and FUSE."""
    return any(Path(runtime).resolve().parents[1].glob("libexec/*/bin/starter-suid"))


def _has_ids(user: str) -> bool:
    if _says("/etc/nsswitch.conf", "subid:"):
        return True  # they come from a directory service
    names = (f"{user}:", f"{os.geteuid()}:")
    return all(_says(path, *names) for path in ("/etc/subuid", "/etc/subgid"))


def _unresolved(name: str) -> str:
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError):
        return name
    return ""


def _says(path: str, *starts: str) -> bool:
    return any(line.startswith(starts) for line in _lines(path))


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []


def _is_fuse_open() -> bool:
    try:
        return Path("/dev/fuse").stat().st_mode & 0o006 == 0o006
    except OSError:
        return False


def _can_start_as_root(runtime: str) -> bool:
    """Return whether root, which may lack capabilities here, can start a container.

    Apptainer gives root in a container all of them, or those of a file (``decide.adjustments``).
    """
    last = int("".join(_lines("/proc/sys/kernel/cap_last_cap")) or "0")
    masks = [line.split()[1] for line in _lines("/proc/self/status") if line.startswith("CapPrm:")]
    if not masks or int(masks[0], 16) == (1 << (last + 1)) - 1:
        return True
    words = (runtime, "buildcfg", f"{Path(runtime).name.upper()}_CONF_FILE")
    settings = shell.run(words, check=False).stdout.strip()
    return _says(settings, "root default capabilities = file", "root default capabilities = no")
