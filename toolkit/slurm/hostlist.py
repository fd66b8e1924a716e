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
        choices = [[piece] if index % 2 == 0 else list(_numbers(piece)) for index, piece in enumerate(pieces)]
        names += ["".join(combination) for combination in itertools.product(*choices)]
    return tuple(names)


def _numbers(ranges: str) -> Iterable[str]:
    for item in ranges.split(","):
        first, dash, last = item.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise ValueError(f"{item!r} is not a range of a host list")
        for number in range(int(first), int(last or first) + 1):
            yield str(number).zfill(len(first))


def compress(names: Iterable[str]) -> str:
    """The reverse: sorted, runs of numbers of equal width joined."""
    groups: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    for name in sorted(set(names)):
        match = re.fullmatch(r"(.*?)(\d+)", name)
        if match:
            groups.setdefault((match[1], len(match[2])), []).append(int(match[2]))
        else:
            plain.append(name)
    for (prefix, width), numbers in groups.items():
        spans = [_span(list(run), width) for _, run in itertools.groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])]
        single = len(spans) == 1 and "-" not in spans[0]
        plain.append(prefix + (spans[0] if single else f"[{','.join(spans)}]"))
    return ",".join(plain)


def _span(run: list[tuple[int, int]], width: int) -> str:
    first, last = run[0][1], run[-1][1]
    return f"{first:0{width}d}" if first == last else f"{first:0{width}d}-{last:0{width}d}"
