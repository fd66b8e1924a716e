"""Host lists as Slurm writes them: ``nid[001-002,007]``. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable


def expand(text: str) -> tuple[str, ...]:
    """``nid[001-002],ctl`` as ``("nid001", "nid002", "ctl")``; widths of numbers are kept.

    Raises:
        ValueError: a bracket is not closed, or a range runs backwards.
    """
    if text.count("[") != text.count("]"):
        raise ValueError(f"{text!r} is not a host list: a bracket is not closed")
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        pieces = re.split(r"\[([^\]]*)\]", part)
        choices = [
            [piece] if index % 2 == 0 else list(_numbers(piece))
            for index, piece in enumerate(pieces)
        ]
        names += ["".join(combination) for combination in itertools.product(*choices)]
    return tuple(names)


def _numbers(ranges: str) -> Iterable[str]:
    for item in ranges.split(","):
        first, dash, last = item.partition("-")
        if (
            not first.isdigit()
            or (dash and not last.isdigit())
            or (dash and int(last) < int(first))
        ):
            raise ValueError(f"{item!r} is not a range of a host list")
        for number in range(int(first), int(last or first) + 1):
            yield str(number).zfill(len(first))


def count(nodes: str | int | None) -> int | None:
    """Return how many nodes a host list or a number stands for; None if unset."""
    return len(expand(nodes)) if isinstance(nodes, str) else nodes
