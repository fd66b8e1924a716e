"""Versions as people and programs write them, compared by their numbers. Pure."""

from __future__ import annotations

import re

_NUMBERS = re.compile(r"\d+(?:\.\d+)*")


def numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: ``1.12.0a0+2c916ef`` is ``(1, 12, 0)``; none where it begins with something else."""
    found = _NUMBERS.match(version.strip().removeprefix("v"))
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def compare(version: str, other: str) -> int:
    """-1, 0 or 1: whether ``version`` is older than, as far as it is said equal to, or newer than ``other``.

    Only as many numbers are compared as ``other`` has, so that ``12.8.1`` equals ``12`` and
    ``12.8``; missing ones count as 0.
    """
    wanted = numbers(other)
    has = numbers(version)[: len(wanted)]
    has += (0,) * (len(wanted) - len(has))
    return (has > wanted) - (has < wanted)
