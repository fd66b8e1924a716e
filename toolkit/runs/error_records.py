"""Classify the errors that failing processes have recorded, and format them. Pure.

When one rank fails, the others lose their connections, are stopped, or wait until a timeout. What
they report then is a consequence.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from enum import IntEnum
from pathlib import PurePosixPath
from typing import NamedTuple

from msgspec.structs import replace

from toolkit.launchers import LAUNCHERS
from toolkit.model.run import ErrorRecord, Report
from toolkit.text import redacted

_MOST_CHARACTERS, _MOST_DETAILS = 300, 40


class ErrorClass(IntEnum):
    """The origin of an error: the program itself, unclear, or the failure of another rank."""

    OWN = 0
    UNCLEAR = 1
    CONSEQUENCE = 2


# Errors that a communication library only reports when another rank is lost.
_PEER_LOST = re.compile(
    r"gloo/transport/\w{1,20}/(?:pair|unbound_buffer|buffer|context)|Connection closed by peer"
    r"|remote process exited or there was a network error|ncclRemoteError"
    r"|NCCL communicator was aborted|Watchdog caught collective operation timeout"
    r"|failed to recv, got 0 bytes"
    r"|Horovod has been shut down|HorovodInternalError|MPI_ERR_PROC_FAILED|MPI_ERR_REVOKED"
    r"|Timed out waiting \d+ms for|[Ww]ait timeout after \d+ms"
    r"|Timed out after .{0,200} waiting for clients"
    r"|client socket has (?:timed out|failed)|recvValue failed|sendBytes failed"
    r"|Collective ops is aborted by"
    r"|(?:worker|/job:\S{1,100}) (?:is|was|went) (?:down|unavailable|restarted)"
    r"|failed to connect to all addresses"
)
# Errors that the loss of another rank, but also any other connection, can cause.
_CONNECTION = re.compile(
    r"Connection (?:reset|refused|aborted|closed|timed out)|Broken pipe|Socket (?:closed|Timeout)"
    r"|[Tt]imed out|[Tt]imeout|[Cc]losed (?:the )?connection|[Pp]eer"
)
_CONSEQUENCES = frozenset(
    (
        "SignalException",
        "ChildFailedError",
        "RendezvousClosedError",
        "RendezvousConnectionError",
        "RendezvousGracefulExitError",
        "RendezvousTimeoutError",
        "RendezvousStateError",
        "HorovodInternalError",
        "HorovodShutdownError",
        "HostsUpdatedInterrupt",
        "KeyboardInterrupt",
        "UnavailableError",
        "AbortedError",
        "CancelledError",
    )
)
_VAGUE = frozenset(
    (
        "RuntimeError",
        "DistBackendError",
        "DistError",
        "OSError",
        "TimeoutError",
        "EOFError",
        "InternalError",
    )
)
_CONNECTION_TYPES = frozenset(
    (
        "ConnectionError",
        "ConnectionResetError",
        "ConnectionRefusedError",
        "ConnectionAbortedError",
        "BrokenPipeError",
    )
)
_COMMUNICATION = re.compile(r"/torch/(?:distributed|nn/parallel)/|/horovod/|/mpi4py/")
# Programs besides those of launchers that start ranks: their own errors are about the ranks.
_OTHER_STARTERS = ("accelerate", "deepspeed", "horovodrun", "lightning")
_STARTER_FILES = re.compile(
    r"/torch/distributed/(?:run|launch|launcher/\w+)\.py$|/(?:site|dist)-packages/ray/|/horovod/runner/"
)
FRAME = re.compile(
    r'^ {0,40}File "(?P<file>[^"]{1,500})", line (?P<line>\d{1,9})'
    r"(?:,? in (?P<function>\S{1,200}))?"
)
PACKAGED = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<frozen ")
_ERROR_LINE = re.compile(r"(?P<type>[A-Za-z_][\w.]{0,200})(?:: (?P<message>.{0,4000}))?$")


def unwrap(error: ErrorRecord) -> ErrorRecord:
    """Return the error of another process whose traceback is in the message of ``error``.

    Workers of data loaders, ``torch.multiprocessing.spawn`` and Ray raise such errors in the
    process that waits for them.
    """
    lines = error.message.splitlines()
    frames = [(number, frame) for number, text in enumerate(lines) if (frame := FRAME.match(text))]
    if not frames:
        return error
    after = [
        text for text in lines[frames[-1][0] + 1 :] if text and not text.startswith((" ", "\t"))
    ]
    raised = _ERROR_LINE.match(after[0]) if after else None
    if raised is None:
        return error
    own = next(
        (
            (number, frame)
            for number, frame in reversed(frames)
            if not PACKAGED.search(frame["file"])
        ),
        None,
    )
    place = {}
    if own is not None:
        number, frame = own
        source = (
            lines[number + 1].strip()
            if number + 1 < len(lines) and not FRAME.match(lines[number + 1])
            else ""
        )
        place = {"file": frame["file"], "function": frame["function"] or "", "source": source}
    return replace(
        error,
        type=raised["type"].rpartition(".")[2],
        module=raised["type"].rpartition(".")[0],
        message="\n".join((raised["message"] or "", *after[1:])).rstrip("\n"),
        inner=frames[-1][1]["file"],
        line=int(own[1]["line"]) if own is not None else error.line,
        **place,
    )


def classify(error: ErrorRecord) -> ErrorClass:
    """Return whether an error is a program's own, or a consequence of the loss of another rank."""
    if (
        error.signal
        or error.type in _CONSEQUENCES
        or error.module.startswith("torch.distributed.elastic")
    ):
        return ErrorClass.CONSEQUENCE
    was_stopped = error.type == "ProcessExitedException" and error.message.rstrip().endswith(
        "SIGTERM"
    )
    if was_stopped or _PEER_LOST.search(error.message):
        return ErrorClass.CONSEQUENCE
    communicates = bool(_COMMUNICATION.search(error.inner))
    if error.type in _CONNECTION_TYPES or (
        error.type in _VAGUE and _CONNECTION.search(error.message)
    ):
        return ErrorClass.CONSEQUENCE if communicates else ErrorClass.UNCLEAR
    if communicates and error.type in _VAGUE:
        return ErrorClass.UNCLEAR
    return ErrorClass.OWN


class Verdict(NamedTuple):
    """The class of a record, and the error that is shown of it."""

    kind: ErrorClass
    error: ErrorRecord


def judge(report: Report) -> Verdict:
    """Classify a record by its whole chain of errors."""
    errors = [unwrap(error) for error in report.errors]
    if is_starter(report.program) and not report.argparse:
        return Verdict(ErrorClass.CONSEQUENCE, errors[0])
    if (
        errors[0].type == "SystemExit"
        and not errors[0].message
        and not errors[0].signal
        and len(errors) > 1
    ):
        errors = errors[1:]  # the script has caught the error, and ended itself because of it
    kinds = [classify(error) for error in errors]
    own = next(
        (error for error, kind in zip(errors, kinds, strict=True) if kind is ErrorClass.OWN), None
    )
    if own is None or kinds[-1] is not ErrorClass.OWN:
        return Verdict(kinds[-1], own or errors[0])
    if kinds[0] is ErrorClass.OWN:
        return Verdict(ErrorClass.OWN, own)
    # Either cleaning up has failed while an error was on its way, or a peer was lost while an error
    # was handled.
    return Verdict(ErrorClass.UNCLEAR, own)


def is_starter(program: str) -> bool:
    """Return whether a program starts ranks, rather than being a rank."""
    starters = {
        *_OTHER_STARTERS,
        *(name for launcher in LAUNCHERS.values() for name in launcher.starters),
    }
    return PurePosixPath(program).name in starters or bool(_STARTER_FILES.search(program))


# The message of torch.multiprocessing.spawn for a process that ended without an exception.
SPAWN_ENDED = re.compile(
    r"terminated with (?:exit code (?P<code>\d{1,3})|signal (?P<signal>SIG\w{1,10}))"
)


def exit_code(ended: re.Match[str] | None) -> int:
    """Return the exit code of a process as a shell reports it; 0 if it is not known."""
    if ended is None:
        return 0
    return (
        int(ended["code"])
        if ended["code"]
        else 128 + getattr(signal.Signals, ended["signal"], signal.SIGKILL).value
    )


def headline(report: Report, error: ErrorRecord) -> str:
    """Return an error as one line: ``KeyError: 'label'`` or ``train.py: error: ...``."""
    message = redacted(error.message)
    first_line = next((text for text in message.splitlines() if text.strip()), "").strip()
    if error.type == "SystemExit":
        code = report.code if report.code is not None else 1
        text = first_line or f"the script ended itself with exit code {code}"
    elif error.type == "ProcessExitedException" and (ended := SPAWN_ENDED.search(error.message)):
        text = (
            f"killed by signal {exit_code(ended) - 128} ({ended['signal']})"
            if ended["signal"]
            else f"exit code {ended['code']}"
        )
    else:
        text = f"{error.type}: {first_line}" if first_line else error.type
    prefix = {
        "thread": f"in thread {report.thread}: ",
        "destructor": f"in {report.thread or 'a destructor'}: ",
    }.get(report.kind, "")
    return (prefix + text)[:_MOST_CHARACTERS]


def place_of(error: ErrorRecord) -> str:
    """Return the last frame in the user's code: ``train.py, line 12, in step``."""
    if not error.file or not error.line:
        return ""
    name = PurePosixPath(error.file).name
    return f"{name}, line {error.line}" + (
        f", in {error.function}" if error.function not in ("", "<module>") else ""
    )


def details_of(report: Report) -> tuple[str, ...]:
    """Return the chain of errors as Python prints it, without frames, for the rules."""
    lines: list[str] = []
    for error in map(unwrap, report.errors):
        if error.file:
            lines.append(
                f'  File "{error.file}", line {error.line}, in {error.function or "<module>"}'
            )
        if error.inner != error.file:
            lines.append(f'  File "{error.inner}", line ?')
        name = (
            error.type
            if error.module in ("", "builtins", "__main__")
            else f"{error.module}.{error.type}"
        )
        lines += (
            [text for text in f"{name}: {error.message}".splitlines() if text.strip()]
            if error.message
            else [name]
        )
    return tuple(redacted(text)[:1000] for text in lines[:_MOST_DETAILS])


_CRASH = re.compile(r"^Fatal Python error: ")


def place_of_crash(lines: Iterable[str]) -> str:
    """Return the last frame in the user's code from the output of Python's faulthandler."""
    has_crashed = False
    for text in lines:
        if _CRASH.match(text):
            has_crashed = True
        frame = FRAME.match(text) if has_crashed else None
        if frame and not PACKAGED.search(frame["file"]):
            return place_of(
                ErrorRecord(
                    type="",
                    file=frame["file"],
                    line=int(frame["line"]),
                    function=frame["function"] or "",
                )
            )
    return ""
