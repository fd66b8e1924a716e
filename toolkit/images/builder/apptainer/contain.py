"""Confine the process of a build step to the root file system of its image.

A step runs code of packages, such as a ``setup.py``: it is not trusted. The caller has made
namespaces of mounts, processes, IPC and host names, and mounted the image's root. ``confine`` then

- shows the step its devices, processes and host configuration, mounted where the image's own
  symbolic links lead (``inroot``);
- makes the image the root of the mount namespace and detaches the host's, so that no path leads
  out, not even through ``/proc``;
- drops all capabilities except those that package managers need, and the way to regain them.

The network is the host's. So are its abstract sockets and loopback addresses, which have no place
in the file system.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from toolkit.images.builder.apptainer.inroot import resolve
from toolkit.images.host.host_mounts import Bind
from toolkit.images.host.kernel import (
    BIND,
    LIBC,
    NODEV,
    NOEXEC,
    NOSUID,
    RDONLY,
    REMOUNT,
    bind,
    call,
    mount,
    pivot,
)

_HOST_NAME = b"localhost"  # resolves everywhere, and is the same in every build
_DEVICES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
}
# The part of sysfs that steps see: processors and memory, which hwloc, torch and others read.
_SYSFS = "devices/system"
# As the OCI runtime does (opencontainers/runtime-spec, defaults of containerd): root may write to
# these without any capability.
_READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_MASKED = (
    "acpi",
    "asound",
    "kcore",
    "keys",
    "latency_stats",
    "scsi",
    "sched_debug",
    "timer_list",
    "timer_stats",
)
# Left out of Docker's default set: MKNOD and NET_RAW would reach the host's disks and network (a
# container of Docker has a device cgroup and a network of its own); no package manager needs
# NETBIND_SERVICE and SETPCAP.
_CAPABILITIES = {
    "CHOWN": 0,  # files of packages belong to their users
    "DAC_OVERRIDE": 1,  # root writes files that their mode protects
    "FOWNER": 3,  # modes and times of other users' files
    "FSETID": 4,  # set-group-id bits stay when dpkg writes a file
    "KILL": 5,  # maintainer scripts stop daemons of other users
    "SETGID": 6,
    "SETUID": 7,  # apt downloads as _apt, scripts call su and runuser
    "SYS_CHROOT": 18,  # rpm and dpkg with --root
    "AUDIT_WRITE": 29,  # PAM refuses root's su without it where the kernel audits
    "SETFCAP": 31,  # packages give programs capabilities instead of set-user-id
}
_CAPBSET_READ, _CAPBSET_DROP, _NO_NEW_PRIVILEGES, _AMBIENT, _AMBIENT_CLEAR = 23, 24, 38, 47, 4
_CAPABILITY_VERSION = 0x20080522  # of linux/capability.h: two words of 32 bits each
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION = 1
_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "fd/0",
    "stdout": "fd/1",
    "stderr": "fd/2",
    "ptmx": "pts/ptmx",
}


def confine(root: str, binds: Sequence[Bind]) -> None:
    """Make a mounted root all that this process can reach, and give up privileges.

    Args:
        root: The place of the root file system.
        binds: What the step sees of the host.

    Raises:
        OSError: A part of it failed; the process must not run a step.
    """
    os.setsid()  # a signal to the group must not reach the builder, nor a terminal the step
    call("sethostname", _HOST_NAME, len(_HOST_NAME))
    for host_bind in binds:
        if Path(host_bind.source).exists():
            _bind_host(host_bind, root)
    _mount_proc(_make_directory(root, "proc"))
    _make_devices(_make_directory(root, "dev"))
    _mount_sysfs(_make_directory(root, "sys"))
    pivot(root)
    _forget_inherited()
    _drop_privileges()


def _make_directory(root: str, name: str) -> Path:
    path = resolve(root, name)
    path.mkdir(parents=True, exist_ok=True)
    return path


def _mount_proc(place: Path) -> None:
    """Mount the step's own processes, without the kernel's settings that root may write."""
    mount("proc", place, "proc", NOSUID | NODEV | NOEXEC)
    for path in (place / name for name in _READ_ONLY if (place / name).exists()):
        bind(str(path), path)
    for path in (place / name for name in _MASKED if (place / name).exists()):
        if path.is_dir():
            mount("tmpfs", path, "tmpfs", RDONLY | NOSUID | NODEV | NOEXEC, "mode=755")
        else:
            bind("/dev/null", path, writable=True)


def _make_devices(directory: Path) -> None:
    """Make the few devices that every program may expect.

    Root's are new nodes, so that no step can change the machine's.
    """
    mount("tmpfs", directory, "tmpfs", NOSUID, "mode=755")
    for name, minor in _DEVICES.items():
        node = directory / name
        try:
            os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(*minor))
            node.chmod(0o666)
        except PermissionError:  # in a user namespace, which cannot change them
            node.touch()
            bind(f"/dev/{name}", node, writable=True)
    for name, target in _LINKS.items():
        (directory / name).symlink_to(target)
    for name, kind, flags, options in (
        ("shm", "tmpfs", NODEV, "mode=1777"),
        ("pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=620"),
    ):
        (directory / name).mkdir()
        with suppress(OSError):
            mount(kind, directory / name, kind, NOSUID | NOEXEC | flags, options)


def _mount_sysfs(directory: Path) -> None:
    """Show the processors and memory of sysfs, read-only.

    Without a mount of sysfs's root, the kernel also refuses to mount another sysfs in a user
    namespace that the step makes.
    """
    mount("tmpfs", directory, "tmpfs", NOSUID | NODEV | NOEXEC, "mode=755")
    if Path("/sys", _SYSFS).is_dir():
        (directory / _SYSFS).mkdir(parents=True)
        bind(f"/sys/{_SYSFS}", directory / _SYSFS)
    mount("none", directory, "", REMOUNT | BIND | RDONLY | NOSUID | NODEV | NOEXEC)


def _bind_host(host_bind: Bind, root: str) -> None:
    """Show a file or directory of the host at the place to which the image's own links lead."""
    target = resolve(root, host_bind.target)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.mkdir() if Path(host_bind.source).is_dir() else target.touch()
    bind(host_bind.source, target, writable=host_bind.writable)


def _forget_inherited() -> None:
    """Close the host's open files, and leave its inherited session of keys (keyrings(7))."""
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if os.uname().machine in _KEYCTL:
        joined = LIBC.syscall(_KEYCTL[os.uname().machine], _JOIN_SESSION, None)
        # Where the call is missing or filtered, the step has no way to keys either.
        if joined < 0 and (code := ctypes.get_errno()) not in (errno.ENOSYS, errno.EPERM):
            raise OSError(code, f"keyctl: {os.strerror(code)}")


def _drop_privileges() -> None:
    """Keep the capabilities that package managers need, and let no program get more.

    Neither set-user-id nor file capabilities have an effect afterwards.
    """
    needed = sum(1 << number for number in _CAPABILITIES.values())
    number = 0
    while (is_set := LIBC.prctl(_CAPBSET_READ, number, 0, 0, 0)) >= 0:
        if is_set and not needed >> number & 1:
            call("prctl", _CAPBSET_DROP, number, 0, 0, 0)
        number += 1
    with suppress(OSError):  # kernels before 4.3 have none
        call("prctl", _AMBIENT, _AMBIENT_CLEAR, 0, 0, 0)
    call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    head = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    current = (ctypes.c_uint32 * 6)()
    call("capget", head, current)
    permitted = (current[1] | current[4] << 32) & needed
    low, high = permitted & 0xFFFFFFFF, permitted >> 32
    call("capset", head, (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0))
