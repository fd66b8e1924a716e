"""Read log lines as entries, and find the errors that the program survived. Pure.

Healthy programs print errors, too: they retry, take another port or a smaller batch, and go on. An
error is survived if its own log goes on normally after it. A log whose errors are all survived
shows no failure, unless Slurm, a launcher or MPI reports one in it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from toolkit.explain.model import Entry, Evidence
from toolkit.launchers.failures import of_step, summary_failures

_GOES_ON = 4  # lines of normal output after an error that was survived
_ENDED = re.compile(
    r"^srun: error: |Exited with exit code [1-9]|ChildFailedError"
    r"|Root Cause \(first observed failure\)"
    r"|exited on\s{1,4}signal|non-zero exit code"
    r"|MPI_ABORT was invoked|^mpirun noticed|Job step aborted|Force Terminated"
)
_ERROR = re.compile(
    r"^(?:\w+\.){0,9}\w*(?:Error|Exception|Failure)(?::|$)"
    r"|^\W{0,4}(?:[\w.-]{1,40}: ){0,3}(?:fatal|error|abort|panic)\b"
    r"|Traceback \(most recent call last\)|core dumped|segmentation fault"
    r"|\bkilled$|\bfailed\W{0,3}$"
    r"|command not found"
    r"|Fatal Python error|^slurmstepd: error:",
    re.IGNORECASE,
)
_WARNING = re.compile(
    r"^\W{0,3}(?:\w{1,10}\]:)?\W?W\d{4} |^\[W |\bWARN|[Ww]arning|\(ignored\)|NCCL INFO"
    r"|^Exception ignored in"
)
# A test that passed, or failed as its author expects, may be named after any failure.
_EXPECTED = (
    r"\.py::.{1,300} (?:PASSED|XFAIL|XPASS|SKIPPED)\b"
    r"|\.\.\. (?:ok|expected failure|skipped)\b"
)
_INFORMATION = re.compile(rf"NCCL INFO|\(ignored\)|{_EXPECTED}")
_NORMAL = re.compile(r"^\S.*\w")
_ALARMING = re.compile(
    r"error|exception|traceback|fatal|abort|kill|cannot|can't|could not|fail|denied|refused"
    r"|signal|-----|=====",
    re.IGNORECASE,
)


def survived(entries: Sequence[Entry]) -> frozenset[int]:
    """Return the positions of the lines after which their own log goes on normally."""
    normal_after: dict[str, int] = {}
    positions = []
    for position in range(len(entries) - 1, -1, -1):
        entry = entries[position]
        after = normal_after.get(entry.label, 0)
        if after >= _GOES_ON or _INFORMATION.search(entry.text):
            positions.append(position)
        elif _is_normal(entry.text):
            normal_after[entry.label] = after + 1
    return frozenset(positions)


def _is_normal(text: str) -> bool:
    return bool(_NORMAL.match(text)) and not _ALARMING.search(text)


def shows_failure(
    entries: Sequence[Entry], causes: Collection[int], consequences: Collection[int]
) -> bool:
    """Return whether a log shows a failure that its program did not survive.

    Args:
        entries: lines of the log.
        causes: positions of the lines that show a cause.
        consequences: positions of the lines that show a consequence; healthy runs print such
            warnings at their end.
    """
    past = survived(entries)
    for position, entry in enumerate(entries):
        if position in past:
            continue
        if position in causes or _ENDED.search(entry.text):
            return True
        is_error = position in consequences or _ERROR.search(entry.text)
        if is_error and not _WARNING.search(entry.text):
            return True
    return False


# The prefix of torch for each line of an exception once a rank belongs to a group.
_RAISED = re.compile(r"\[rank(?P<rank>\d{1,9})\]: ?(?P<text>.*)")


def entries_of(lines: Iterable[tuple[str, str, int | None]]) -> tuple[Entry, ...]:
    """Return entries from (text, host, rank), numbered in each log; torch's prefix is the rank."""
    counts: dict[tuple[str, int | None], int] = {}
    entries: list[Entry] = []
    for text, host, rank in lines:
        raised = _RAISED.match(text)
        if raised:
            text, rank = raised["text"], int(raised["rank"]) if rank is None else rank
        key = (host, rank)
        counts[key] = counts.get(key, -1) + 1
        entries.append(Entry(text, host, rank, counts[key]))
    return tuple(entries)


def evidence_of(entries: tuple[Entry, ...]) -> Evidence:
    """Return the evidence in a log without a run, with the failed rank that its launcher reports.

    torchrun's summary comes before srun's message, in which a task may be an agent.
    """
    past = survived(entries)
    logs: dict[str, list[str]] = {}
    for position, entry in enumerate(entries):
        if position not in past:
            logs.setdefault(entry.label, []).append(entry.text)
    reported = summary_failures(("", lines) for lines in logs.values())
    reported = reported or of_step((("", lines) for lines in logs.values()), "task")
    if not reported:
        return Evidence(entries)
    first = reported[0]
    return Evidence(
        entries, first_rank=first.rank, first_host=first.host or "", reported=first.text
    )


_LABELLED = re.compile(
    r"(?:(?P<rank>\d{1,9})|(?P<batch>batch)|(?P<host>[a-zA-Z](?=[\w.-]{0,253}\d)[\w.-]{0,253}))"
    r"[|:] ?(?P<text>.*)"
)
# Not "[0]:" alone, which begins an entry of torchrun's summary.
_TORCH = re.compile(r"\[(?:default)?(?P<rank>\d{1,9})\]:(?P<text>.+)")


def pasted(text: str) -> tuple[Entry, ...]:
    """Return the lines of a pasted log as entries, see ``labelled``."""
    return labelled(text.replace("\r\n", "\n").rstrip("\n").split("\n"))


def labelled(lines: Iterable[str]) -> tuple[Entry, ...]:
    """Return lines as entries, with the labels of `toolkit logs`, srun and torchrun, or without."""
    return entries_of(_labelled(line) for line in lines)


def _labelled(line: str) -> tuple[str, str, int | None]:
    torch = _TORCH.match(line)
    if torch:
        return torch["text"], "", int(torch["rank"])
    label = _LABELLED.match(line)
    if not label:
        return line, "", None
    return label["text"], label["host"] or "", int(label["rank"]) if label["rank"] else None
