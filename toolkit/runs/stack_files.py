"""Ask the processes of a run for their stacks, and read the files that they write."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from toolkit import launchers, runtimes
from toolkit.errors import ToolkitError
from toolkit.files import open_regular
from toolkit.model.plan import Plan
from toolkit.model.run import JobState
from toolkit.quoting import shell
from toolkit.runs import excerpt
from toolkit.runs.blame import rank_of
from toolkit.runs.stacks import Frame, Process, has_ended, parse, read_process, world_of
from toolkit.runs.standings import Answer
from toolkit.runs.store import Paths
from toolkit.slurm.client import Client
from toolkit.slurm.hostlist import expand

_MOST_FILES = 100_000
_HEAD, _TAIL = 8 << 10, 256 << 10  # bytes of a file that are read
_MOST_SOURCE = 1 << 20
_LOOK_SECONDS, _LOOK_SHARE = 0.2, 0.2  # between two looks; of a core, for many files
_SLOW_SECONDS = 3.0  # then the nodes write what their caches hold back


class _File(NamedTuple):
    path: Path
    process: Process
    size: int
    written: float


def _files(paths: Paths, job_id: int) -> list[_File]:
    """Return the files of a job's last attempt; those of other users are not believed."""
    owner = paths.directory.stat().st_uid
    files = []
    for path in islice(paths.reports.glob("*.stacks"), _MOST_FILES):
        with suppress(OSError):
            with open_regular(path, below=paths.directory) as file:
                status = os.fstat(file.fileno())
                if status.st_uid != owner:
                    continue
                process = read_process(file.read(_HEAD).decode("utf-8", "replace"))
            if process is not None and excerpt.is_of(process.report, job_id, None):
                files.append(_File(path, process, status.st_size, status.st_mtime))
    last = max((excerpt.attempt_of(file.process.report) for file in files), default=1)
    own = (file for file in files if excerpt.attempt_of(file.process.report) == last)
    return sorted(own, key=lambda file: file.process.report.time_ns)


def _text(file: _File, start: int, end: int) -> str:
    """Return a part of a file, or the end of that part; without what begins the file."""
    with open_regular(file.path, below=file.path.parent.parent) as stream:
        head = stream.read(_HEAD).partition(b"\n\n")
        begin = max(start, len(head[0]) + len(head[1]), end - _TAIL)
        stream.seek(begin)
        return stream.read(max(0, end - begin)).decode("utf-8", "replace")


def can_answer(plan: Plan) -> bool:
    """Return whether a run's ranks write their stacks: Python that Slurm's signals reach.

    The processes of a container of Docker or podman are not in the job's steps.
    """
    return plan.reports and runtimes.get(plan.container.runtime).image != "docker"


class Reading(NamedTuple):
    """The stacks of a job's processes.

    Attributes:
        answers: of each process.
        written: when the last of them was written, in seconds since the epoch; 0: none was.
        before: the same of those that were there before.
    """

    answers: list[Answer]
    written: float = 0.0
    before: float = 0.0


def read(
    paths: Paths, plan: Plan, job_id: int, asked: Mapping[Path, tuple[int, float]] | None = None
) -> Reading:
    """Read the stacks of a job.

    Args:
        paths: of the run.
        plan: of the run.
        job_id: Slurm's number.
        asked: sizes and times of the files when the ranks were asked: what follows is the answer.
    """
    answers, written, before = [], 0.0, 0.0
    for file in _files(paths, job_id):
        size, when = (asked or {}).get(file.path, (0, 0.0))
        text = _text(file, size, file.size)
        dumps = parse(text, file.process.main)
        past = _text(file, 0, size) if size else ""
        earlier = parse(past, file.process.main) if size else dumps[:-1]
        ended = has_ended(text) or has_ended(past)
        now, was = dumps[-1] if dumps else None, earlier[-1] if earlier else None
        answers.append(Answer(file.process, now, was, ended))
        # The file of a process that has ended since was written to once more.
        written = max(written, file.written) if dumps and (not ended or not written) else written
        before = max(before, when) if earlier else before
    launcher, reports = (
        launchers.get(plan.launch.launcher),
        [each.process.report for each in answers],
    )
    last = {id(report) for report in launcher.of_last_start(reports, ())}
    own = [answer for answer in answers if id(answer.process.report) in last]
    return Reading(own, written, before)


def worlds(paths: Paths, plan: Plan, job_id: int) -> list[int]:
    """Return with how many ranks each rank of a job has trained, as far as they noted it."""
    launcher, files = launchers.get(plan.launch.launcher), _files(paths, job_id)
    reports = [file.process.report for file in files]
    last = {id(report) for report in launcher.of_last_start(reports, ())}
    by_rank: dict[tuple[str, int], int] = {}
    for file in files:
        report = file.process.report
        if id(report) in last and (size := world_of(_text(file, 0, file.size))):
            rank = rank_of(report, plan.launch.launcher)
            key = (report.host, report.pid) if rank is None else ("", rank)
            by_rank[key] = max(size, by_rank.get(key, 0))
    return list(by_rank.values())


def ask(paths: Paths, plan: Plan, client: Client, state: JobState, limit: float) -> Reading:
    """Have all processes of a running job write their stacks, and read them when they are written.

    A process that is gone, or does not know the signal, writes nothing; after ``limit`` seconds it
    is not waited for any more.
    """
    files = _files(paths, state.job_id)
    asked = {file.path: (file.size, file.written) for file in files}
    began = time.monotonic()
    client.signal(state.job_id, "URG")
    sizes: dict[Path, int] = {}
    is_synced = False
    while True:
        began_cpu = time.process_time()
        files = _files(paths, state.job_id)
        now = {file.path: file.size for file in files}
        silent = [file for file in files if now[file.path] == asked.get(file.path, (0, 0.0))[0]]
        silent = [file for file in silent if not has_ended(_text(file, 0, file.size))]
        passed = time.monotonic() - began
        if (now == sizes and files and not silent) or passed > limit:
            return read(paths, plan, state.job_id, asked)
        sizes = now
        if passed > _SLOW_SECONDS and not is_synced:
            is_synced = True
            with suppress(ToolkitError):  # a node's page cache of NFS is written after 30 seconds
                nodes = len(expand(state.nodes))
                client.on_nodes(state.job_id, nodes, f"sync -f {shell(paths.reports)}")
        time.sleep(max(_LOOK_SECONDS, (time.process_time() - began_cpu) / _LOOK_SHARE))


def source_of(plan: Plan, frame: Frame) -> str:
    """Return the line of a frame from a file in the run's working directory, or an empty string."""
    path = Path(os.path.normpath(frame.file))
    if not path.is_relative_to(plan.directory):
        return ""
    try:
        with open_regular(path, below=path.parent) as file:
            lines = file.read(_MOST_SOURCE).split(b"\n")
    except OSError:
        return ""
    line = lines[frame.line - 1] if 0 < frame.line <= len(lines) else b""
    return line.decode("utf-8", "replace").strip()[:200]
