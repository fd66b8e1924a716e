"""Where the evidence of real runs lies, and how a log is read that a user has pasted."""

from __future__ import annotations

from pathlib import Path

from toolkit.explain.gather import labelled
from toolkit.runs.logs import Line

GOLDEN = Path(__file__).parent / "golden" / "explain"


def pasted(text: str) -> tuple[Line, ...]:
    """Return the lines of a log that a user has pasted."""
    return labelled(text.rstrip("\n").split("\n"))


def captured(kind: str) -> list[Path]:
    """Return the files of a kind: ``captured`` (the name begins with the rule) or ``healthy``."""
    return sorted((GOLDEN / kind).glob("*.json"))
