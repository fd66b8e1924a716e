"""Read the facts about a machine, and change nothing.

No program is started unless a part is missing or doubtful: a ready machine is recognized in a few
milliseconds.
"""

from __future__ import annotations

import os
import platform
import pwd
import socket
import stat
import sys
import tempfile
from pathlib import Path
from typing import Literal

from toolkit import shell
from toolkit.errors import CommandFailedError
from toolkit.hostsetup import apt, parts
from toolkit.hostsetup.decide import Facts, Missing, OperatingSystem, SetupOptions
from toolkit.localcluster import packages

FUSE = Path("/dev/fuse")
_SWITCHES = ("/proc/sys/user/max_user_namespaces", "/proc/sys/kernel/unprivileged_userns_clone")
_SAY = ("/bin/sh", "-c", "read word </etc/smoke && echo $word")
_NOBODY = "65534"
# A root directory with a shell and the libraries that it needs, whatever our umask is.
_TINY_ROOT = """
umask 022
mkdir -p root/bin root/etc root/proc root/sys root/dev root/tmp root/root root/home root/var/tmp
cp --parents --dereference /bin/sh $(ldd /bin/sh | grep -o '/[^ ]*') root
echo root:x:0:0:root:/root:/bin/sh >root/etc/passwd
echo root:x:0: >root/etc/group
echo runs >root/etc/smoke
touch root/etc/hosts root/etc/resolv.conf
mkdir -m 777 home
"""
_BECOME_NOBODY = ("setpriv", "--reuid", _NOBODY, "--regid", _NOBODY, "--clear-groups")


def read_facts(options: SetupOptions) -> Facts:
    """Return the facts about this machine."""
    root = os.geteuid() == 0
    user = _user_name()
    system = operating_system("\n".join(_lines("/etc/os-release")), platform.machine())
    runtime = next((path for path in map(shell.which, parts.RUNTIMES) if path), None)
    slurm = _own_slurm()
    has_apt = bool(shell.which("apt-get") and shell.which("dpkg"))
    setuid = runtime is not None and _setuid(runtime)
    asks_apt = runtime is None and has_apt and apt.has_lists()
    return Facts(
        os=system,
        root=root,
        user=user,
        apt=has_apt,
        toolkit=toolkit_command(),
        runtime=runtime,
        runtime_offered=apt.candidate("apptainer") is not None if asks_apt else None,
        missing=_missing(options, slurm, system.codename),
        slurm=slurm,
        interrupted=parts.WORKPLACE.exists(),
        fuse="ready" if setuid else fuse_state(),
        ids=_has_ids(user),
        namespaces=root or setuid or not any(_says(path, "0") for path in _SWITCHES),
        unresolved=_unresolved(socket.gethostname()),
        root_exec=_try_as_root(runtime) if root and runtime else "not tried",
    )


def operating_system(release: str, machine: str) -> OperatingSystem:
    """Parse the text of ``/etc/os-release``."""
    pairs = dict(line.split("=", 1) for line in release.splitlines() if "=" in line)
    values = {key: value.strip().strip("\"'") for key, value in pairs.items()}
    return OperatingSystem(
        name=values.get("PRETTY_NAME", "an unknown system"),
        id=values.get("ID", "unknown"),
        like=tuple(values.get("ID_LIKE", "").split()),
        codename=values.get("VERSION_CODENAME", ""),
        architecture=machine,
    )


def toolkit_command() -> str:
    """Return the command by which an administrator calls this installation of the toolkit."""
    beside = Path(sys.executable).with_name("toolkit")
    return str(beside) if beside.exists() else f"{sys.executable} -m toolkit"


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _own_slurm() -> str | None:
    """Return the ``sbatch`` of a Slurm that is in use, or is not of Debian's packages."""
    is_used = "SLURM_CONF" in os.environ or any(
        Path(path).exists() for path in ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf")
    )
    # One of Debian's was installed for the local cluster.
    is_debians = Path("/var/lib/dpkg/info/slurm-client.list").exists()
    return shell.which("sbatch") if is_used or not is_debians else None


def beside(needed: tuple[str, ...], slurm: str | None) -> tuple[str, ...]:
    """Return the packages that may be installed beside the machine's own Slurm: no other Slurm."""
    return tuple(name for name in needed if not (slurm and name.startswith("slurm")))


def _missing(options: SetupOptions, slurm: str | None, codename: str) -> tuple[Missing, ...]:
    missing = [
        Missing(
            purpose=parts.SLURM_PURPOSE,
            packages=beside(packages.needed(options.accounting), slurm),
        )
    ]
    sessions = () if slurm else (parts.SESSIONS,)
    for part in (parts.BUILD, *sessions, *((parts.TESTS,) if options.tests else ())):
        lacking = tuple(
            need.package
            for need in part.needs
            if need.is_of(codename) and not _is_installed(need.program)
        )
        missing.append(Missing(purpose=part.purpose, packages=lacking))
    return tuple(part for part in missing if part.packages)


def _is_installed(program: str) -> bool:
    return (
        any(Path("/").glob(program.lstrip("/")))
        if program.startswith("/")
        else shell.which(program) is not None
    )


def _setuid(runtime: str) -> bool:
    """Return whether this Apptainer mounts images as root, without namespaces and FUSE."""
    return any(Path(runtime).resolve().parents[1].glob("libexec/*/bin/starter-suid"))


def _has_ids(user: str) -> bool:
    if _says("/etc/nsswitch.conf", "subid:"):
        return True  # they come from a directory service
    names = (f"{user}:", f"{os.geteuid()}:")
    return all(_says(path, *names) for path in ("/etc/subuid", "/etc/subgid"))


def _unresolved(name: str) -> str:
    """Return ``name`` if it has no address; /etc/hosts is read first, since others are slow."""
    if any(name in line.split("#")[0].split()[1:] for line in _lines("/etc/hosts")):
        return ""
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


def _try_as_root(runtime: str) -> Literal["not tried", "works", "fails"]:
    """Start a container as root, in case of doubt: if root lacks one of the capabilities here.

    Apptainer gives root in a container all of them, or those of a file (``install.adjust``).
    """
    last = int("".join(_lines("/proc/sys/kernel/cap_last_cap")) or "0")
    masks = [line.split()[1] for line in _lines("/proc/self/status") if line.startswith("CapPrm:")]
    if not masks or int(masks[0], 16) == (1 << (last + 1)) - 1:
        return "not tried"
    try:
        return "fails" if "apabilit" in complaint(runtime) else "works"
    except CommandFailedError:  # it hangs
        return "not tried"


def fuse_state() -> Literal["ready", "closed", "absent"]:
    """Return whether every user can mount images through ``/dev/fuse``."""
    try:
        status = FUSE.stat()
    except OSError:
        return "absent"
    if not stat.S_ISCHR(status.st_mode):
        return "absent"
    return "ready" if status.st_mode & 0o006 == 0o006 else "closed"


def complaint(runtime: str, *, as_user: bool = False) -> str:
    """Return why a program cannot run in a container; empty if it can. Takes 0.1 s.

    Args:
        runtime: path of Apptainer.
        as_user: root tries it as an ordinary user.
    """
    # On disk, since /tmp may be small or noexec; ordinary users read it.
    with tempfile.TemporaryDirectory(prefix="toolkit-smoke-", dir="/var/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        shell.run(["bash", "-euc", _TINY_ROOT], cwd=place)
        settings = ("env", f"HOME={place}/home", f"APPTAINER_CACHEDIR={place}/home")
        words = (*_BECOME_NOBODY, *settings) if as_user else settings
        argv = [*words, runtime, "exec", "--no-home", place / "root", *_SAY]
        answer = shell.run(argv, cwd=place, check=False, timeout=120)
    if answer.stdout.strip() == "runs":
        return ""
    return "; ".join(answer.tail(2)) or f"exit code {answer.returncode}"
