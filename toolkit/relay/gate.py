"""The end of a relay on the login node: a private socket, and its connections."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple

from toolkit import shell
from toolkit.errors import BusyError, CommandFailedError, UntrustedError, UsageError
from toolkit.quoting import shell as quoted
from toolkit.relay.wire import Relay, WireError, greeting
from toolkit.resources import package_directory
from toolkit.slurm.client import without_job
from toolkit.terminal_text import one_line

LONGEST_PATH = 107  # bytes: sun_path of unix(7) has 108 with the final zero
_GRACE_SECONDS = 2.0  # for the node's end to leave by itself
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds before the node's end is started again
_QUEUE = 128  # connections that wait for the node's end

# Reads the node's end from standard input. That is not read further than the program, whose frames
# follow it.
_LOADER = (
    "import os,sys\n"
    "n,s=int(sys.argv[1]),b''\n"
    "while len(s)<n:\n"
    "    p=os.read(0,n-len(s))\n"
    "    if not p: sys.exit(1)\n"
    "    s+=p\n"
    "exec(compile(s,'toolkit-relay','exec'))"
)
_IMPORT = "from toolkit.relay.wire import Relay, WireError, greeting\n"

# Given the command of the node's end, returns the command that runs it there.
Transport = Callable[[Sequence[str]], Sequence[str]]


class Connected(NamedTuple):
    """The node's end has begun."""


class Refused(NamedTuple):
    """The server did not take a connection."""

    reason: str


class Lost(NamedTuple):
    """The node's end is gone, and is started again after some seconds."""

    reason: str
    seconds: float


class Ended(NamedTuple):
    """The job has ended."""


Event = Connected | Refused | Lost | Ended


def program() -> bytes:
    """Return the source of the node's end."""
    directory = package_directory("relay")
    wire, node = ((directory / name).read_text(encoding="utf-8") for name in ("wire.py", "node.py"))
    return (wire + "\n" + node.replace(_IMPORT, "")).encode()


def private_directory() -> Path:
    """Return the directory for sockets, which only this user can enter; it is created if missing.

    It is on this host, since a socket in a shared home directory would look alive on all of them.

    Raises:
        UntrustedError: it belongs to another user, or others can enter it.
    """
    directory = Path(tempfile.gettempdir()) / f"toolkit-{os.geteuid()}"
    # Any user can take the first name, and so keep others from connecting.
    own = os.environ.get("XDG_RUNTIME_DIR")
    for each in (directory, Path(own, "toolkit") if own else directory):
        with contextlib.suppress(OSError):
            each.mkdir(mode=0o700)
        with contextlib.suppress(OSError):
            status = each.lstat()
            is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if is_own and not status.st_mode & 0o077:
                return each
    raise UntrustedError(
        f"{directory} is not a directory of your own that only you can enter",
        place=str(directory),
        next_step="--socket PATH, in a directory of your own (chmod 700)",
    )


def require_short(path: Path) -> None:
    """Raise UsageError if a path is too long for a socket."""
    length = len(os.fsencode(path))
    if length > LONGEST_PATH:
        raise UsageError(
            f"a socket's path has at most {LONGEST_PATH} bytes, and this one has {length}: {path}",
            place="--socket",
            next_step="--socket PATH, with a shorter one; or export TMPDIR=/tmp",
        )


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """Listen on a socket that only this user can connect to; it is removed at the end.

    Raises:
        UsageError: its path is too long.
        UntrustedError: others can enter its directory.
        BusyError: another process listens there.
    """
    require_short(path)
    if path.parent.stat().st_mode & 0o077 or path.parent.stat().st_uid != os.geteuid():
        raise UntrustedError(
            f"others can enter {path.parent}",
            place="--socket",
            next_step=f"chmod 700 {quoted(path.parent)}, if it is your own",
        )
    _remove_dead(path)
    mask = os.umask(0o177)
    try:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(os.fspath(path))
    finally:
        os.umask(mask)
    own = path.lstat().st_ino
    with listener:
        listener.listen(_QUEUE)
        listener.setblocking(False)
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                if path.lstat().st_ino == own:
                    path.unlink()


def _remove_dead(path: Path) -> None:
    """Remove a socket that a killed process left.

    Raises:
        UsageError: the path is something else, which is not ours to remove.
        BusyError: another process listens there.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UsageError(
                f"{path} exists, and is not a socket",
                place="--socket",
                next_step="--socket PATH, with a path that does not exist",
            )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        try:
            probe.connect(os.fspath(path))
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError:
            pass
    raise BusyError(
        f"another process listens on {path}",
        place="--socket",
        next_step="use its address, or end it first; or another path: --socket PATH",
    )


@contextlib.contextmanager
def listening_locally(port: int) -> Iterator[socket.socket]:
    """Listen on a port of the loopback address, which every user of this machine can connect to.

    Raises:
        BusyError: the port is taken.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise BusyError(
                f"port {port} of this machine is not available: {error.strerror}",
                place="--listen",
                next_step="another port",
            ) from error
        listener.listen(_QUEUE)
        listener.setblocking(False)
        yield listener


class _Link:
    """A node's end, and the relay to it."""

    def __init__(
        self, transport: Transport, target: str, listener: socket.socket, messages: BinaryIO
    ) -> None:
        nonce, source = secrets.token_hex(8), program()
        loader = ("python3", "-I", "-c", _LOADER, str(len(source)), target, nonce)
        self.refusals: list[str] = []
        self.messages = messages
        self.process = shell.start(
            transport(loader),
            env=without_job(os.environ),
            stdin=subprocess.PIPE,
            stderr=self.messages.fileno(),
            new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.relay = Relay(
            self.process.stdout.fileno(),
            self.process.stdin.fileno(),
            listener=listener,
            start=greeting(nonce),
            on_refused=self.refusals.append,
        )
        self.relay.out += source

    def __enter__(self) -> _Link:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the node's end: by the end of its input, or else by a signal."""
        self.relay.close()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        for stop in (self.process.terminate, self.process.kill):
            try:
                self.process.wait(_GRACE_SECONDS)
                break
            except subprocess.TimeoutExpired:
                stop()
        self.process.wait()

    def events(self, is_running: Callable[[], bool] | None) -> Iterator[Event]:
        """Carry connections, and yield what happens, until the node's end is gone.

        Args:
            is_running: asked now and then, for a transport that does not end with the job.
        """
        is_open, asked = False, time.monotonic()
        with contextlib.suppress(WireError):
            while True:
                self.relay.turn()
                if self.relay.is_open and not is_open:
                    is_open = True
                    yield Connected()
                while self.refusals:
                    yield Refused(one_line(self.refusals.pop(0)))
                if is_running is not None and time.monotonic() - asked > _LONGEST_PAUSE:
                    asked = time.monotonic()
                    if not is_running():
                        return

    def reason(self) -> str:
        """Return the last line that the transport printed, once it is gone."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_GRACE_SECONDS)
        size = self.messages.seek(0, os.SEEK_END)
        self.messages.seek(max(0, size - 4096))
        lines = self.messages.read().decode("utf-8", "replace").strip().splitlines()
        return one_line(lines[-1]) if lines else "it ended without a message"


def carry(
    listener: socket.socket,
    transport: Transport,
    target: str,
    is_running: Callable[[], bool],
    *,
    outlives_job: bool = False,
) -> Iterator[Event]:
    """Carry connections to a server on a node until the job ends; the last event is ``Ended``.

    Args:
        listener: where they arrive.
        transport: runs a program on the node.
        target: the server: a port, or the path of a Unix socket.
        is_running: whether the job runs still.
        outlives_job: the transport does not end with the job, so that the job is asked for.

    Raises:
        CommandFailedError: the node's end could not be started at all.
    """
    was_open, pause = False, _FIRST_PAUSE
    while True:
        began = time.monotonic()
        with (
            tempfile.TemporaryFile() as messages,
            _Link(transport, target, listener, messages) as link,
        ):
            for event in link.events(is_running if outlives_job else None):
                was_open = was_open or isinstance(event, Connected)
                yield event
            reason = link.reason()
        if not is_running():
            yield Ended()
            return
        if not was_open:
            raise CommandFailedError(
                "the relay could not be started on the node",
                place="forward",
                details=(reason,),
                next_step="it needs python3 there; where nodes take ssh: --ssh",
            )
        if time.monotonic() - began > _LONGEST_PAUSE:  # one that dies at once starts ever later
            pause = _FIRST_PAUSE
        yield Lost(reason, pause)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
