"""Host lists as Slurm writes them: ``nid[001-002,007]``. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of a host list: ``("nid001", "nid002", "ctl")`` for ``nid[001-002],ctl``.

    The widths of numbers are kept.

    Raises:
        ValueError: a bracket is not closed, or a range runs backwards.
    """
    if text.count("[") != text.count("]"):
        raise ValueError(f"{text!r} is not a host list: a bracket is not closed")
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        texts = re.split(r"\[([^\]]*)\]", part)
        choices = [
            [text] if index % 2 == 0 else list(_numbers(text)) for index, text in enumerate(texts)
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
    """Return the number of nodes of a host list; a number stands for itself, None for unset."""
    return len(expand(nodes)) if isinstance(nodes, str) else nodes
