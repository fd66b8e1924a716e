"""Run one step of a build on an overlay, confined to the image by bubblewrap.

A step runs code of packages, such as a ``setup.py``: it is not trusted. ``python -m
toolkit.images.builder.apptainer.sandbox FILE`` enters namespaces (``kernel``), mounts the image's
layers there, and runs the step with bubblewrap: the image is its only root, it sees its own
processes and few devices, and it has the capabilities that package managers need and no way to
more. The network is the host's, and so are its abstract sockets and loopback addresses, which have
no place in the file system.

bubblewrap follows symbolic links of the image when it makes mount points, so it is given paths
without links, and everything that it mounts upon exists before it starts.

Why not ``apptainer exec --overlay``: it hides parts of the image behind mounts of the machine's,
shows the environment of a run and not of a build, chooses between overlayfs and FUSE by itself
(which mark opaque directories in four ways), and root may not start it here without a changed
configuration. With mounts of our own there is one kind of overlay, whose options are known.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from toolkit.images.builder.apptainer.inroot import resolve
from toolkit.images.builder.apptainer.settle import list_byte_code, settle
from toolkit.images.host.kernel import (
    LIBC,
    NODEV,
    NOEXEC,
    NOSUID,
    Bind,
    call,
    enter,
    in_user_namespace,
    mount,
)

# All that a directory or file is must be in the upper directory itself; ``userxattr`` implies
# the other two options.
_OVERLAY = {True: "index=off,userxattr", False: "index=off,redirect_dir=off,metacopy=off"}
_DEVICES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
}
# The part of sysfs that steps see: processors and memory, which hwloc, torch and others read.
# Without a mount of sysfs's root, the kernel also refuses to mount another sysfs in a user
# namespace that the step makes.
_SYSFS = "devices/system"
# As the OCI runtime does (opencontainers/runtime-spec, defaults of containerd): root may write to
# these without any capability.
_READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_MASKED = (
    *("acpi", "asound", "kcore", "keys", "latency_stats", "scsi"),
    *("sched_debug", "timer_list", "timer_stats"),
)
# Left out of Docker's default set: MKNOD and NET_RAW would reach the host's disks and network (a
# container of Docker has a device cgroup and a network of its own); no package manager needs
# NETBIND_SERVICE and SETPCAP.
_CAPABILITIES = (
    "CHOWN",  # files of packages belong to their users
    "DAC_OVERRIDE",  # root writes files that their mode protects
    "FOWNER",  # modes and times of other users' files
    "FSETID",  # set-group-id bits stay when dpkg writes a file
    "KILL",  # maintainer scripts stop daemons of other users
    "SETGID",
    "SETUID",  # apt downloads as _apt, scripts call su and runuser
    "SYS_CHROOT",  # rpm and dpkg with --root
    "AUDIT_WRITE",  # PAM refuses root's su without it where the kernel audits
    "SETFCAP",  # packages give programs capabilities instead of set-user-id
)
# bubblewrap leaves the bounding set as it is. Without more than these, it is still started with the
# capability to mount if that is inheritable.
_BOUNDING_SET = ",".join(("-all", *(f"+{name.lower()}" for name in _CAPABILITIES)))
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION = 1


class Lower(NamedTuple):
    """An existing file system: a squashfs in a file from ``offset`` on, or a directory (None)."""

    path: str
    offset: int | None = None


class SandboxStep(NamedTuple):
    """One step.

    Attributes:
        bubblewrap: The path of ``bwrap``.
        users: The arguments of ``newuidmap`` that follow the process; empty for root.
        groups: The arguments of ``newgidmap``.
        directory: The directory of the steps' changes. The names in it are short, so that neither
            an unusual path nor many layers exceed the options of a mount.
        lowers: What it runs on, the lowest first; paths may be relative to the directory.
        upper: What it changes: a name in the directory.
        command: The program and its arguments, in the image.
        environment: Its whole environment.
        binds: What it sees of the machine.
        passing_binds: The same; an empty directory that was made for one of these does not stay.
        products: A directory of the machine, for the files that it leaves in ``product_source``.
        product_source: A directory of the image; empty if it makes no products.
        byte_code: A command of the image that makes byte code reproducible; empty to leave byte
            code unchanged.
        pack: A command of the machine that packs what it changed; empty to leave it unpacked.
        changed: The file, on the host, that tells this command which byte code the step made.
    """

    bubblewrap: str
    directory: str
    lowers: tuple[Lower, ...]
    upper: str
    command: tuple[str, ...]
    users: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()
    environment: dict[str, str] = {}
    binds: tuple[Bind, ...] = ()
    passing_binds: tuple[Bind, ...] = ()
    products: str = ""
    product_source: str = ""
    byte_code: tuple[str, ...] = ()
    pack: tuple[str, ...] = ()
    changed: str = ""


def read_step(file: Path) -> SandboxStep:
    """Read a step that was written as JSON; a reader of models takes as long as a small step."""
    fields = json.loads(file.read_text(encoding="utf-8"))
    fields["lowers"] = [Lower(*each) for each in fields["lowers"]]
    for name in ("binds", "passing_binds"):
        fields[name] = [Bind(*each) for each in fields[name]]
    return SandboxStep(**fields)


def run(step: SandboxStep) -> int:
    """Run a step to its end; return its exit code, or that of bubblewrap.

    Processes that it leaves end with it.

    Raises:
        OSError: It could not be started, or its changes could not be read.
    """
    began = int(time.time()) - 1  # file systems take the time from a coarser clock
    lowers = [_show(lower, Path(f"l{number}")) for number, lower in enumerate(step.lowers)][::-1]
    _make_devices()
    code = _run_in_image(step, lowers, step.command)
    if code != 0:
        return code
    if step.byte_code and (paths := list_byte_code(step.upper)):
        names = (os.fsencode(path) + b"\0" for path in paths)
        Path(step.changed).write_bytes(b"".join(names))
        _run_in_image(step, lowers, step.byte_code)  # if it fails, they are unchanged
    for bind in step.passing_binds:  # the empty directories on which these were mounted
        with suppress(OSError):
            resolve(step.upper, bind.target).rmdir()
    settle(step.upper, lowers, began)
    if step.pack:
        code = subprocess.run(step.pack, stdin=subprocess.DEVNULL, check=False).returncode
    return code


def _show(lower: Lower, target: Path) -> str:
    """Show a file system below this directory: a squashfs by the kernel or FUSE.

    Raises:
        OSError: Neither works.
    """
    if lower.offset is None:
        return lower.path
    target.mkdir(exist_ok=True)
    option, place = f"offset={lower.offset}", (lower.path, str(target))
    commands = [
        ["mount", "-t", "squashfs", "-o", f"loop,ro,{option}", *place],
        ["squashfuse_ll", "-o", option, *place],
        ["squashfuse", "-o", option, *place],
    ]
    reasons: list[str] = []
    for argv in commands[1 if in_user_namespace() else 0 :]:
        if shutil.which(argv[0]) is None:
            continue
        result = subprocess.run(argv, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            return str(target)
        reasons += result.stderr.strip().splitlines()[-1:]
    reason = "; ".join(reasons) or "squashfuse is not installed"
    raise OSError(f"{lower.path} cannot be mounted: {reason}")


def _mount_image(lowers: Sequence[str], upper: str) -> None:
    """Mount directories, the highest first, at ``root``, with ``upper`` for changes."""
    if not Path(upper).exists():
        Path(upper).mkdir()
        # The image's root keeps its mode and owner.
        shutil.copystat(lowers[0], upper)
        status = Path(lowers[0]).stat()
        os.chown(upper, status.st_uid, status.st_gid)
    # A new directory each time: the kernel refuses one that a volatile mount has used.
    scratch = tempfile.mkdtemp(prefix="w", dir=".")
    options = f"lowerdir={':'.join(lowers)},{_OVERLAY[in_user_namespace()]}"
    options += f",upperdir={upper},workdir={scratch}"
    Path("root").mkdir(exist_ok=True)
    # An upper directory is worthless after a power failure, and apt otherwise waits for the disk
    # after every file.
    mount("overlay", "root", "overlay", NODEV, f"{options},volatile")


def _run_in_image(step: SandboxStep, lowers: Sequence[str], command: Sequence[str]) -> int:
    """Run a command in the image; return its exit code, or that of bubblewrap."""
    _mount_image(lowers, step.upper)
    words = ["setpriv", "--inh-caps", "+sys_admin", "setpriv", "--bounding-set", _BOUNDING_SET]
    words += [step.bubblewrap, "--die-with-parent", "--new-session", "--as-pid-1"]
    words += ["--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    words += ["--hostname", "localhost"]  # resolves everywhere, and is the same in every build
    words += ["--cap-drop", "ALL"]
    words += [word for name in _CAPABILITIES for word in ("--cap-add", f"CAP_{name}")]
    words += ["--bind", "root", "/", *_bind_words((*step.binds, *step.passing_binds))]
    words += [*_kernel_words(), "--chdir", "/", "--", *command]
    _leave_session_of_keys()
    # Root of the host could change the mode of the host's device by its standard input.
    own = Path("dev/null")
    with (own if own.exists() else Path("/dev/null")).open("rb") as stdin:
        code = subprocess.run(words, env=step.environment, stdin=stdin, check=False).returncode
    if code == 0 and step.product_source and command is step.command:
        _copy_products(resolve("root", step.product_source), Path(step.products))
    call("umount2", b"root", 0)
    return code if code >= 0 else 128 - code


def _place(path: Path) -> str:
    return f"/{path.relative_to('root')}"


def _make_directory(name: str) -> str:
    path = resolve("root", name)
    path.mkdir(parents=True, exist_ok=True)
    return _place(path)


def _bind_words(binds: Iterable[Bind]) -> list[str]:
    """Return the words that show files and directories of the host where the image's links lead."""
    words: list[str] = []
    places: dict[str, str] = {}
    for bind in binds:
        source, target = Path(bind.source), bind.target
        if not source.exists():
            continue
        above = next((place for place in places if target.startswith(f"{place}/")), "")
        if above:  # a place in what is mounted already
            place = places[above] + target.removeprefix(above)
        else:
            path = resolve("root", target)
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.mkdir() if source.is_dir() else path.touch()
            place = _place(path)
            if any(place.startswith(f"{mounted}/") for mounted in places.values()):
                # The step may change where links in it lead until bubblewrap makes the directory.
                raise OSError(f"{target} of the image leads into another mount")
            places[target] = place
        words += ["--bind" if bind.writable else "--ro-bind", str(source), place]
    return words


def _kernel_words() -> list[str]:
    """Return the words that show the step its processes, few devices, and some of sysfs."""
    proc, dev, sys_ = (_make_directory(name) for name in ("proc", "dev", "sys"))
    if f"{dev}/".startswith(f"{proc}/") or f"{sys_}/".startswith(f"{proc}/"):
        # Links of a mounted /proc would lead bubblewrap to the host, to make directories there.
        raise OSError("/dev or /sys of the image leads into its /proc")
    words = ["--proc", proc]
    for name in filter(lambda name: Path("/proc", name).exists(), _READ_ONLY):
        words += ["--ro-bind", f"/proc/{name}", f"{proc}/{name}"]
    for name in filter(lambda name: Path("/proc", name).exists(), _MASKED):
        if Path("/proc", name).is_dir():
            words += ["--tmpfs", f"{proc}/{name}", "--remount-ro", f"{proc}/{name}"]
        else:
            words += ["--ro-bind", "/dev/null", f"{proc}/{name}"]
    words += ["--dev", dev]
    for path in Path("dev").iterdir():
        words += ["--bind" if path.is_dir() else "--dev-bind", str(path), f"{dev}/{path.name}"]
    words += ["--tmpfs", sys_]
    if Path("/sys", _SYSFS).is_dir():
        words += ["--ro-bind", f"/sys/{_SYSFS}", f"{sys_}/{_SYSFS}"]
    return [*words, "--remount-ro", sys_]


def _make_devices() -> None:
    """Make ``dev`` with shared memory and devices of the step's own.

    bubblewrap shows the host's devices, whose modes and times root of the host could change. In a
    user namespace the step's root cannot, and cannot make devices either.
    """
    directory = Path("dev")
    directory.mkdir(exist_ok=True)
    mount("tmpfs", directory, "tmpfs", NOSUID, "mode=755")
    (directory / "shm").mkdir()
    (directory / "shm").chmod(0o1777)
    for name, numbers in _DEVICES.items() if not in_user_namespace() else ():
        os.mknod(directory / name, stat.S_IFCHR | 0o666, os.makedev(*numbers))
        (directory / name).chmod(0o666)


def _leave_session_of_keys() -> None:
    """Leave the inherited session of keys (keyrings(7)), which bubblewrap does not."""
    if os.uname().machine in _KEYCTL:
        joined = LIBC.syscall(_KEYCTL[os.uname().machine], _JOIN_SESSION, None)
        # Where the call is missing or filtered, the step has no way to keys either.
        if joined < 0 and (code := ctypes.get_errno()) not in (errno.ENOSYS, errno.EPERM):
            raise OSError(code, f"keyctl: {os.strerror(code)}")


def _copy_products(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()) if source.is_dir() else ():
        if path.is_file() and not path.is_symlink():
            shutil.copy2(path, target / path.name, follow_symlinks=False)


def main(arguments: Sequence[str]) -> int:
    """Run the step of a file; return its exit code."""
    step = read_step(Path(arguments[0]))
    os.chdir(step.directory)
    os.umask(0o022)
    try:
        enter(step.users, step.groups)
        # bubblewrap looks for the processes that it starts.
        mount("proc", "/proc", "proc", NOSUID | NODEV | NOEXEC)
        return run(step)
    except OSError as error:
        print(f"toolkit: {error}", flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
