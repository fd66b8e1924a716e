"""Lists as Slurm writes them: hosts, ``nid[001-002,007]``, and tasks of an array. Pure."""

from __future__ import annotations

import itertools
import math
import re

LAST_TASK = 4_000_000  # slurm.conf(5), MaxArraySize
_TASK_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(0*[1-9]\d{0,8}))?)?")
_MOST = 100_000  # hosts; text that a few bytes of a log make huge is no host list


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of a host list: ``("nid001", "nid002", "ctl")`` for ``nid[001-002],ctl``.

    The widths of numbers are kept.

    Raises:
        ValueError: a bracket is not closed, a range runs backwards, or it names too many hosts.
    """
    if text.count("[") != text.count("]"):
        raise ValueError(f"{text!r} is not a host list: a bracket is not closed")
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        texts = re.split(r"\[([^\]]*)\]", part)
        choices = [[text] if index % 2 == 0 else _numbers(text) for index, text in enumerate(texts)]
        if len(names) + math.prod(map(len, choices)) > _MOST:
            raise ValueError(f"more than {_MOST} hosts are no host list")
        names += ["".join(combination) for combination in itertools.product(*choices)]
    return tuple(names)


def _numbers(ranges: str) -> list[str]:
    numbers: list[str] = []
    for item in ranges.split(","):
        first, dash, last = item.partition("-")
        if (
            not first.isdigit()
            or (dash and not last.isdigit())
            or (dash and not 0 <= int(last) - int(first) < _MOST)
        ):
            raise ValueError(f"{item!r} is not a range of a host list")
        for number in range(int(first), int(last or first) + 1):
            numbers.append(str(number).zfill(len(first)))
    return numbers


def count(nodes: str | int | None) -> int | None:
    """Return the number of nodes of a host list; a number stands for itself, None for unset."""
    return len(expand(nodes)) if isinstance(nodes, str) else nodes


def task_ranges(text: str) -> list[range]:
    """Return the ranges of task ids that a value of ``--array`` or of squeue names.

    The limit of simultaneous tasks after ``%``, brackets around the ids, and ranges beyond what any
    Slurm has are left out.
    """
    parts = text.strip("[]").partition("%")[0].split(",")
    matches = [match for part in parts if (match := _TASK_RANGE.fullmatch(part))]
    ranges = [
        range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1)) for match in matches
    ]
    return [ids for ids in ranges if ids and ids[-1] <= LAST_TASK]


def task_ids(text: str) -> set[int]:
    """Return the task ids that a value of ``--array`` or of squeue names."""
    return set[int]().union(*task_ranges(text))
