"""The names of nodes as Slurm writes them, for the shape of a cluster that is not up yet: ``gpu[01-02,05],cpu01``."""

from __future__ import annotations

import re

_PART = re.compile(r"(?P<head>[^\[\],]+)(?:\[(?P<ranges>[^\[\]]+)\](?P<tail>[^\[\],]*))?\Z")
_RANGE = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+))?\Z")
_MOST = 1000


def expand(text: str) -> tuple[str, ...]:
    """Every name of a list.

    Raises:
        ValueError: it is no such list, or one of more than 1000 names.
    """
    return tuple(name for part in split(text) for name in _expand_part(part, text))


def split(text: str) -> tuple[str, ...]:
    """The parts between the commas that are not within brackets."""
    return tuple(part.strip() for part in re.split(r",(?![^\[\]]*\])", text))


def _expand_part(part: str, text: str) -> list[str]:
    found = _PART.match(part)
    if not found:
        raise ValueError(f"{text!r} is no list of nodes; nid[001-004] or nid001,nid003 would be")
    if found["ranges"] is None:
        return [part]
    return [f"{found['head']}{number}{found['tail']}" for piece in found["ranges"].split(",") for number in _numbers(piece, text)]


def _numbers(piece: str, text: str) -> list[str]:
    found = _RANGE.match(piece.strip())
    first = int(found["first"]) if found else 1
    last = int(found["last"] or first) if found else 0
    if not found or last < first:
        raise ValueError(f"{piece!r} in {text!r} is no range; 001-004 would be")
    if last - first >= _MOST:
        raise ValueError(f"{piece!r} in {text!r} is more than {_MOST} nodes")
    width = len(found["first"])
    return [f"{number:0{width}d}" for number in range(first, last + 1)]
