"""Format sizes, durations and counts for users."""

from __future__ import annotations


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
