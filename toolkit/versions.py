"""Compare versions by their numbers. Pure."""

from __future__ import annotations

import re

_NUMBERS = re.compile(r"\d+(?:\.\d+)*")


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with: ``(1, 12, 0)`` for ``1.12.0a0+2c916ef``.

    The result is empty if the version begins with something else.
    """
    match = _NUMBERS.match(version.strip().removeprefix("v"))
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def compare(version: str, other: str) -> int:
    """Return -1, 0 or 1 if ``version`` is older than, equal to, or newer than ``other``.

    Only as many numbers are compared as ``other`` has, so that ``12.8.1`` equals ``12`` and
    ``12.8``; missing ones count as 0.
    """
    wanted = numbers(other)
    has = numbers(version)[: len(wanted)]
    has += (0,) * (len(wanted) - len(has))
    return (has > wanted) - (has < wanted)
