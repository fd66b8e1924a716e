"""Read the files that the processes of a job have written: whose they are, and how they failed.

The module in ``scripts/report`` writes them in each process of Python. A process may have been
killed while it wrote, and its file may be another user's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from toolkit import launchers
from toolkit.files import open_regular
from toolkit.model.plan import Plan
from toolkit.model.run import Process, Record
from toolkit.runs import logs
from toolkit.runs.blame import is_starter
from toolkit.runs.run import Run

RUNNING, ENDED = ".process", ".ended"  # suffixes
_HEAD, _TAIL = 8 << 10, 256 << 10  # bytes of a file that are read
_MOST = 256 << 20  # of all files
_WORLD = re.compile(rb"^world=(\d{1,9}) rank=(\d{1,9})$", re.MULTILINE)


def read(run: Run) -> list[Process]:
    """Return the processes of a run's job, the earliest first."""
    launcher, hide = launchers.get(run.plan.launch.launcher), logs.secret_filter(run)
    processes, left = [], _MOST
    with suppress(OSError):  # the folder is its owner's alone
        for name in run.names(run.reports):
            if not name.endswith((RUNNING, ENDED)):
                continue
            with suppress(OSError):
                process = _read(run, name, min(_TAIL, left), hide)
                left -= len(process.text) if process else 0
                if process and _is_of(process, run.job_id):
                    is_agent = is_starter(process.program)
                    rank = None if is_agent else launcher.rank_of(process)
                    own = process.own_rank if rank is None else rank
                    processes.append(process._replace(rank=own))
    return sorted(processes, key=lambda process: process.time_ns)


def have_some_ended(run: Run) -> bool:
    """Return whether some processes have ended and others not, by the names of their files."""
    with suppress(OSError):
        names = run.names(run.reports)
        return all(any(name.endswith(end) for name in names) for end in (RUNNING, ENDED))
    return False


def by_element(processes: Iterable[Process]) -> dict[int | None, list[Process]]:
    """Group the processes of a job array by the numbers of its elements; without one by None."""
    groups: dict[int | None, list[Process]] = {}
    for process in processes:
        groups.setdefault(_number(process.env.get("SLURM_ARRAY_TASK_ID")), []).append(process)
    return groups


def latest(
    processes: Sequence[Process], plan: Plan, attempt: int | None = None
) -> Sequence[Process]:
    """Return the processes since ranks were last started, the earliest first.

    Args:
        processes: of a job.
        plan: of the run.
        attempt: of a requeued job, from 1; None: the last one.
    """
    last = attempt or max(map(_attempt_of, processes), default=1)
    started = [process for process in processes if _attempt_of(process) == last]
    return launchers.get(plan.launch.launcher).of_last_start(started, ())


def _read(run: Run, name: str, most: int, hide: Callable[[str], str]) -> Process | None:
    """Read a file; return None if it is another user's, or has no whole beginning."""
    path = run.reports / name
    with open_regular(path, below=run.directory) as file:
        status = os.fstat(file.fileno())
        head, ends, text = file.read(_HEAD).partition(b"\n\n")
        file.seek(max(file.tell(), status.st_size - most))
        text += file.read(most)
    facts = dict(
        line.partition("=")[::2] for line in head.decode("utf-8", "replace").split("\n")[:200]
    )
    pid = _number(facts.get("pid"))
    if status.st_uid != run.directory.stat().st_uid or not ends or pid is None:
        return None
    worlds = [(int(size), int(rank)) for size, rank in _WORLD.findall(text)]
    world, own_rank = max(worlds, default=(0, None))
    return Process(
        host=facts.get("host", ""),
        pid=pid,
        parent=_number(facts.get("parent")) or 0,
        main=facts.get("main", ""),
        program=facts.get("program", ""),
        name=facts.get("process", ""),
        local_rank=_number(facts.get("index")),
        is_rank=facts.get("is_rank") == "1",
        env={key[4:]: value for key, value in facts.items() if key.startswith("env.")},
        time_ns=_number(facts.get("time")) or 0,
        world=world,
        own_rank=own_rank,
        records=_records(text, hide),
        ended=status.st_ctime if name.endswith(ENDED) else 0.0,  # when it got this name
        path=path,
        changed=status.st_mtime,
        size=status.st_size,
        text=text,
    )


def _records(text: bytes, hide: Callable[[str], str]) -> tuple[Record, ...]:
    """Return the failures in a file, without values of secrets."""
    records = []
    for line in text.split(b"\n"):
        if line.startswith(b"{"):
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                record = msgspec.json.decode(line, type=Record)
                chain = tuple(
                    replace(error, message=hide(error.message), source=hide(error.source))
                    for error in record.chain
                )
                records.append(replace(record, chain=chain))
    return tuple(records)


def _number(text: str | None) -> int | None:
    is_number = text and text.isascii() and text.isdecimal() and len(text) < 20
    return int(text) if text and is_number else None


def _is_of(process: Process, job_id: int) -> bool:
    # A job that joins an elastic job has its own number; the name of their rendezvous begins with
    # the number of the other.
    rendezvous = process.env.get("TORCHELASTIC_RUN_ID", "").partition("-")[0]
    numbers = (process.env.get("SLURM_ARRAY_JOB_ID"), process.env.get("SLURM_JOB_ID"), rendezvous)
    return str(job_id) in numbers


def _attempt_of(process: Process) -> int:
    return (_number(process.env.get("SLURM_RESTART_COUNT")) or 0) + 1
