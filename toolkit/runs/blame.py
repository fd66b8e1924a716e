"""Tell which rank failed first, from the records of failing processes and from what the launcher reports. Pure.

When one rank fails, the others lose their connections, are stopped, or wait until somebody gives
up. What they say then is a consequence. So each record is classified by its errors, and the
earliest one that no other rank explains is the first failure. Clocks of nodes differ by
milliseconds or more, which is why the class counts before the time.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from enum import IntEnum
from pathlib import PurePosixPath
from typing import NamedTuple

from msgspec.structs import replace

from toolkit import launchers
from toolkit.launchers import LAUNCHERS
from toolkit.model.report import ErrorRecord, Report
from toolkit.model.run import Failure
from toolkit.redaction import redacted

_TERMINATED = 128 + 15
_MOST_WORDS, _MOST_DETAILS = 300, 40


class Class(IntEnum):
    """How an error came about."""

    OWN = 0
    UNCLEAR = 1
    CONSEQUENCE = 2


# What only the loss of another rank makes a communication library say.
_PEER_LOST = re.compile(
    r"gloo/transport/\w{1,20}/(?:pair|unbound_buffer|buffer|context)|Connection closed by peer"
    r"|remote process exited or there was a network error|ncclRemoteError"
    r"|NCCL communicator was aborted|Watchdog caught collective operation timeout|failed to recv, got 0 bytes"
    r"|Horovod has been shut down|HorovodInternalError|MPI_ERR_PROC_FAILED|MPI_ERR_REVOKED"
    r"|Timed out waiting \d+ms for|[Ww]ait timeout after \d+ms|Timed out after .{0,200} waiting for clients"
    r"|client socket has (?:timed out|failed)|recvValue failed|sendBytes failed|Collective ops is aborted by"
    r"|(?:worker|/job:\S{1,100}) (?:is|was|went) (?:down|unavailable|restarted)|failed to connect to all addresses"
)
# What the loss of another rank, but also any other network, can make a program say.
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
_FRAME = re.compile(
    r'^ {0,40}File "(?P<file>[^"]{1,500})", line (?P<line>\d{1,9})(?:,? in (?P<function>\S{1,200}))?'
)
_PACKAGED = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<frozen ")
_ERROR_LINE = re.compile(r"(?P<type>[A-Za-z_][\w.]{0,200})(?:: (?P<message>.{0,4000}))?$")


def described(error: ErrorRecord) -> ErrorRecord:
    """Return the error that another process has raised, if the message of ``error`` carries its traceback.

    Workers of data loaders, ``torch.multiprocessing.spawn`` and Ray raise such errors in the
    process that waits for them.
    """
    lines = error.message.splitlines()
    frames = [(number, found) for number, text in enumerate(lines) if (found := _FRAME.match(text))]
    if not frames:
        return error
    after = [
        text for text in lines[frames[-1][0] + 1 :] if text and not text.startswith((" ", "\t"))
    ]
    found = _ERROR_LINE.match(after[0]) if after else None
    if found is None:
        return error
    own = next(
        (
            (number, frame)
            for number, frame in reversed(frames)
            if not _PACKAGED.search(frame["file"])
        ),
        None,
    )
    place = {}
    if own is not None:
        number, frame = own
        source = (
            lines[number + 1].strip()
            if number + 1 < len(lines) and not _FRAME.match(lines[number + 1])
            else ""
        )
        place = {"file": frame["file"], "function": frame["function"] or "", "source": source}
    return replace(
        error,
        type=found["type"].rpartition(".")[2],
        module=found["type"].rpartition(".")[0],
        message="\n".join((found["message"] or "", *after[1:])).rstrip("\n"),
        inner=frames[-1][1]["file"],
        line=int(own[1]["line"]) if own is not None else error.line,
        **place,
    )


def classified(error: ErrorRecord) -> Class:
    """Return whether an error is a program's own, or what it says because another rank has gone."""
    if (
        error.signal
        or error.type in _CONSEQUENCES
        or error.module.startswith("torch.distributed.elastic")
    ):
        return Class.CONSEQUENCE
    ended = error.type == "ProcessExitedException" and error.message.rstrip().endswith("SIGTERM")
    if ended or _PEER_LOST.search(error.message):
        return Class.CONSEQUENCE
    communicates = bool(_COMMUNICATION.search(error.inner))
    if error.type in _CONNECTION_TYPES or (
        error.type in _VAGUE and _CONNECTION.search(error.message)
    ):
        return Class.CONSEQUENCE if communicates else Class.UNCLEAR
    if communicates and error.type in _VAGUE:
        return Class.UNCLEAR
    return Class.OWN


class Verdict(NamedTuple):
    """What a record says: its class, and the error that is shown of it."""

    kind: Class
    error: ErrorRecord


def judged(report: Report) -> Verdict:
    """Classify a record by its whole chain of errors."""
    errors = [described(error) for error in report.errors]
    if is_starter(report.program) and not report.argparse:
        return Verdict(Class.CONSEQUENCE, errors[0])
    if (
        errors[0].type == "SystemExit"
        and not errors[0].message
        and not errors[0].signal
        and len(errors) > 1
    ):
        errors = errors[1:]  # the script has caught the error, and ended itself because of it
    kinds = [classified(error) for error in errors]
    own = next(
        (error for error, kind in zip(errors, kinds, strict=True) if kind is Class.OWN), None
    )
    if own is None or kinds[-1] is not Class.OWN:
        return Verdict(kinds[-1], own or errors[0])
    if kinds[0] is Class.OWN:
        return Verdict(Class.OWN, own)
    # Either cleaning up has failed while an error was on its way, or a peer was lost while an error
    # was handled.
    return Verdict(Class.UNCLEAR, own)


def is_starter(program: str) -> bool:
    """Return whether a program starts ranks, and is none itself."""
    starters = {*_OTHER_STARTERS, *(name for one in LAUNCHERS.values() for name in one.starters)}
    return PurePosixPath(program).name in starters or bool(_STARTER_FILES.search(program))


def rank_of(report: Report, launcher: str) -> int | None:
    """Return the global rank of the process that wrote a record; None if it is none or not known."""
    if is_starter(report.program):
        return None
    if report.group_rank is not None:
        return report.group_rank
    return launchers.get(launcher).rank_of(report)


class Candidate(NamedTuple):
    """A record with what was read out of it."""

    report: Report
    kind: Class
    error: ErrorRecord
    rank: int | None
    noun: str = "rank"


_FATAL = frozenset(("exception", "exit", "child"))


def first(launcher: str, reports: Sequence[Report], reported: Sequence[Failure]) -> Failure | None:
    """Return the first failure of a run; None if only the launcher's report is known, or nothing.

    Args:
        launcher: name of the run's launcher.
        reports: records of failing processes.
        reported: failures that the launcher reports, in its order.
    """
    candidates = [
        _candidate(report, launcher)
        for report in launchers.get(launcher).of_last_start(reports, reported)
        if report.errors
    ]
    own = [candidate for candidate in candidates if candidate.kind is Class.OWN]
    fatal = [candidate for candidate in own if candidate.report.kind in _FATAL]
    if fatal:
        return _failure(
            _cause_within(min(fatal, key=_time), own), candidates, reported, _certainty(fatal)
        )
    silent = _without_record(candidates, reported)
    if silent is not None:
        return replace(silent, certainty="likely")
    for others, certainty in (
        (own, "likely"),
        ([one for one in candidates if one.kind is Class.UNCLEAR], "possible"),
    ):
        if others:
            return _failure(min(others, key=_time), candidates, reported, certainty)
    return None


def _candidate(report: Report, launcher: str) -> Candidate:
    verdict = judged(report)
    return Candidate(
        report,
        verdict.kind,
        verdict.error,
        rank_of(report, launcher),
        launchers.get(launcher).task_noun,
    )


def _time(candidate: Candidate) -> int:
    return candidate.report.time_ns


def _cause_within(found: Candidate, own: Iterable[Candidate]) -> Candidate:
    """Return the earlier error of the same rank that made it end itself: in a thread, in a destructor, or in a process of its own."""
    bare = (
        found.report.kind == "exit" and not found.error.message and found.error.type == "SystemExit"
    )
    same = [
        one
        for one in own
        if (one.rank, one.report.host) == (found.rank, found.report.host)
        and _time(one) <= _time(found)
    ]
    return min(same, key=_time) if bare and same else found


def _certainty(fatal: Sequence[Candidate]) -> str:
    """Return ``certain`` if all own errors are of one kind, or one rank's; else an order by clocks is only likely."""
    kinds = {(one.error.type, one.error.line) for one in fatal}
    ranks = {(one.rank, one.report.host) for one in fatal}
    return "certain" if len(kinds) == 1 or len(ranks) == 1 else "likely"


def _without_record(candidates: Sequence[Candidate], reported: Sequence[Failure]) -> Failure | None:
    """Return the first failure of a rank that has written no record: killed by a signal, or ended without Python's knowledge.

    A rank whose record is a consequence did not fail first, and one that SIGTERM ended was stopped.
    """
    if not candidates:
        return None
    explained = {candidate.rank for candidate in candidates if candidate.rank is not None}
    left = [
        one
        for one in reported
        if one.exit_code != _TERMINATED and one.rank is not None and one.rank not in explained
    ]
    return left[0] if left else None


def _failure(
    found: Candidate, candidates: Sequence[Candidate], reported: Sequence[Failure], certainty: str
) -> Failure:
    report, error = found.report, found.error
    words = headline(found)
    place = place_of(error)
    if words.endswith(f"({place})"):
        place = ""  # Python's message of a SyntaxError has it
    ended = _ENDED.search(error.message) if error.type == "ProcessExitedException" else None
    if ended:
        place = ""  # where the parent waits for its processes
    told = next(
        (one for one in reported if one.rank == found.rank and found.rank is not None), None
    )
    who = f"{found.noun} {found.rank}" if found.rank is not None else "the script"
    alike = {one.rank for one in candidates if one.rank is not None and headline(one) == words} - {
        found.rank
    }
    return Failure(
        exit_code=told.exit_code
        if told and told.exit_code != _TERMINATED
        else _code(ended) or report.code or 1,
        rank=found.rank,
        host=report.host,
        text=f"{who} on {report.host}: {words}" + (f" ({place})" if place else ""),
        kind="argparse" if report.argparse else report.kind,
        words=words,
        place=place,
        source="" if ended else redacted(error.source),
        details=_details(report),
        certainty=certainty,
        alike=tuple(sorted(rank for rank in alike if rank is not None)),
    )


# What torch.multiprocessing.spawn says of a process that ended without an exception.
_ENDED = re.compile(
    r"terminated with (?:exit code (?P<code>\d{1,3})|signal (?P<signal>SIG\w{1,10}))"
)


def _code(ended: re.Match[str] | None) -> int:
    """Return the exit code of a process as a shell reports it; 0 if it is not known."""
    if ended is None:
        return 0
    return (
        int(ended["code"])
        if ended["code"]
        else 128 + getattr(signal.Signals, ended["signal"], signal.SIGKILL).value
    )


def headline(candidate: Candidate) -> str:
    """Return an error in the user's own words: ``KeyError: 'label'``, ``train.py: error: ...``, ``sys.exit(3)``."""
    report, error = candidate.report, candidate.error
    message = redacted(error.message)
    first_line = next((text for text in message.splitlines() if text.strip()), "").strip()
    if error.type == "SystemExit":
        code = report.code if report.code is not None else 1
        words = first_line or f"the script ended itself with exit code {code}"
    elif error.type == "ProcessExitedException" and (ended := _ENDED.search(error.message)):
        words = (
            f"killed by signal {_code(ended) - 128} ({ended['signal']})"
            if ended["signal"]
            else f"exit code {ended['code']}"
        )
    else:
        words = f"{error.type}: {first_line}" if first_line else error.type
    where = {
        "thread": f"in thread {report.thread}: ",
        "destructor": f"in {report.thread or 'a destructor'}: ",
    }.get(report.kind, "")
    return (where + words)[:_MOST_WORDS]


def place_of(error: ErrorRecord) -> str:
    """Return the user's own last frame: ``train.py, line 12, in step``."""
    if not error.file or not error.line:
        return ""
    name = PurePosixPath(error.file).name
    return f"{name}, line {error.line}" + (
        f", in {error.function}" if error.function not in ("", "<module>") else ""
    )


def _details(report: Report) -> tuple[str, ...]:
    """Return the chain of errors as Python prints it, without frames, for the rules."""
    lines: list[str] = []
    for error in map(described, report.errors):
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
    """Return the user's last frame from what Python's faulthandler prints when a signal ends the process."""
    inside = False
    for text in lines:
        if _CRASH.match(text):
            inside = True
        frame = _FRAME.match(text) if inside else None
        if frame and not _PACKAGED.search(frame["file"]):
            return place_of(
                ErrorRecord(
                    type="",
                    file=frame["file"],
                    line=int(frame["line"]),
                    function=frame["function"] or "",
                )
            )
    return ""


def signal_name(number: int) -> str:
    """Return the name of a signal; empty for a number that is none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""
