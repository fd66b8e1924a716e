"""Read the files that the processes of a job have written: which ranks ended, met, or failed first.

The module in ``scripts/report`` writes them in each process of Python. A process may have been
killed while it wrote, and its file may be another user's.

When one rank fails, the others lose their connections, are stopped, or wait until a timeout. What
they record then is a consequence. The first failure is the earliest record that no other rank
explains. Clocks of nodes differ by milliseconds or more, which is why the origin of a record counts
before its time.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import dropwhile, groupby
from pathlib import PurePosixPath

import msgspec
from msgspec.structs import replace

from toolkit import launchers
from toolkit.files import open_regular
from toolkit.launchers.failures import describe_end, end_of_spawned, rank_of, reader
from toolkit.model.run import Error, Failure, Plan, Process, Record
from toolkit.runs import logs
from toolkit.runs.run import Run
from toolkit.text import redacted
from toolkit.units import whole

RUNNING, ENDED = ".process", ".ended"  # suffixes
_HEAD, _TAIL = 8 << 10, 256 << 10  # bytes of a file that are read
_MOST = 256 << 20  # of all files
_SEPARATE = ("none", "ray", "submitit")
_MOST_PARTS = 12  # of a sentence
_LONG_AGO = 60.0  # seconds; a rank that saves what was trained may take as long
# Verbs of sentences and their plurals, in the order of the parts: who waits for others comes early.
_PLURALS = {"ended": "ended", "waits": "wait", "is": "are", "has": "have", "does": "do"}
_WORLD = re.compile(rb"^world=(\d{1,9}) rank=(\d{1,9})$", re.MULTILINE)


def _names(run: Run) -> list[str]:
    """Return the names of the files of processes; none if their folder cannot be read."""
    with suppress(OSError):
        return [name for name in run.names(run.reports) if name.endswith((RUNNING, ENDED))]
    return []


def read(run: Run) -> list[Process]:
    """Return the processes of a run's job, the earliest first."""
    launcher, hide = launchers.get(run.plan.launch.launcher), logs.secret_filter(run)
    processes, left = list[Process](), _MOST
    for name in _names(run):
        with suppress(OSError):
            process = _read(run, name, min(_TAIL, left), hide)
            left -= len(process.text) if process else 0
            env = process.env if process else {}
            numbers = (env.get("SLURM_ARRAY_JOB_ID"), env.get("SLURM_JOB_ID"))
            if process and str(run.job_id) in numbers:
                is_agent = is_starter(process.program)
                rank = None if is_agent else rank_of(launcher, process)
                own = process.own_rank if rank is None else rank
                processes.append(process._replace(rank=own))
    return sorted(processes, key=lambda process: process.time_ns)


def by_element(processes: Iterable[Process]) -> dict[int | None, list[Process]]:
    """Group the processes of a job array by the numbers of its elements; without one by None."""
    groups = defaultdict[int | None, list[Process]](list)
    for process in processes:
        groups[whole(process.env.get("SLURM_ARRAY_TASK_ID"))].append(process)
    return groups


def latest(
    processes: Sequence[Process], plan: Plan, attempt: int | None = None
) -> Sequence[Process]:
    """Return the processes since ranks were last started, the earliest first.

    Args:
        processes: of a job.
        plan: of the run.
        attempt: of a requeued job, from 1; None: the last one.
    """
    last = attempt or max(map(_attempt_of, processes), default=1)
    started = [process for process in processes if _attempt_of(process) == last]
    return reader(launchers.get(plan.launch.launcher)).of_last_start(started, ())


def _read(run: Run, name: str, most: int, hide: Callable[[str], str]) -> Process | None:
    """Read a file; return None if it is another user's, or has no whole beginning."""
    path = run.reports / name
    with open_regular(path, below=run.directory) as file:
        status = os.fstat(file.fileno())
        head, ends, text = file.read(_HEAD).partition(b"\n\n")
        file.seek(max(file.tell(), status.st_size - most))
        text += file.read(most)
    facts = dict(
        line.partition("=")[::2] for line in head.decode("utf-8", "replace").split("\n")[:200]
    )
    pid = whole(facts.get("pid"))
    if status.st_uid != run.directory.stat().st_uid or not ends or pid is None:
        return None
    worlds = [(int(size), int(rank)) for size, rank in _WORLD.findall(text)]
    world, own_rank = max(worlds, default=(0, None))
    return Process(
        host=facts.get("host", ""),
        pid=pid,
        parent=whole(facts.get("parent")) or 0,
        main=facts.get("main", ""),
        program=facts.get("program", ""),
        name=facts.get("process", ""),
        local_rank=whole(facts.get("index")),
        is_rank=facts.get("is_rank") == "1",
        env={key[4:]: value for key, value in facts.items() if key.startswith("env.")},
        time_ns=whole(facts.get("time")) or 0,
        world=world,
        own_rank=own_rank,
        records=_records(text, hide),
        ended=status.st_ctime if name.endswith(ENDED) else 0.0,  # when it got this name
        path=path,
        changed=status.st_mtime,
        size=status.st_size,
        text=text,
    )


def _records(text: bytes, hide: Callable[[str], str]) -> tuple[Record, ...]:
    records = []
    for line in text.split(b"\n"):
        if line.startswith(b"{"):
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                record = msgspec.json.decode(line, type=Record)
                chain = tuple(
                    replace(error, message=hide(error.message), source=hide(error.source))
                    for error in record.chain
                )
                records.append(replace(record, chain=chain))
    return tuple(records)


def _attempt_of(process: Process) -> int:
    return (whole(process.env.get("SLURM_RESTART_COUNT")) or 0) + 1


# Sentences about ranks.


def ended_text(run: Run) -> str:
    """Return which ranks of a running job ended long ago, and which are left; empty if none did.

    Ranks of a job array, and of a job whose number of nodes may change, end one by one.
    """
    plan = run.plan
    names = [] if plan.array or plan.least_nodes else _names(run)
    if not all(any(name.endswith(end) for name in names) for end in (RUNNING, ENDED)):
        return ""
    ended = dict[int, float]()  # the last end of each rank; infinite for one that has not
    for process in latest(read(run), plan):
        if process.rank is not None and process.is_rank:
            when = process.ended or math.inf
            ended[process.rank] = max(ended.get(process.rank, 0.0), when)
    passed = {rank: time.time() - when for rank, when in ended.items() if when < math.inf}
    if not passed or len(passed) == len(ended) or max(passed.values()) < _LONG_AGO:
        return ""
    minutes = max(0.0, min(passed.values())) / 60
    ago = f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"
    texts = {rank: f"ended {ago} ago" if rank in passed else "is still running" for rank in ended}
    return sentence(((str(rank), text) for rank, text in texts.items()), plan)


def apart_text(processes: Iterable[Process], plan: Plan) -> str:
    """Return how ranks trained that did not all meet; empty if they did, or were not meant to.

    Tasks of the launcher none, and elements of an array, are on purpose.
    """
    by_rank = {
        process.path.stem if process.rank is None else process.rank: process.world
        for process in processes
        if process.world
    }
    count, sizes = len(by_rank), Counter(by_rank.values())
    is_one = not (plan.array or plan.least_nodes) and plan.launch.launcher not in _SEPARATE
    largest = max(sizes, default=0)
    if not is_one or largest >= count:
        return ""
    if len(sizes) > 1:
        shown = (f"{sizes[size]} in worlds of {size}" for size in sorted(sizes, reverse=True))
        how = f"apart: {', '.join(shown)}"
    elif largest == 1:
        how = "alone: world size 1 each"
    else:
        how = f"in {-(-count // largest)} groups of {largest}, which never met"
    return f"{count} ranks trained {how}"


def sentence(rows: Iterable[tuple[str, str]], plan: Plan) -> str:
    """Return what is true of whom, equal texts together: ``ranks 0, 1 wait ...; rank 2 is ...``.

    Args:
        rows: labels of ranks or other processes, and texts that begin with a verb.
        plan: of the run.
    """
    groups: dict[str, list[str]] = {}
    for label, text in rows:
        groups.setdefault(text, []).append(label)

    words = list(_PLURALS)
    parts = []
    for text in sorted(groups, key=lambda text: (words.index(text.split()[0]), -len(groups[text]))):
        verb, _, rest = text.partition(" ")
        if len(groups[text]) > 1:
            verb, rest = _PLURALS[verb], rest.replace("for its ", "for their ", 1)
        parts.append(f"{subject(groups[text], plan)} {verb} {rest}")
    more = [f"and {len(parts) - _MOST_PARTS} other places"] if len(parts) > _MOST_PARTS else []
    return "; ".join([*parts[:_MOST_PARTS], *more])


def subject(labels: Sequence[str], plan: Plan) -> str:
    """Return who is meant: ``ranks 0, 1, 3``, or ``processes 7 on nid001``."""
    if all(label.isdecimal() for label in labels):
        shown = numbers_text(map(int, labels))
    else:
        shown = ", ".join([*labels[:8], *(["..."] if len(labels) > 8 else [])])
    noun = "process" if " on " in shown else launchers.get(plan.launch.launcher).task_noun
    plural = "" if len(labels) == 1 else "es" if noun.endswith("s") else "s"
    return f"{noun}{plural} {shown}"


def numbers_text(numbers: Iterable[int]) -> str:
    """Format the numbers of ranks: ``0, 1, 3``, ``0-6, 8-63``."""
    shown = list[str]()
    for _, pairs in groupby(enumerate(sorted(set(numbers))), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in pairs]
        shown.append(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)))
    return ", ".join([*shown[:20], *(["..."] if len(shown) > 20 else [])])


# Which rank failed first. Pure.

_MOST_CHARACTERS, _MOST_DETAILS = 300, 40
_TERMINATED = 128 + 15
_FATAL = frozenset(("exception", "exit", "child"))

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
_STARTER_FILES = re.compile(  # or modules
    r"torch[./]distributed[./](?:run|launch|launcher[./]\w+)(?:\.py)?$"
    r"|/(?:site|dist)-packages/ray/|/horovod/runner/"
)
FRAME = re.compile(
    r'^ {0,40}File "(?P<file>[^"]{1,500})", line (?P<line>\d{1,9})'
    r"(?:,? in (?P<function>\S{1,200}))?"
)
PACKAGED = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<frozen ")
_ERROR_LINE = re.compile(r"(?P<type>[A-Za-z_][\w.]{0,200})(?:: (?P<message>.{0,4000}))?$")


def unwrap(error: Error) -> Error:
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
        # A line follows each frame: the error itself comes after the last one.
        source = "" if FRAME.match(lines[number + 1]) else lines[number + 1].strip()
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


def origin_of(error: Error) -> str:
    """Return ``own``, ``unclear`` or ``consequence``: the origin of an error."""
    is_elastic = error.module.startswith("torch.distributed.elastic")
    if error.signal or error.type in _CONSEQUENCES or is_elastic:
        return "consequence"
    if _PEER_LOST.search(error.message):
        return "consequence"
    communicates = bool(_COMMUNICATION.search(error.inner))
    is_lost = error.type in _VAGUE and _CONNECTION.search(error.message)
    if error.type in _CONNECTION_TYPES or is_lost:
        return "consequence" if communicates else "unclear"
    return "unclear" if communicates and error.type in _VAGUE else "own"


def judge(record: Record) -> Record:
    """Return a record with its origin; the error that tells most of its chain comes first."""
    ended = end_of_spawned(record.chain[0].message)
    if ended and record.chain[0].type == "ProcessExitedException":
        error = Error(type="", message=describe_end(ended[1]))
        origin = "consequence" if ended[1] == _TERMINATED else "own"
        return replace(record, origin=origin, code=ended[1], chain=(error, *record.chain))
    errors = [unwrap(error) for error in record.chain]
    is_bare_exit = errors[0].type == "SystemExit" and not errors[0].message
    if is_bare_exit and not errors[0].signal and len(errors) > 1:
        errors = errors[1:]  # the script has caught the error, and ended itself because of it
    origins = [origin_of(error) for error in errors]
    origin = origins[-1]
    own = errors[origins.index("own")] if "own" in origins else errors[0]
    if origin == "own" and origins[0] != "own":
        # Either cleaning up has failed while an error was on its way, or a peer was lost while an
        # error was handled.
        origin = "unclear"
    others = (error for error in errors if error is not own)
    return replace(record, origin=origin, chain=(own, *others))


def is_starter(program: str) -> bool:
    """Return whether a program starts ranks, rather than being a rank."""
    starters = {
        *_OTHER_STARTERS,
        *(name for launcher in launchers.LAUNCHERS.values() for name in launcher.starters),
    }
    return PurePosixPath(program).name in starters or bool(_STARTER_FILES.search(program))


def first(
    launcher: str, processes: Sequence[Process], reported: Sequence[Failure]
) -> Failure | None:
    """Return the first failure of a run, or None if no record tells more than the launcher.

    Args:
        launcher: name of the run's launcher.
        processes: of the run, with their records.
        reported: failures that the launcher reports, in its order.
    """
    records = sorted(
        (
            _judged(record, process)
            for process in reader(launchers.get(launcher)).of_last_start(processes, reported)
            for record in process.records
            if record.chain
        ),
        key=lambda record: record.time_ns,
    )
    own = [record for record in records if record.origin == "own"]
    fatal = [record for record in own if record.kind in _FATAL]
    unclear = [record for record in records if record.origin == "unclear"]
    noun = launchers.get(launcher).task_noun
    if fatal:
        cause = fatal[0]
        who = (cause.rank, cause.host)
        if cause.chain[0].type == "SystemExit" and not cause.chain[0].message:
            # An earlier error of the same rank made it exit, in a thread or in a process of it.
            cause = next(record for record in own if (record.rank, record.host) == who)
        kinds = {(record.chain[0].type, record.chain[0].line) for record in fatal}
        # Of several errors and ranks, clocks decide.
        is_sure = len(kinds) == 1 or len({(record.rank, record.host) for record in fatal}) == 1
        return _failure(cause, records, reported, "certain" if is_sure else "likely", noun)
    # A rank whose record is a consequence did not fail first, and one that SIGTERM ended was
    # stopped; what a signal or native code killed has no record.
    known = {None, *(record.rank for record in records)}
    for failure in reported if records else ():
        if failure.rank not in known and failure.exit_code != _TERMINATED:
            return replace(failure, certainty="likely")
    if own or unclear:
        certainty = "likely" if own else "possible"
        return _failure((own or unclear)[0], records, reported, certainty, noun)
    if records and reported and {failure.exit_code for failure in reported} == {_TERMINATED}:
        return replace(reported[0], certainty="possible")  # it may have sent SIGTERM to itself
    return None


def _judged(record: Record, process: Process) -> Record:
    judged = replace(judge(record), rank=process.rank, host=process.host)
    return replace(judged, origin="consequence") if is_starter(process.program) else judged


def _failure(
    first: Record,
    records: Sequence[Record],
    reported: Sequence[Failure],
    certainty: str,
    noun: str,
) -> Failure:
    error, words, place = first.chain[0], headline(first), place_of(first.chain[0])
    codes = [
        failure.exit_code
        for failure in reported
        if failure.rank == first.rank is not None and failure.exit_code != _TERMINATED
    ]
    who = f"{noun} {first.rank}" if first.rank is not None else "the script"
    alike = {record.rank for record in records if headline(record) == words} - {None, first.rank}
    is_argparse = error.type == "SystemExit" and error.inner.endswith("/argparse.py")
    return Failure(
        exit_code=next(iter(codes), 0) or first.code or 1,
        rank=first.rank,
        host=first.host,
        text=f"{who} on {first.host}: {words}" + (f" ({place})" if place else ""),
        kind="argparse" if is_argparse else first.kind,
        words=words,
        place=place,
        source=redacted(error.source),
        details=details_of(first),
        certainty=certainty,
        alike=tuple(sorted(rank for rank in alike if rank is not None)),
    )


def headline(record: Record) -> str:
    """Return an error as one line: ``KeyError: 'label'`` or ``exit code 3``."""
    error = record.chain[0]
    lines = redacted(error.message).strip().splitlines()
    message = lines[0].strip() if lines else ""
    if error.type == "SystemExit":
        text = message or f"the script ended itself with exit code {record.code or 1}"
    else:
        text = ": ".join(filter(None, (error.type, message)))
    prefix = f"in thread {record.thread}: " if record.kind == "thread" else ""
    return (prefix + text)[:_MOST_CHARACTERS]


def place_of(error: Error) -> str:
    """Return the last frame in the user's code: ``train.py, line 12, in step``."""
    if not error.file or not error.line:
        return ""
    name = PurePosixPath(error.file).name
    function = f", in {error.function}" if error.function not in ("", "<module>") else ""
    return f"{name}, line {error.line}{function}"


def details_of(record: Record) -> tuple[str, ...]:
    """Return the chain of errors as Python prints it, without frames, for the rules."""
    lines: list[str] = []
    for error in record.chain:
        if error.file:
            function = error.function or "<module>"
            lines.append(f'  File "{error.file}", line {error.line}, in {function}')
        if error.inner != error.file:
            lines.append(f'  File "{error.inner}", line ?')
        is_plain = error.module in ("", "builtins", "__main__")
        name = error.type if is_plain else f"{error.module}.{error.type}"
        text = f"{name}: {error.message}" if error.message else name
        lines += [line for line in text.splitlines() if line.strip()]
    return tuple(redacted(text)[:1000] for text in lines[:_MOST_DETAILS])


def place_of_crash(lines: Iterable[str]) -> str:
    """Return the last frame in the user's code from the output of Python's faulthandler."""
    rest = dropwhile(lambda text: not text.startswith("Fatal Python error: "), lines)
    frames = filter(None, map(FRAME.match, rest))
    frame = next((frame for frame in frames if not PACKAGED.search(frame["file"])), None)
    if frame is None:
        return ""
    function = frame["function"] or ""
    return place_of(Error(type="", file=frame["file"], line=int(frame["line"]), function=function))
