"""The logs of a run, while they grow and afterwards: complete lines, each with the rank or the node that it came from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from toolkit.redaction import HIDDEN
from toolkit.runs import hidden
from toolkit.runs.store import Log, Paths

_LEAST = 6  # characters of a secret that is looked for in logs; shorter ones are in any text

# Said by healthy runs, and of no use to the people who read them; the files keep them.
_NOISE = re.compile(
    r"hostname of the client socket cannot be retrieved"
    r"|^\*+$|Setting OMP_NUM_THREADS environment variable for each process"
    r"|PMIx.*gds.*shmem|^INFO:\s+(?:Setting|gocryptfs|squashfuse)"
)
_RANK = re.compile(r"^(?P<rank>\d+)\| ?(?P<text>.*)$")


@dataclass(frozen=True)
class Line:
    """A line of a log.

    ``rank`` is None where a launcher's agent or the batch shell speaks; ``host`` is "" for the batch shell; ``element`` is the number in a
    job array; ``attempt`` counts how often the job was started, where its logs tell.
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


def line(text: str, log: Log, *, task_is_rank: bool) -> Line:
    """What a line says and who said it: torchrun's lines begin with their rank, Slurm's tasks are ranks by themselves."""
    match = _RANK.match(text)
    if match:
        return Line(match["text"], log.host, int(match["rank"]), log.element, log.attempt)
    return Line(text, log.host, log.task if task_is_rank else None, log.element, log.attempt)


def is_noise(text: str) -> bool:
    """Whether a line is one that healthy runs print and nobody needs."""
    return not text.strip() or bool(_NOISE.search(text))


@dataclass
class Tail:
    """Reads what was added to a job's logs since the last time; new files are found by themselves."""

    paths: Paths
    job_id: int
    _offsets: dict[Path, int] = field(default_factory=dict)
    _secrets: tuple[str, ...] | None = None

    def read(self, *, last: bool = False) -> Iterator[tuple[Log, str]]:
        """New complete lines; with ``last`` also a last one that has no newline."""
        for log in self.paths.logs_of(self.job_id):
            for text in self._new(log.path, last=last):
                yield log, self._shown(text)

    def _shown(self, text: str) -> str:
        """A line without the values of the run's secret variables, which a rank may have printed."""
        if self._secrets is None:
            self._secrets = tuple(value for value in hidden.read(self.paths.directory).values() if len(value) >= _LEAST)
        for value in self._secrets:
            text = text.replace(value, HIDDEN)
        return text

    def _new(self, path: Path, *, last: bool) -> list[str]:
        with path.open("rb") as stream:
            stream.seek(self._offsets.get(path, 0))
            data = stream.read()
        end = len(data) if last else data.rfind(b"\n") + 1
        self._offsets[path] = self._offsets.get(path, 0) + end
        # A progress bar redraws its line with carriage returns; what counts is the last of them.
        return [
            row.rsplit("\r", 1)[-1]
            for row in data[:end].decode("utf-8", "replace").replace("\r\n", "\n").split("\n")[: None if last else -1]
        ]


def ranks(lines: Iterable[Line]) -> dict[str, tuple[int, ...]]:
    """Host -> ranks that spoke on it, both in order."""
    found: dict[str, set[int]] = {}
    for entry in lines:
        if entry.rank is not None and entry.host:
            found.setdefault(entry.host, set()).add(entry.rank)
    return {host: tuple(sorted(numbers)) for host, numbers in sorted(found.items(), key=lambda item: min(item[1]))}
