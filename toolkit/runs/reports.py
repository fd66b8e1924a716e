"""Read the records that failing processes of a run have written into its directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from toolkit.model.report import Report
from toolkit.records.store import Paths
from toolkit.resources import package_directory

_MOST_FILES, _MOST_BYTES = 5000, 1 << 18


def place_hook(directory: Path) -> None:
    """Copy the module that records failures into a run's directory, where its processes find it."""
    source = package_directory("scripts") / "report" / "sitecustomize.py"
    target = Paths(directory).reports
    target.mkdir(mode=0o700)
    (target / source.name).write_bytes(source.read_bytes())


def read(
    paths: Paths, job_id: int, element: int | None = None, attempt: int | None = None
) -> tuple[Report, ...]:
    """Return the records of a job, the earliest first.

    Args:
        paths: of the run.
        job_id: Slurm's number.
        element: of a job array; None: not an array.
        attempt: of a job that goes back into the queue, from 1; None: the last one that has written a record.
    """
    found = [report for report in _decoded(paths.reports) if _is_of(report, job_id, element)]
    last = max((_attempt(report) for report in found), default=1) if attempt is None else attempt
    return tuple(
        sorted(
            (report for report in found if _attempt(report) == last),
            key=lambda report: report.time_ns,
        )
    )


def _is_of(report: Report, job_id: int, element: int | None) -> bool:
    env = report.env
    if element is not None and env.get("SLURM_ARRAY_TASK_ID") != str(element):
        return False
    # A job that joins an elastic one has a number of its own; the name of their meeting begins with
    # the other's.
    numbers = (
        env.get("SLURM_ARRAY_JOB_ID"),
        env.get("SLURM_JOB_ID"),
        env.get("TORCHELASTIC_RUN_ID", "").partition("-")[0],
    )
    return str(job_id) in numbers


def _attempt(report: Report) -> int:
    count = report.env.get("SLURM_RESTART_COUNT", "")
    return int(count) + 1 if count.isascii() and count.isdecimal() and len(count) < 9 else 1


def _decoded(directory: Path) -> Iterator[Report]:
    """Yield what can be read; a process may have been killed while it wrote its record."""
    for path in islice(sorted(directory.glob("*.json")), _MOST_FILES):
        data = _content(path)
        try:
            yield msgspec.json.decode(data, type=Report)
        except (msgspec.DecodeError, ValueError):
            continue


def _content(path: Path) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    with os.fdopen(handle, "rb") as file:
        return file.read(_MOST_BYTES) if stat.S_ISREG(os.fstat(handle).st_mode) else b""
