"""A part of the cluster did not start: which log says why, and its tail."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from toolkit.errors import ClusterError

LINES = 12


class StartError(ClusterError):
    """A part of the cluster did not start; ``logs`` tells where the reason may be, the likeliest first."""

    def __init__(self, cause: str, logs: Iterable[Path] = (), details: Iterable[str] = ()) -> None:
        super().__init__(cause, details=tuple(details))
        self.logs = tuple(logs)


def tails(logs: Iterable[Path]) -> tuple[str, ...]:
    """The last lines of each log that has any, under its name; ``x.out`` only where ``x.log`` has none, as it says the same."""
    found: dict[Path, list[str]] = {}
    for log in logs:
        rows = _rows(log)
        if rows and log.with_suffix(".log") not in found:
            found[log] = [f"{log.name}:", *rows[-LINES:]]
    return tuple(row for rows in found.values() for row in rows)


def _rows(log: Path) -> list[str]:
    try:
        return [row for row in log.read_text(errors="replace").split("\n") if row.strip()]
    except OSError:
        return []
