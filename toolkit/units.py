"""Format sizes, durations and counts, parse Slurm's; read versions and exit codes. Pure."""

from __future__ import annotations

import re

# Those whose default action ends a process, by signal(7), without the real-time ones, which no
# program of the field uses: other codes above 128 are a program's own, such as 255 of exit(-1).
_ENDING = frozenset((*range(1, 16), *range(24, 28), *range(29, 32)))


def human_size(count: float) -> str:
    """Format a number of bytes: ``295 MB``, ``1.1 GB`` (powers of 1000)."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def human_time(seconds: float) -> str:
    """Format a duration: ``0:41``, ``2:05``, ``1:02:03``."""
    whole = int(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def human_age(seconds: float) -> str:
    """Format an age: ``5 h``, ``1 day``, ``30 days``."""
    hours = int(seconds // 3600)
    days = hours // 24
    return counted(days, "day") if days else f"{hours} h"


def or_dash(value: float | None, form: str) -> str:
    """Format a number by a format specification; ``-`` if it is unknown."""
    return "-" if value is None else format(value, form)


def counted(number: int, noun: str) -> str:
    """Format a number with its noun: ``1 node``, ``2 nodes``, ``2 days``, ``3 entries``."""
    if number == 1:
        return f"1 {noun}"
    has_ies = noun.endswith("y") and noun[-2] not in "aeiou"
    return f"{number} {noun[:-1]}ies" if has_ies else f"{number} {noun}s"


def whole(text: str | None) -> int | None:
    """Return a number that another program wrote; None for any other text."""
    is_number = text and text.isascii() and text.isdecimal() and len(text) < 20
    return int(text) if text and is_number else None


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with: ``(1, 12, 0)`` for ``1.12.0a0+2c916ef``.

    The result is empty if the version begins with something else.
    """
    match = re.match(r"\d+(?:\.\d+)*", version.strip().removeprefix("v"))
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


def signal_of(exit_code: int) -> int:
    """Return the signal of which a shell's exit code (128 + n) tells, or 0."""
    return exit_code - 128 if exit_code - 128 in _ENDING else 0


def minutes(text: str) -> int | None:
    """Return a time in Slurm's form in minutes, rounded up; None: unlimited.

    The forms are ``MM``, ``MM:SS``, ``HH:MM:SS``, ``D-HH`` and ``D-HH:MM[:SS]``.

    Raises:
        ValueError: the text is not a time.
    """
    if text.lower() in ("infinite", "unlimited", "-1"):
        return None
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not match:
        raise ValueError(f"{text!r} is not a time; Slurm's are MM, HH:MM:SS and D-HH:MM:SS")
    days, first, second, third = (int(group) if group else 0 for group in match.groups())
    if match[1] or match[4]:
        hours, mins, seconds = first, second, third
    else:
        hours, mins, seconds = 0, first, second
    return days * 1440 + hours * 60 + mins + (1 if seconds else 0)


def megabytes(text: str) -> int:
    """Return a size in Slurm's form in megabytes, rounded up; 0 is all of a node.

    The forms are ``16G``, ``500M`` and plain megabytes.

    Raises:
        ValueError: the text is not a size.
    """
    match = re.fullmatch(r"(\d{1,15})(?:([KMGT])B?)?", text, re.IGNORECASE | re.ASCII)
    if not match:
        raise ValueError(f"{text!r} is not a size; Slurm's are 16G, 500M, or a number of megabytes")
    kilobytes = int(match[1]) << 10 * "KMGT".index((match[2] or "M").upper())
    return -(-kilobytes // 1024)
