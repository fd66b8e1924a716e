"""Read in the logs of a cluster's daemons why it does not start."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_TAIL = 12  # lines of a log in a message
_FATAL = "fatal: "  # begins what a daemon of Slurm prints before it ends itself
# slurmd prints this instead in some places, after the error (slurmd.c, _slurmd_init).
_ERROR, _NOT_STARTED = "error: ", "slurmd initialization failed"
_AT_MOST = 1 << 20  # bytes at the end of a log in which the line is looked for


def log_tails(logs: Iterable[Path]) -> tuple[str, ...]:
    """Return the last lines of each log; of ``x.out`` only if ``x.log`` is empty."""
    tails: dict[Path, list[str]] = {}
    for log in logs:
        rows = _rows(log)
        if rows and log.with_suffix(".log") not in tails:
            tails[log] = [f"{log.name}:", *rows[-_TAIL:]]
    return tuple(row for rows in tails.values() for row in rows)


def fatal_errors(logs: Iterable[Path]) -> dict[str, tuple[str, ...]]:
    """Return what daemons printed before they ended themselves, with the names of those daemons.

    Args:
        logs: The logs, and the outputs of before a log was open.
    """
    names: dict[str, dict[str, None]] = {}
    for log in sorted(logs):
        rows = _rows(log)
        for before, row in zip(["", *rows], rows, strict=False):
            _, is_fatal, text = row.partition(_FATAL)
            if row.endswith(_ERROR + _NOT_STARTED):
                is_fatal, text = _FATAL, before.partition(_ERROR)[2] or _NOT_STARTED
            if is_fatal:
                names.setdefault(text.strip(), {})[log.stem] = None
    return {text: tuple(daemons) for text, daemons in names.items()}


def _rows(log: Path) -> list[str]:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _AT_MOST))
            text = stream.read().decode(errors="replace")
    except OSError:
        return []
    return [row for row in text.split("\n") if row.strip()]
