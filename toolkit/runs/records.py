"""Read the files that the processes of a job have written, and say which ranks ended or met.

The module in ``scripts/report`` writes them in each process of Python. A process may have been
killed while it wrote, and its file may be another user's.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby

import msgspec
from msgspec.structs import replace

from toolkit import launchers
from toolkit.files import open_regular
from toolkit.launchers.failures import rank_of, reader
from toolkit.model.plan import Plan
from toolkit.model.run import Process, Record
from toolkit.runs import logs
from toolkit.runs.blame import is_starter
from toolkit.runs.run import Run
from toolkit.units import whole

RUNNING, ENDED = ".process", ".ended"  # suffixes
_HEAD, _TAIL = 8 << 10, 256 << 10  # bytes of a file that are read
_MOST = 256 << 20  # of all files
_SEPARATE = ("none", "ray", "submitit")
_MOST_PARTS = 12  # of a sentence
_LONG_AGO = 60.0  # seconds; a rank that saves what was trained may take as long
# Verbs of sentences and their plurals, in the order of the parts: who waits for others comes early.
_PLURALS = {"ended": "ended", "waits": "wait", "is": "are", "has": "have", "does": "do"}
_WORLD = re.compile(rb"^world=(\d{1,9}) rank=(\d{1,9})$", re.MULTILINE)


def _names(run: Run) -> list[str]:
    """Return the names of the files of processes; none if their folder cannot be read."""
    with suppress(OSError):
        return [name for name in run.names(run.reports) if name.endswith((RUNNING, ENDED))]
    return []


def read(run: Run) -> list[Process]:
    """Return the processes of a run's job, the earliest first."""
    launcher, hide = launchers.get(run.plan.launch.launcher), logs.secret_filter(run)
    processes, left = list[Process](), _MOST
    for name in _names(run):
        with suppress(OSError):
            process = _read(run, name, min(_TAIL, left), hide)
            left -= len(process.text) if process else 0
            env = process.env if process else {}
            # A job that joins an elastic job has its own number; the name of their rendezvous
            # begins with the number of the other.
            numbers = {env.get("SLURM_ARRAY_JOB_ID"), env.get("SLURM_JOB_ID")}
            numbers.add(env.get("TORCHELASTIC_RUN_ID", "").partition("-")[0])
            if process and str(run.job_id) in numbers:
                is_agent = is_starter(process.program)
                rank = None if is_agent else rank_of(launcher, process)
                own = process.own_rank if rank is None else rank
                processes.append(process._replace(rank=own))
    return sorted(processes, key=lambda process: process.time_ns)


def by_element(processes: Iterable[Process]) -> dict[int | None, list[Process]]:
    """Group the processes of a job array by the numbers of its elements; without one by None."""
    groups = defaultdict[int | None, list[Process]](list)
    for process in processes:
        groups[whole(process.env.get("SLURM_ARRAY_TASK_ID"))].append(process)
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
    return reader(launchers.get(plan.launch.launcher)).of_last_start(started, ())


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
    pid = whole(facts.get("pid"))
    if status.st_uid != run.directory.stat().st_uid or not ends or pid is None:
        return None
    worlds = [(int(size), int(rank)) for size, rank in _WORLD.findall(text)]
    world, own_rank = max(worlds, default=(0, None))
    return Process(
        host=facts.get("host", ""),
        pid=pid,
        parent=whole(facts.get("parent")) or 0,
        main=facts.get("main", ""),
        program=facts.get("program", ""),
        name=facts.get("process", ""),
        local_rank=whole(facts.get("index")),
        is_rank=facts.get("is_rank") == "1",
        env={key[4:]: value for key, value in facts.items() if key.startswith("env.")},
        time_ns=whole(facts.get("time")) or 0,
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


def _attempt_of(process: Process) -> int:
    return (whole(process.env.get("SLURM_RESTART_COUNT")) or 0) + 1


# Sentences about ranks.


def ended_text(run: Run) -> str:
    """Return which ranks of a running job ended long ago, and which are left; empty if none did.

    Ranks of a job array, and of a job whose number of nodes may change, end one by one.
    """
    plan = run.plan
    names = [] if plan.array or plan.least_nodes else _names(run)
    if not all(any(name.endswith(end) for name in names) for end in (RUNNING, ENDED)):
        return ""
    ended = dict[int, float]()  # the last end of each rank; infinite for one that has not
    for process in latest(read(run), plan):
        if process.rank is not None and process.is_rank:
            when = process.ended or math.inf
            ended[process.rank] = max(ended.get(process.rank, 0.0), when)
    passed = {rank: time.time() - when for rank, when in ended.items() if when < math.inf}
    if not passed or len(passed) == len(ended) or max(passed.values()) < _LONG_AGO:
        return ""
    minutes = max(0.0, min(passed.values())) / 60
    ago = f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"
    texts = {rank: f"ended {ago} ago" if rank in passed else "is still running" for rank in ended}
    return sentence(((str(rank), text) for rank, text in texts.items()), plan)


def apart_text(processes: Iterable[Process], plan: Plan) -> str:
    """Return how ranks trained that did not all meet; empty if they did, or were not meant to.

    Tasks of the launcher none, and elements of an array, are on purpose.
    """
    by_rank = {
        process.path.stem if process.rank is None else process.rank: process.world
        for process in processes
        if process.world
    }
    count, sizes = len(by_rank), Counter(by_rank.values())
    is_one = not (plan.array or plan.least_nodes) and plan.launch.launcher not in _SEPARATE
    largest = max(sizes, default=0)
    if not is_one or largest >= count:
        return ""
    if len(sizes) > 1:
        shown = (f"{sizes[size]} in worlds of {size}" for size in sorted(sizes, reverse=True))
        how = f"apart: {', '.join(shown)}"
    elif largest == 1:
        how = "alone: world size 1 each"
    else:
        how = f"in {-(-count // largest)} groups of {largest}, which never met"
    return f"{count} ranks trained {how}"


def sentence(rows: Iterable[tuple[str, str]], plan: Plan) -> str:
    """Return what is true of whom, equal texts together: ``ranks 0, 1 wait ...; rank 2 is ...``.

    Args:
        rows: labels of ranks or other processes, and texts that begin with a verb.
        plan: of the run.
    """
    groups: dict[str, list[str]] = {}
    for label, text in rows:
        groups.setdefault(text, []).append(label)

    words = list(_PLURALS)
    parts = []
    for text in sorted(groups, key=lambda text: (words.index(text.split()[0]), -len(groups[text]))):
        verb, _, rest = text.partition(" ")
        if len(groups[text]) > 1:
            verb, rest = _PLURALS[verb], rest.replace("for its ", "for their ", 1)
        parts.append(f"{subject(groups[text], plan)} {verb} {rest}")
    more = [f"and {len(parts) - _MOST_PARTS} other places"] if len(parts) > _MOST_PARTS else []
    return "; ".join([*parts[:_MOST_PARTS], *more])


def subject(labels: Sequence[str], plan: Plan) -> str:
    """Return who is meant: ``ranks 0, 1, 3``, or ``processes 7 on nid001``."""
    if all(label.isdecimal() for label in labels):
        shown = numbers_text(map(int, labels))
    else:
        shown = ", ".join([*labels[:8], *(["..."] if len(labels) > 8 else [])])
    noun = "process" if " on " in shown else launchers.get(plan.launch.launcher).task_noun
    plural = "" if len(labels) == 1 else "es" if noun.endswith("s") else "s"
    return f"{noun}{plural} {shown}"


def numbers_text(numbers: Iterable[int]) -> str:
    """Format the numbers of ranks: ``0, 1, 3``, ``0-6, 8-63``."""
    shown = list[str]()
    for _, pairs in groupby(enumerate(sorted(set(numbers))), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in pairs]
        shown.append(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)))
    return ", ".join([*shown[:20], *(["..."] if len(shown) > 20 else [])])
