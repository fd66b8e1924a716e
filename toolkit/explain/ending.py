"""Tell whether a log shows a failure at all, and which of its errors the program survived. Pure.

Healthy programs print errors, too: they retry, take another port or a smaller batch, and go on. An
error is survived if its own log goes on normally after it. A log whose errors are all survived
shows no failure, unless Slurm, a launcher or MPI says in it that there was one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from toolkit.explain.model import Entry

_GOES_ON = 4  # lines of normal output after an error that was survived
_ENDED = re.compile(
    r"^srun: error: |Exited with exit code [1-9]|ChildFailedError|Root Cause \(first observed failure\)"
    r"|exited on\s{1,4}signal|non-zero exit code|MPI_ABORT was invoked|^mpirun noticed|Job step aborted|Force Terminated"
)
_ERROR = re.compile(
    r"^(?:\w+\.){0,9}\w*(?:Error|Exception|Failure)(?::|$)|^\W{0,4}(?:[\w.-]{1,40}: ){0,3}(?:fatal|error|abort|panic)\b"
    r"|Traceback \(most recent call last\)|core dumped|segmentation fault|\bkilled$|\bfailed\W{0,3}$|command not found"
    r"|Fatal Python error|^slurmstepd: error:",
    re.IGNORECASE,
)
_WARNING = re.compile(
    r"^\W{0,3}(?:\w{1,10}\]:)?\W?W\d{4} |^\[W |\bWARN|[Ww]arning|\(ignored\)|NCCL INFO|^Exception ignored in"
)
# A test that passed, or failed as its author expects, may be named after any failure.
_EXPECTED = (
    r"\.py::.{1,300} (?:PASSED|XFAIL|XPASS|SKIPPED)\b"
    r"|\.\.\. (?:ok|expected failure|skipped)\b"
)
_INFORMATION = re.compile(rf"NCCL INFO|\(ignored\)|{_EXPECTED}")
_NORMAL = re.compile(r"^\S.*\w")
_ALARMING = re.compile(
    r"error|exception|traceback|fatal|abort|kill|cannot|can't|could not|fail|denied|refused|signal|-----|=====",
    re.IGNORECASE,
)


def survived(entries: Sequence[Entry]) -> frozenset[int]:
    """Return the positions of the lines after which their own log goes on normally."""
    normal_after: dict[str, int] = {}
    found = []
    for position in range(len(entries) - 1, -1, -1):
        entry = entries[position]
        after = normal_after.get(entry.label, 0)
        if after >= _GOES_ON or _INFORMATION.search(entry.text):
            found.append(position)
        elif _is_normal(entry.text):
            normal_after[entry.label] = after + 1
    return frozenset(found)


def _is_normal(text: str) -> bool:
    return bool(_NORMAL.match(text)) and not _ALARMING.search(text)


def shows_failure(
    entries: Sequence[Entry],
    causes: Iterable[int],
    consequences: Iterable[int],
    past: Collection[int],
) -> bool:
    """Return whether a log shows a failure.

    Args:
        entries: lines of the log.
        causes: positions of the lines that a rule knows as a cause.
        consequences: positions of the lines that a rule knows as a consequence; healthy runs warn of such at their end.
        past: positions of the lines that were survived.
    """
    if any(
        _ENDED.search(entry.text) for position, entry in enumerate(entries) if position not in past
    ):
        return True
    if any(position not in past for position in causes):
        return True
    errors = (position for position, entry in enumerate(entries) if _ERROR.search(entry.text))
    return any(
        position not in past and not _WARNING.search(entries[position].text)
        for position in chain(consequences, errors)
    )
