"""Report where the ranks of a job stand: what they do, which have ended, which have met."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from toolkit import launchers, runtimes
from toolkit.errors import ToolkitError
from toolkit.files import open_regular
from toolkit.model.plan import Plan
from toolkit.model.run import JobState, Process
from toolkit.quoting import shell
from toolkit.runs import records
from toolkit.runs.blame import is_starter
from toolkit.runs.run import Run
from toolkit.runs.stacks import Frame, Position, Stacks, parse, position
from toolkit.slurm.hostlist import expand

_SEPARATE = ("none", "ray", "submitit")
_MOST_PARTS = 12  # of a sentence
_LONG_AGO = 60.0  # seconds; a rank that saves what was trained may take as long
_MOST_SOURCE = 1 << 20
_LOOK_SECONDS = 0.2  # between two looks, and more for thousands of files
_SLOW_SECONDS = 3.0  # then the nodes write what their caches hold back
# Verbs of sentences and their plurals, in the order of the parts: who waits for others comes early.
_PLURALS = {"ended": "ended", "waits": "wait", "is": "are", "has": "have", "does": "do"}

Sizes = Mapping[str, int]  # of files, by their names without a suffix


class Standing(NamedTuple):
    """The activity of one process.

    Attributes:
        process: whose it is.
        label: ``3``, in an array ``2.3``; of a process that is no rank ``1234 on nid001``.
        position: its own.
        stacks: of its threads; empty if it has not answered.
        before: its position when it was asked before; None if it was not asked.
        moved: its stack was another one then.
    """

    process: Process
    label: str
    position: Position
    stacks: Stacks = {}
    before: Position | None = None
    moved: bool = False


def can_answer(plan: Plan) -> bool:
    """Return whether a run's ranks write their stacks: Python that Slurm's signals reach.

    The processes of a container of Docker or podman are not in the job's steps.
    """
    return plan.reports and runtimes.get(plan.container.runtime).image != "docker"


def ask(run: Run, state: JobState, limit: float) -> tuple[Sequence[Process], Sizes]:
    """Have all processes of a running job write their stacks.

    A process that is gone, or does not know the signal, writes nothing; after ``limit`` seconds it
    is not waited for any more.

    Returns:
        The processes when they have written, and the sizes of their files before.
    """
    before = records.read(run)
    asked = {process.path.stem: process.size for process in before}
    began = time.monotonic()
    run.client.signal(state.job_id, "URG")
    sizes: Sizes = {}
    is_synced = False
    while True:
        processes = records.latest(records.read(run), run.plan)
        now = {process.path.stem: process.size for process in processes}
        running = [process for process in processes if not process.ended]
        is_silent = any(process.size == asked.get(process.path.stem, 0) for process in running)
        passed = time.monotonic() - began
        if (now == sizes and running and not is_silent) or passed > limit:
            return processes, asked
        sizes = now
        if passed > _SLOW_SECONDS and not is_synced:
            is_synced = True
            with suppress(ToolkitError):  # a node's page cache of NFS is written after 30 seconds
                nodes = len(expand(state.nodes))
                run.client.on_nodes(state.job_id, nodes, f"sync -f {shell(run.reports)}")
        time.sleep(_LOOK_SECONDS + len(processes) * _LOOK_SECONDS / 1000)


def standings(processes: Iterable[Process], plan: Plan, asked: Sizes) -> list[Standing]:
    """Return what each process is doing.

    Args:
        processes: of the run.
        plan: of the run.
        asked: sizes of their files when they were asked: what follows is the answer.
    """
    return [_standing(process, plan, asked.get(process.path.stem, 0)) for process in processes]


def _standing(process: Process, plan: Plan, asked: int) -> Standing:
    element = process.env.get("SLURM_ARRAY_TASK_ID", "0") + "." if plan.array else ""
    is_rank = process.rank is not None
    label = f"{element}{process.rank}" if is_rank else f"{process.pid} on {process.host}"
    size = max(0, asked - process.size + len(process.text))  # of the answers before
    past, answer = (
        parse(part.decode("utf-8", "replace"), process.main)
        for part in (process.text[:size], process.text[size:])
    )
    if not answer:
        return Standing(process, label, Position("ended" if process.ended else "silent"))
    mains = [stacks.get(process.main, ()) for stacks in (*past, *answer)][-2:]
    places = [position(main, lambda frame: source_of(plan, frame)) for main in mains]
    before = places[0] if len(mains) > 1 else None
    return Standing(process, label, places[-1], answer[-1], before, mains[0] != mains[-1])


def written(stands: Iterable[Standing]) -> float:
    """Return when processes answered, in seconds since the epoch; 0: none did.

    The file of one that has failed since was changed once more.
    """
    answered = [stand.process for stand in stands if stand.stacks]
    times = [process.changed for process in answered if not process.records]
    return max(times or (process.changed for process in answered), default=0.0)


def ranks_of(stands: Sequence[Standing]) -> list[Standing]:
    """Return where each rank is, in order; without ranks where the other processes are.

    Of a rank the process counts that others wait for: no helper of it, no wrapper around it.
    """
    by_rank: dict[str, list[Standing]] = {}
    for stand in stands:
        if stand.process.rank is not None:
            by_rank.setdefault(stand.label, []).append(stand)
    if by_rank:
        chosen = [min(several, key=_order) for several in by_rank.values()]
        return sorted(chosen, key=lambda stand: [int(word) for word in stand.label.split(".")])
    answered = [stand for stand in stands if stand.stacks]
    others = [stand for stand in answered if not is_starter(stand.process.program)]
    return others or answered  # such as agents that wait for each other


def _order(stand: Standing) -> tuple[bool, bool, bool, bool, int]:
    return (
        not stand.stacks,
        bool(stand.process.name) and stand.process.local_rank is None,
        stand.position.kind != "collective",
        stand.position.name.startswith("subprocess."),
        stand.process.pid,
    )


def summary(ranks: Sequence[Standing], plan: Plan) -> str:
    """Return where all ranks are as one sentence, those who wait for others first."""
    rows = [(stand.label, stand.position.text) for stand in ranks]
    text = "has written no file: no Python has started"
    return sentence([*rows, *((str(rank), text) for rank in without_file(ranks, plan))], plan)


def moved_text(ranks: Sequence[Standing], plan: Plan) -> str:
    """Return what has moved since the ranks were asked before; empty if they were not."""
    rows = [
        (
            stand.label,
            f"has moved (before: {stand.before.text})" if stand.moved else "has not moved",
        )
        for stand in ranks
        if stand.before
    ]
    return sentence(rows, plan)


def without_file(ranks: Sequence[Standing], plan: Plan) -> list[int]:
    """Return the ranks that should be there and have no file; empty if their number is open."""
    known = {stand.process.rank for stand in ranks}
    if None in known or not known or plan.array or plan.least_nodes or plan.gpus_by_node:
        return []
    return sorted(set(range(plan.nodes * plan.ranks_per_node)) - known)


def sentence(rows: Iterable[tuple[str, str]], plan: Plan) -> str:
    """Return what is true of whom, equal texts together: ``ranks 0, 1 wait ...; rank 2 is ...``.

    Args:
        rows: labels of ranks or other processes, and texts that begin with a verb.
        plan: of the run.
    """
    groups: dict[str, list[str]] = {}
    for label, text in rows:
        groups.setdefault(text, []).append(label)

    def order(text: str) -> tuple[int, int]:
        return list(_PLURALS).index(text.partition(" ")[0]), -len(groups[text])

    parts = []
    for text in sorted(groups, key=order):
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
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    shown = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join([*shown[:20], *(["..."] if len(shown) > 20 else [])])


def equal_stacks(stands: Iterable[Standing], ranks: Sequence[Standing]) -> list[dict[str, Any]]:
    """Return the stacks of all threads, equal ones together; those of ranks' main threads first.

    Each row has the labels of ``ranks``, names of ``others``, ``frames``, and ``is_main``.
    """
    rows: dict[tuple[bool, tuple[Frame, ...]], dict[str, Any]] = {}
    chosen = {id(stand): stand for stand in ranks if stand.process.rank is not None}
    others = (stand for stand in stands if id(stand) not in chosen)
    for stand in (*chosen.values(), *others):
        process, key = stand.process, "ranks" if id(stand) in chosen else "others"
        name = f"process {process.pid} on {process.host} ({process.name or process.program})"
        for ident, frames in stand.stacks.items():
            is_main = ident == process.main
            row = {"ranks": [], "others": [], "frames": frames, "is_main": is_main}
            names = rows.setdefault((is_main, frames), row)[key]
            names.append(stand.label if key == "ranks" else name)
    return sorted(rows.values(), key=lambda row: (not row["ranks"], not row["is_main"]))


def source_of(plan: Plan, frame: Frame) -> str:
    """Return the line of a frame from a file in the run's working directory, or an empty string."""
    path, lines = Path(os.path.normpath(frame.file)), [b""]
    if path.is_relative_to(plan.directory):
        with suppress(OSError), open_regular(path, below=path.parent) as file:
            lines += file.read(_MOST_SOURCE).split(b"\n")
    return b"".join(lines[frame.line : frame.line + 1]).decode("utf-8", "replace").strip()[:200]


# Who has ended, and who met whom.


def ended_text(run: Run) -> str:
    """Return which ranks of a running job ended long ago, and which are left; empty if none did.

    Ranks of a job array, and of a job whose number of nodes may change, end one by one.
    """
    plan = run.plan
    if plan.array or plan.least_nodes or not records.have_some_ended(run):
        return ""
    by_rank: dict[int, list[float]] = {}
    for process in records.latest(records.read(run), plan):
        if process.rank is not None and process.is_rank:
            by_rank.setdefault(process.rank, []).append(process.ended)
    ended = {rank: max(times) for rank, times in by_rank.items() if all(times)}
    left = [(str(rank), "is still running") for rank in by_rank if rank not in ended]
    if not left or not ended or time.time() - min(ended.values()) < _LONG_AGO:
        return ""
    minutes = max(0.0, time.time() - max(ended.values())) / 60
    ago = f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"
    return sentence([*((str(rank), f"ended {ago} ago") for rank in ended), *left], plan)


def apart_text(processes: Iterable[Process], plan: Plan) -> str:
    """Return how ranks trained that did not all meet; empty if they did, or were not meant to.

    Tasks of the launcher none, and elements of an array, are on purpose.
    """
    by_rank = {
        process.path.stem if process.rank is None else process.rank: process.world
        for process in processes
        if process.world
    }
    worlds = list(by_rank.values())
    sizes = sorted(set(worlds), reverse=True)
    is_one = not (plan.array or plan.least_nodes) and plan.launch.launcher not in _SEPARATE
    if not is_one or not sizes or sizes[0] >= len(worlds):
        return ""
    if sizes == [1]:
        how = "alone: world size 1 each"
    elif len(sizes) > 1:
        shown = (f"{worlds.count(size)} in worlds of {size}" for size in sizes)
        how = f"apart: {', '.join(shown)}"
    else:
        how = f"in {-(-len(worlds) // sizes[0])} groups of {sizes[0]}, which never met"
    return f"{len(worlds)} ranks trained {how}"
