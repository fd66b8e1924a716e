"""One ssh connection to a login node, which every command to it shares, and commands over it.

A control master is the connection, so a password or a one-time code is asked for once; it ends
after hours without use. Each command is a script of sh that first prints a line with a token:
what a banner, a slow start-up file or a broken server prints before that line is dropped. The
script is sent as base64, so that no login shell (bash, csh, fish) obeys a word of it.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from types import FrameType

from toolkit import shell
from toolkit.errors import CommandFailedError, LoginError, LoginLostError, UsageError
from toolkit.quoting import shell_words
from toolkit.trust import require_trusted

_LOGIN = re.compile(r"(?:ssh://)?(?:[\w.+][\w.+-]*@)?[\w\[][\w.:%\]-]*\Z", re.ASCII)
_LONGEST_PATH = 86  # bytes: macOS has 103 for a socket, and ssh adds 17 while it makes its own
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CHUNK, _LONGEST_LINE = 64 << 10, 1 << 20  # bytes
_MOST_NOISE = 100  # lines before a command's own output that are kept
_FAILED, _VANISHED = 255, 24  # of ssh itself, and as the job may end; of rsync: a file has gone
# A master that hears nothing for a minute gives up; forwards of the user's own settings would be
# refused where another connection has them.
_MASTER = (
    *("-o", "ControlMaster=auto", "-o", "ControlPersist=4h", "-o", "ConnectTimeout=30"),
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"),
    *("-o", "ClearAllForwardings=yes"),
)
# Without a master the proxy ends the command: it must not ask for a password of its own.
_COMMAND = (
    *("-o", "ControlMaster=no", "-o", "ProxyCommand=false", "-o", "LogLevel=ERROR"),
    *("-o", "RemoteCommand=none", "-o", "EscapeChar=none"),
)


def require_login(login: str) -> str:
    """Return the name of a login node that ssh takes for nothing else.

    Raises:
        UsageError: it could be an option, or a word that a proxy command of ssh would obey.
    """
    if not _LOGIN.match(login):
        raise UsageError(
            f"{login!r} is not the name of a login node",
            place="--on",
            next_step="--on HOST, --on USER@HOST, or a Host of ~/.ssh/config",
        )
    return login


def control_path(login: str) -> Path:
    """Return the socket of the connection, in a directory that only this user can enter.

    Raises:
        UntrustedError: another user can exchange what is in the directory.
        UsageError: its path is too long.
    """
    directory = Path(os.environ.get("XDG_RUNTIME_DIR") or Path.home() / ".cache", "toolkit", "on")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    require_trusted(directory)
    # Machines that share a home directory have sockets of their own.
    path = directory / hashlib.sha256(f"{login}\0{os.uname().nodename}".encode()).hexdigest()[:12]
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise UsageError(
            f"ssh cannot have its socket at a path of so many bytes: {path}",
            place="--on",
            next_step="export XDG_RUNTIME_DIR=DIRECTORY, a short one of your own (chmod 700)",
        )
    return path


def is_connected(login: str) -> bool:
    """Return whether there is a connection that takes commands."""
    with socket.socket(socket.AF_UNIX) as door:
        return door.connect_ex(os.fspath(control_path(login))) == 0


def require_connected(login: str) -> None:
    """Raise LoginLostError if there is no connection any more."""
    if not is_connected(login):
        raise LoginLostError(
            f"the connection to {login} was lost",
            place="--on",
            next_step=f"toolkit --on {login} ps shows what became of it",
        )


def connect(login: str, notify: Callable[[str, str], None]) -> None:
    """Connect to a login node if there is no connection; ssh asks for what it needs.

    Raises:
        LoginError: ssh cannot connect.
    """
    path = control_path(require_login(login))
    with path.with_suffix(".lock").open("w") as lock, tempfile.TemporaryFile("w+") as messages:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_connected(login):
            return
        notify("connecting", login)
        # The master keeps its standard error: a pipe would never end.
        process = shell.start(
            ("ssh", "-fN", *_MASTER, "-S", path, "--", login),
            stdout=subprocess.DEVNULL,
            stderr=messages.fileno(),
        )
        if process.wait() != 0:
            messages.seek(0)
            raise LoginError(
                f"ssh cannot connect to {login}",
                place="--on",
                details=messages.read().strip().splitlines()[-12:],
                next_step=f"ssh {login}",
            )


@contextmanager
def hop(login: str, entrance: str, path: str) -> Iterator[None]:
    """Have connections to a port or socket of this machine arrive at a socket on a login node.

    Raises:
        CommandFailedError: the port is in use.
    """
    forward = ("-S", str(control_path(login)), "-L", f"{entrance}:{path}", "--", login)
    shell.run(("ssh", "-O", "forward", *forward))
    try:
        with shell.interrupted_by_signals():
            yield
    finally:
        shell.run(("ssh", "-O", "cancel", *forward), check=False)


def _command(login: str, option: str, script: str) -> tuple[str, ...]:
    """Return the words that run a script of sh over the connection, whatever the login shell."""
    text = base64.b64encode(script.encode()).decode()
    remote = f"exec sh -c 'eval \"$(echo {text} | base64 -d)\"'"
    return ("ssh", *_COMMAND, "-S", str(control_path(login)), option, "--", login, remote)


def run(
    login: str,
    script: str,
    *,
    terminal: bool = False,
    printed: dict[bytes, int] | None = None,
) -> int:
    """Run a script of sh on a login node, pass output and signals on, and return its exit code.

    Args:
        login: the login node.
        script: what is run, in the home directory.
        terminal: it gets the terminal of this process, and its keys.
        printed: how many lines of each rank an earlier run of the same command has printed.

    Raises:
        LoginLostError: the connection was lost.
        LoginError: it is not run: something else answers.
    """
    token, group, noise = os.urandom(8).hex(), b"", deque[bytes](maxlen=_MOST_NOISE)
    mark = re.compile(rb"%s (\d+)\r?\n" % token.encode())

    def pass_on(number: int, _: FrameType | None) -> None:
        if not group:
            raise KeyboardInterrupt
        kill = f"kill -s {signal.Signals(number).name.removeprefix('SIG')} -- -{group.decode()}"
        shell.run(_command(login, "-T", kill), check=False, timeout=15)

    # Ctrl-C must not end ssh: it is passed on. With a terminal it is a key.
    marked = f"printf '\\n{token} %s\\n' $$; {script}"
    argv = _command(login, "-t" if terminal else "-T", marked)
    process = shell.start(argv, stdin=None, stderr=None, new_session=not terminal)
    assert process.stdout
    output = open(process.stdout.fileno(), "rb", closefd=False)  # noqa: SIM115
    numbers = [each for each in _SIGNALS if signal.getsignal(each) != signal.SIG_IGN]
    handlers = {each: signal.signal(each, pass_on) for each in numbers if not terminal}
    try:
        while not group and (line := output.readline(_CHUNK)):
            match = mark.fullmatch(line)
            group = match[1] if match else b""
            noise.append(line)
        chunks = iter(lambda: output.read1(_CHUNK), b"")
        for chunk in chunks if printed is None else _new(output, printed):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
        code = process.wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        process.kill()
        process.wait()
    if code == _FAILED:
        require_connected(login)
    if group:
        return code
    raise LoginError(
        f"{login} does not run commands (exit code {code})",
        place="--on",
        details=b"".join(noise)[-_CHUNK:].decode("utf-8", "replace").strip().splitlines()[-6:],
        next_step=f"ssh {login} true",
    )


def _new(output: BufferedReader, printed: dict[bytes, int]) -> Iterator[bytes]:
    """Yield the lines that an earlier run has not printed, and count them; the last may be cut off.

    Lines of a rank keep their order, and those of several ranks do not: each rank's are counted.
    """
    count = dict[bytes, int]()
    for line in iter(lambda: output.readline(_LONGEST_LINE), b""):
        label, bar, _ = line.partition(b"|")
        count[label] = count.get(label, 0) + 1
        if line.endswith(b"\n") and (not bar or count[label] > printed.get(label, 0)):
            printed[label] = count[label]
            yield line


def put(login: str, script: str, text: str) -> None:
    """Give a text to the standard input of a script of sh on a login node.

    Raises:
        LoginLostError: the connection was lost.
        LoginError: it fails.
    """
    done = shell.run(_command(login, "-T", script), input=text, check=False)
    if not done.ok:
        require_connected(login)
        raise LoginError(
            f"{login} does not take a file (exit code {done.returncode})",
            place="--on",
            details=done.tail(3),
            next_step=f"ssh {login} df",
        )


def rsync(login: str, prepare: str, words: Iterable[str], names: str = "") -> str:
    """Run rsync to or from a login node, and return what it prints.

    Args:
        login: the login node, which is called ``on:`` in the words.
        prepare: commands of sh that change to the directory there.
        words: of rsync.
        names: the names of the files that it reads from its standard input.

    Raises:
        LoginLostError: the connection was lost.
        CommandFailedError: it fails.
    """
    shell_of = ("-e", shell_words((sys.executable, "-m", __name__, login)))
    # Python would import from the current directory, which is a user's tree.
    done = shell.run(
        ("rsync", "-s", *shell_of, "--rsync-path", prepare, *words),
        input=names,
        cwd="/",
        check=False,
    )
    if done.returncode in (0, _VANISHED):
        return done.stdout
    require_connected(login)
    raise CommandFailedError(
        f"rsync failed with exit code {done.returncode}", place=login, details=done.tail()
    )


def _be_remote_shell(login: str, _: str, prepare: str, *words: str) -> int | str:
    """Run what rsync starts on the other side, whose words arrive as they are."""
    try:
        return run(login, f"{prepare} && exec rsync {shell_words(words)}")
    except LoginError as error:
        return error.summary


if __name__ == "__main__":
    sys.exit(_be_remote_shell(*sys.argv[1:]))
