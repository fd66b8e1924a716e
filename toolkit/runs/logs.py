"""Read the logs of a run in bounded memory, while they grow and afterwards.

Bytes are split into lines, and each line is attributed to the rank or the node that it came from.
The script of a job that may go back into the queue says in lines that begin with ``MARK`` when an
attempt begins and ends. ``planning.plan`` decides how such a job is stopped.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from msgspec.structs import replace

from toolkit.model.run import JobAttempt, Launch
from toolkit.runs.run import Log, Run
from toolkit.text import HIDDEN
from toolkit.units import human_size, human_time

LONGEST = 64 * 1024  # bytes kept of one line; a rank that prints a tensor writes megabytes
_CHUNK = 1 << 20  # bytes of a line that are read at once
_MOST = 64 << 20  # bytes of one log that are searched
_SHORT, _FEW = 32, 256  # a log of n bytes may have n / 32 lines and a few more
# Bytes of all logs together that are held in memory; as Python's objects well below 200 MB.
MOST = 6 << 20
_LEAST_SHARE = 4 << 10  # bytes of each log, even of one of thousands
MARK = "toolkit: attempt"
_MARKED = re.compile(
    re.escape(MARK) + r" (?P<number>\d{1,6}) of at most \d{1,6} (?P<what>begins|ends) "
    r"(?P<when>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)(?: on (?P<nodes>\S+))?(?:: (?P<how>.+))?$"
)


def shown(row: bytes) -> str:
    """Return a line of a log without its end, of which ``LONGEST`` bytes are kept.

    A progress bar redraws its line with carriage returns; only the last drawing is kept.
    """
    last = row.removesuffix(b"\n").removesuffix(b"\r").rpartition(b"\r")[2]
    text = last[:LONGEST].decode("utf-8", "replace")
    dropped = len(last) - LONGEST
    return f"{text}... [{human_size(dropped)} more on this line]" if dropped > 0 else text


def split(file: BinaryIO, size: int) -> Iterator[str]:
    """Yield the lines in the next bytes of a file, also a last one without a newline."""
    yield from map(shown, BytesIO(file.read(size)))


def ends(file: BinaryIO, most: int, start: int = 0) -> Iterator[str]:
    """Yield the lines of an open log from ``start`` on; of a large log only both of its ends.

    A quarter of ``most`` is read from the beginning, where a job is set up, and the rest from the
    end, where the reason for a failure is.

    Args:
        file: the log.
        most: bytes that are read; of very short lines fewer, since each costs memory of its own.
        start: offset in bytes.
    """
    lines = most // _SHORT + _FEW
    size = file.seek(0, 2)
    file.seek(start)
    if size - start <= most:
        rows = split(file, size - start)
        yield from islice(rows, lines // 4)
        yield from deque(rows, lines * 3 // 4)
        return
    yield from islice(split(file, most // 4), lines // 4)
    file.seek(size - most * 3 // 4)
    tail = deque(split(file, most * 3 // 4), lines * 3 // 4)
    yield from islice(tail, 1 if len(tail) > 1 else 0, None)  # it begins in the middle of a line


def ends_of(log: Log, most: int, start: int = 0) -> Iterator[str]:
    """Yield the lines of a run's log as ``ends``; of one that cannot be read a line with why."""
    try:
        with log.open() as file:
            yield from ends(file, most, start)
    except OSError as error:
        yield _refused(log, error)


def _refused(log: Log, error: OSError) -> str:
    return f"toolkit: {log.path.name} is not read: {error.strerror}"


def find_lines(log: Log, word: bytes) -> Iterator[tuple[int, str]]:
    """Yield the offset and the text of each line that has ``word``; only the end of a huge log.

    A log that cannot be read has none.
    """
    with suppress(OSError), log.open() as file:
        offset = file.seek(max(0, log.size - _MOST))
        while row := file.readline(LONGEST):
            if word in row:
                yield offset, row.rstrip(b"\n").decode("utf-8", "replace")
            offset += len(row)


_LEAST = 6  # characters of the shortest secret that is hidden in logs; shorter ones are in any text

# Lines that healthy runs print and that help no reader; the files keep them.
_NOISE = re.compile(
    r"hostname of the client socket cannot be retrieved"
    r"|^\*+$|Setting OMP_NUM_THREADS environment variable for each process"
    r"|PMIx.{0,200}gds.{0,200}shmem|^INFO:\s+(?:Setting|gocryptfs|squashfuse)"
    r"|^srun: (?:got SIGCONT|forcing job termination|launch/slurm: _step_signal: Terminating)"
)
_RANK = re.compile(r"^(?P<rank>\d{1,9})\| ?(?P<text>.*)$")


class Line(NamedTuple):
    """A line of a log.

    Attributes:
        text: of the line.
        host: node that it comes from; "" for the batch shell.
        rank: that wrote it; None for a launcher's agent or the batch shell.
        element: number in a job array.
        attempt: how often the job had been started, from 1.
    """

    text: str
    host: str
    rank: int | None
    element: int | None = None
    attempt: int = 1

    @property
    def label(self) -> str:
        """The source: a rank (``3``), an agent (``nid001``) or ``batch``; in an array ``2.3``."""
        source = str(self.rank) if self.rank is not None else self.host or "batch"
        return source if self.element is None else f"{self.element}.{source}"


def line(text: str, log: Log, launch: Launch) -> Line:
    """Return a line with the rank that wrote it.

    Where a launcher's agents label the lines of their ranks, the label tells; where Slurm's tasks
    are ranks, the log does. Elsewhere a script may well print ``5| x`` by itself, which is its own
    text.
    """
    match = _RANK.match(text) if launch.labels_lines else None
    if match:
        return Line(match["text"], log.host, int(match["rank"]), log.element, log.attempt)
    return Line(text, log.host, log.task if launch.task_is_rank else None, log.element, log.attempt)


def is_noise(text: str) -> bool:
    """Return whether a line is one that healthy runs print and that helps no reader."""
    return not text.strip() or bool(_NOISE.search(text))


class Tail:
    """A reader of what is appended to the logs of a job, also of logs that appear later.

    Attributes:
        cost: seconds of this process that the last look for new lines took, without reading them.
    """

    def __init__(self, run: Run) -> None:
        self.cost = 0.0
        self._run, self._hide = run, secret_filter(run)
        self._offsets, self._sizes = Counter[Path](), Counter[Path]()
        self._refused: set[Path] = set()

    def read(self, *, last: bool = False) -> Iterator[Line]:
        """Yield new complete lines; with ``last`` also a last one that has no newline."""
        began = time.process_time()
        logs = self._run.logs_of(self._run.job_id)
        logs = [log for log in logs if last or log.size > self._sizes[log.path]]
        self.cost = time.process_time() - began
        for log in logs:
            for text in self._new(log, last=last):
                yield line(self._hide(text), log, self._run.plan.launch)

    def _new(self, log: Log, *, last: bool) -> Iterator[str]:
        path = log.path
        try:
            with log.open() as file:
                file.seek(self._offsets[path])
                while row := file.readline(_CHUNK):
                    if not row.endswith(b"\n"):
                        if redrawn := row.rstrip(b"\r").rfind(b"\r") + 1:
                            self._offsets[path] += redrawn
                            file.seek(self._offsets[path])
                            continue
                        if not last and len(row) < _CHUNK:
                            break  # it is read again when there is more of it
                    self._offsets[path] += len(row)
                    yield shown(row)
                self._sizes[path] = file.tell()
        except OSError as error:
            if path not in self._refused:
                self._refused.add(path)
                yield _refused(log, error)


def silence(run: Run) -> float:
    """Return for how many seconds nothing has been printed; 0 if there are no logs."""
    written = max((log.path.stat().st_mtime for log in run.logs_of(run.job_id)), default=math.inf)
    return max(0.0, time.time() - written)


def secret_filter(run: Run) -> Callable[[str], str]:
    """Return a function that hides the values of the run's secrets in what ranks printed."""
    values = [value for value in run.secrets.values() if len(value) >= _LEAST]

    def hide(text: str) -> str:
        for value in values:
            text = text.replace(value, HIDDEN)
        return text

    return hide


class History(NamedTuple):
    """The attempts of a job that may be requeued.

    Attributes:
        attempts: each attempt.
        starts: offset in the batch shell's log of the last attempt, by element (None: no array).
    """

    attempts: tuple[JobAttempt, ...] = ()
    starts: Mapping[int | None, int] = {}

    @property
    def last(self) -> dict[int | None, int]:
        """The number of the last attempt, by element."""
        return {attempt.element: attempt.number for attempt in self.attempts}


def history(run: Run) -> History:
    """Read the attempts of a job from its batch shell's logs; empty if it is never requeued."""
    if run.plan.requeue is None:
        return History()
    return read(
        (offset, line(text, log, run.plan.launch))
        for log in run.logs_of(run.job_id)
        if log.task is None
        for offset, text in find_lines(log, MARK.encode())
    )


def read(marked: Iterable[tuple[int, Line]]) -> History:
    """Read the attempts of a job from lines of its batch shell, each with its offset."""
    attempts = dict[tuple[int, int], JobAttempt]()
    starts = dict[int | None, int]()
    for offset, row in marked:
        match = None if row.host else _MARKED.search(row.text)
        if not match:
            continue
        try:
            began = datetime.strptime(match["when"] + "+0000", "%Y-%m-%dT%H:%M:%SZ%z")
        except ValueError:  # a script has printed it
            continue
        when, number = int(began.timestamp()), int(match["number"])
        key = (row.element or 0, number)
        if match["what"] == "begins":
            nodes = match["nodes"] or ""
            attempts[key] = JobAttempt(number=number, began=when, nodes=nodes, element=row.element)
            starts[row.element] = offset
        elif key in attempts:
            attempts[key] = replace(attempts[key], ended=when, how=match["how"] or "")
    return History(tuple(attempts[key] for key in sorted(attempts)), starts)


def describe(attempts: Sequence[JobAttempt]) -> list[str]:
    """Return a line for each attempt.

    Such as ``1  nid[001-002]  0:58  exit code 1 after USR1; goes back into the queue``.
    """
    rows = []
    for index, attempt in enumerate(attempts):
        later = index + 1 < len(attempts) and attempts[index + 1].element == attempt.element
        how = attempt.how or (
            "stopped by Slurm, which queued it again" if later else "the last one"
        )
        length = f"{human_time(attempt.ended - attempt.began)}  " if attempt.ended else ""
        element = "" if attempt.element is None else f"{attempt.element}."
        rows.append(f"{element}{attempt.number}  {attempt.nodes}  {length}{how}")
    return rows


def excerpt(run: Run, given: Sequence[Log], past: History) -> list[Line]:
    """Return the lines of the last attempt in the given logs, which decide how a job came out.

    Of large logs only the beginning and the end are read.
    """
    hide, last = secret_filter(run), past.last
    starts = {log: past.starts.get(log.element, 0) if log.task is None else 0 for log in given}
    sizes = {
        log: max(0, log.size - start)
        for log, start in starts.items()
        if log.task is None or log.attempt == last.get(log.element, log.attempt)
    }
    shares, left = dict[Log, int](), MOST
    # What a small log does not need goes to the larger ones.
    for number, log in enumerate(sorted(sizes, key=lambda log: sizes[log])):
        shares[log] = max(_LEAST_SHARE, min(sizes[log], left // (len(sizes) - number)))
        left = max(0, left - min(sizes[log], shares[log]))
    return [
        line(hide(text), log, run.plan.launch)
        for log in sizes
        for text in ends_of(log, shares[log], starts[log])
    ]
