"""Run outside programs: all of them are started by this module.

``run`` waits for a program and returns its output; ``echo`` shows each command as a line that can
be pasted (set by ``--verbose``). Callers of programs that run for long (a build, `srun --pty`) use
``start`` and read the output by themselves. Long tasks report to a ``Progress``, which the command
line passes in, and clean up when a signal ends them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn, Protocol

from toolkit.errors import CommandFailedError, NeedsInstallError
from toolkit.quoting import shell_words
from toolkit.text import one_line, redacted

_ECHO = False


def set_echo(on: bool) -> None:
    """Show every command on standard error before it runs."""
    global _ECHO
    _ECHO = on


class Result(NamedTuple):
    """The output and exit code of a program that has ended."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        """Return whether the program succeeded."""
        return self.returncode == 0

    def tail(self, lines: int = 12) -> tuple[str, ...]:
        """Return the last lines of standard error, or if it is empty, of standard output."""
        return tuple((self.stderr.strip() or self.stdout.strip()).splitlines()[-lines:])


def which(program: str) -> str | None:
    """Return the path of a program; None if there is none.

    The directories of administrators are searched too, since a user's PATH may lack them.
    """
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin:/usr/local/sbin")


def find_apptainer() -> str | None:
    """Return the path of Apptainer, or of Singularity if the machine has that instead."""
    return which("apptainer") or which("singularity")


def require_apptainer() -> str:
    """Return the path of Apptainer or Singularity.

    Raises:
        NeedsInstallError: Neither is installed.
    """
    program = find_apptainer()
    if program is None:
        raise NeedsInstallError("Apptainer is not installed here", next_step="toolkit setup")
    return program


def echo(argv: Sequence[str]) -> None:
    """Show a command on standard error if ``set_echo`` is on."""
    if _ECHO:
        print("+ " + one_line(redacted(shell_words(argv))), file=sys.stderr, flush=True)


def start(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | None = subprocess.PIPE,
    stderr: int | None = subprocess.PIPE,
    new_session: bool = False,
    pass_fds: Sequence[int] = (),
    preexec_fn: Callable[[], object] | None = None,
) -> subprocess.Popen[str]:
    """Start a program and return at once.

    Raises:
        NeedsInstallError: there is no such program.
    """
    words = tuple(str(word) for word in argv)
    echo(words)
    try:
        return subprocess.Popen(
            (_program(words[0], env), *words[1:]),
            env=None if env is None else dict(env),
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            errors="replace",
            start_new_session=new_session,
            pass_fds=tuple(pass_fds),
            preexec_fn=preexec_fn,
        )
    except FileNotFoundError as error:
        if cwd is not None and not Path(cwd).is_dir():
            raise CommandFailedError(
                f"the directory {cwd} is not there", place=shell_words(words)
            ) from error
        raise NeedsInstallError(
            f"{words[0]} is not installed here", place=shell_words(words), next_step="toolkit setup"
        ) from error


def become(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Replace this process by a program, which then has its terminal, signals and exit code.

    Raises:
        NeedsInstallError: there is no such program.
    """
    echo(argv)
    try:
        os.execvpe(_program(argv[0], env), list(argv), dict(env))
    except FileNotFoundError as error:
        raise NeedsInstallError(
            f"{argv[0]} is not installed here", place=argv[0], next_step="toolkit setup"
        ) from error


def _program(name: str, env: Mapping[str, str] | None) -> str:
    """Return the path of a program that only the directories of administrators have.

    Any other name is returned unchanged.
    """
    path = (os.environ if env is None else env).get("PATH", os.defpath)
    return name if "/" in name or shutil.which(name, path=path) else which(name) or name


def run(
    argv: Sequence[str | Path],
    *,
    input: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    timeout: float | None = None,
    check: bool = True,
    stdin: int | None = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> Result:
    """Run a program to its end.

    Args:
        argv: the program and its arguments; they are not passed through a shell.
        input: its standard input; without it, the input is empty.
        env: its whole environment; without it, that of this process.
        timeout: seconds after which it is killed.
        check: raise an error if it fails; else the caller checks ``returncode``.
        stdin: its standard input if ``input`` is not given; None: that of this process.
        pass_fds: open files that it gets, by the same numbers.

    Raises:
        CommandFailedError: it failed (and ``check``), or ran longer than ``timeout`` and was
            killed.
        NeedsInstallError: there is no such program.
    """
    stdin = stdin if input is None else subprocess.PIPE
    process = start(argv, env=env, cwd=cwd, stdin=stdin, pass_fds=pass_fds)
    words = tuple(str(word) for word in argv)
    try:
        stdout, stderr = process.communicate(input, timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
        raise CommandFailedError(
            f"{words[0]} gave no answer within {timeout:g} s",
            place=shell_words(words),
            details=stderr.strip().splitlines()[-12:],
        ) from None
    except BaseException:
        process.kill()
        process.wait()
        raise
    result = Result(words, process.returncode, stdout, stderr)
    if check and not result.ok:
        raise CommandFailedError(
            f"{words[0]} failed with exit code {result.returncode}",
            place=shell_words(words),
            details=result.tail(),
        )
    return result


@contextmanager
def interrupted_by_signals() -> Iterator[list[int]]:
    """Have a closed terminal and SIGTERM act as Ctrl-C; what nohup(1) ignores stays ignored.

    Only the main thread can change this; in another one nothing changes.

    Yields:
        The numbers of the signals that have come, which grow with each.
    """
    received: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGHUP) if is_main else ()
    before = {number: signal.getsignal(number) for number in numbers}
    caught = {number: old for number, old in before.items() if old != signal.SIG_IGN}
    for number in caught:
        signal.signal(number, stop)
    try:
        yield received
    finally:
        for number, handler in caught.items():
            signal.signal(number, handler)


class Progress(Protocol):
    """Receives the steps of a long task, one after the other."""

    def begin(self, step: str, detail: str = "", expected: float | None = None) -> None:
        """Begin a step, which ends the one before.

        ``expected`` is the duration of the step the last time, in seconds.
        """

    def end(self, outcome: str = "done") -> None:
        """End the current step: ``done``, ``failed``, ``kept``, ..."""

    def say(self, subject: str, text: str) -> None:
        """Show a line that is not a step: ``say("queued", "job 7, partition main")``."""
