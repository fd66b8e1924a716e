"""Room for what a run writes: its logs and its outcome at least."""

from __future__ import annotations

from toolkit.errors import NoSpaceError
from toolkit.preflight.model import Case, Finding
from toolkit.units import human_size

LEAST = 100 * 10**6  # bytes: logs of a short run
LITTLE = 10**9  # bytes: one checkpoint of a small model


def look(case: Case) -> list[Finding]:
    found = []
    for what, left in (
        ("the file system has", case.seen.free),
        ("your quota leaves", case.seen.quota),
    ):
        if left is not None and left < LITTLE:
            cause = f"in {case.seen.directory} {what} {human_size(left)}"
            error = NoSpaceError(
                cause,
                place="directory",
                next_step="remove old runs, or change to a directory with more room",
            )
            found.append(Finding(error, "looked here", stops=left < LEAST))
    return found[:1]
