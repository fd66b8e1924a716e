"""The logs of a run, while they grow and afterwards: complete lines, each with the rank or the node that it came from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.model.plan import Launch
from toolkit.records import secrets
from toolkit.records.store import Log, Paths
from toolkit.redaction import HIDDEN
from toolkit.runs.lines import Splitter, stream

_LEAST = 6  # characters of a secret that is looked for in logs; shorter ones are in any text

# Said by healthy runs, and of no use to the people who read them; the files keep them.
_NOISE = re.compile(
    r"hostname of the client socket cannot be retrieved"
    r"|^\*+$|Setting OMP_NUM_THREADS environment variable for each process"
    r"|PMIx.{0,200}gds.{0,200}shmem|^INFO:\s+(?:Setting|gocryptfs|squashfuse)"
)
_RANK = re.compile(r"^(?P<rank>\d{1,9})\| ?(?P<text>.*)$")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log.

    ``rank`` is None where a launcher's agent or the batch shell wrote it; ``host`` is "" for the
    batch shell; ``element`` is the number in a job array; ``attempt`` counts how often the job was
    started, where its logs tell.
    """

    text: str
    host: str
    rank: int | None
    element: int | None = None
    attempt: int = 1

    @property
    def label(self) -> str:
        """``3``: the rank; ``nid001``: an agent; in a job array the element's number first: ``2.3``."""
        speaker = str(self.rank) if self.rank is not None else self.host
        return speaker if self.element is None else f"{self.element}.{speaker or 'batch'}"


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
    """Whether a line is one that healthy runs print and nobody needs."""
    return not text.strip() or bool(_NOISE.search(text))


class Tail:
    """Reads what was added to a job's logs since the last time; new logs are noticed.

    Args:
        paths: of the run.
        job_id: Slurm's number.
    """

    def __init__(self, paths: Paths, job_id: int) -> None:
        self._paths = paths
        self._job_id = job_id
        self._hide = secret_filter(paths)
        self._open: dict[Path, tuple[int, Splitter]] = {}

    def read(self, *, last: bool = False) -> Iterator[tuple[Log, str]]:
        """Yield new complete lines; with ``last`` also a last one that has no newline."""
        for log in self._paths.logs_of(self._job_id):
            for text in self._new(log.path, last=last):
                yield log, self._hide(text)

    def _new(self, path: Path, *, last: bool) -> Iterator[str]:
        offset, splitter = self._open.get(path, (0, Splitter()))
        with path.open("rb") as file:
            file.seek(offset)
            for data in stream(file):
                offset += len(data)
                self._open[path] = offset, splitter
                yield from splitter.feed(data)
        if last:
            yield from splitter.rest()


def secret_filter(paths: Paths) -> Callable[[str], str]:
    """Return a function that hides the values of the run's secret variables in a line, which a rank may have printed."""
    values = tuple(
        value for value in secrets.read(paths.directory).values() if len(value) >= _LEAST
    )

    def hide(text: str) -> str:
        for value in values:
            text = text.replace(value, HIDDEN)
        return text

    return hide


def ranks(lines: Iterable[Line]) -> dict[str, tuple[int, ...]]:
    """Host -> ranks that spoke on it, both in order."""
    found: dict[str, set[int]] = {}
    for entry in lines:
        if entry.rank is not None and entry.host:
            found.setdefault(entry.host, set()).add(entry.rank)
    return {
        host: tuple(sorted(numbers))
        for host, numbers in sorted(found.items(), key=lambda item: min(item[1]))
    }
