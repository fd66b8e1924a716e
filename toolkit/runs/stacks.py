"""Ask processes for their stacks, as Python's faulthandler writes them, and say where ranks stand.

A process writes the stacks of all of its threads when it gets SIGURG: the module in
``scripts/report`` has asked for that. The text is another program's, and may be cut off anywhere.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from toolkit import runtimes
from toolkit.errors import ToolkitError
from toolkit.files import open_regular
from toolkit.model.run import JobState, Plan, Process
from toolkit.quoting import shell
from toolkit.runs import records
from toolkit.runs.records import FRAME, PACKAGED, is_starter
from toolkit.runs.run import Run
from toolkit.slurm.hostlist import expand

_THREAD = re.compile(
    r"(?:Current thread|Thread) (?P<ident>0x[0-9a-f]{1,16})(?: \[[^\]]{0,100}\])?"
    r" \(most recent call first\):"
)
_MOST_LINES = 20_000
_HOOK = "/report/sitecustomize.py"  # around functions of others

# Functions of communication libraries that return when other ranks have called them, too.
_TORCH = (
    "all_gather all_gather_coalesced all_gather_into_tensor all_gather_object all_reduce "
    "all_reduce_coalesced all_to_all all_to_all_single barrier batch_isend_irecv broadcast "
    "broadcast_object_list destroy_process_group gather gather_object init_process_group irecv "
    "isend monitored_barrier new_group next_rendezvous recv recv_object_list reduce reduce_scatter "
    "reduce_scatter_tensor scatter scatter_object_list send send_object_list split_group "
    "wait_tensor"
)
_HOROVOD = (
    "allgather allgather_object allreduce alltoall barrier broadcast broadcast_global_variables "
    "broadcast_object broadcast_optimizer_state broadcast_parameters broadcast_variables "
    "grouped_allgather grouped_allreduce grouped_reducescatter init join reducescatter shutdown "
    "synchronize"
)
_COLLECTIVES: Mapping[str, frozenset[str]] = {
    "/torch/distributed/": frozenset(_TORCH.split()),
    "/horovod/": frozenset(_HOROVOD.split()),
    "/tensorflow/python/distribute/": frozenset(["batch_reduce", "gather", "reduce", "run"]),
    "/ray/_private/worker.py": frozenset(("get", "wait")),
    "/ray/util/collective/": frozenset(
        ["allgather", "allreduce", "barrier", "broadcast", "recv", "send"]
    ),
}
# mpi4py and handles of torch are native code, which has no frames: the line that calls them tells.
_NATIVE = re.compile(
    r"\.(?P<name>(?:i?n?)?(?:allgatherv?|allreduce|alltoallv?|barrier|bcast|exscan|gatherv?|mrecv"
    r"|probe|recv|reduce(?:_scatter)?|scan|scatterv?|send|sendrecv|ssend|wait|waitall|waitany"
    r"|fence|spawn|accept|connect|disconnect))\(",
    re.IGNORECASE,
)
_MOST_SOURCE = 1 << 20
_LOOK_SECONDS = 0.2  # between two looks, and more for thousands of files
_PATIENCE = 15.0
_SLOW_SECONDS = 3.0  # then the nodes write what their caches hold back
_LOADER = "/torch/utils/data/dataloader.py"
_GPU = re.compile(r"/torch/cuda/(?:__init__|streams)\.py$")


class Frame(NamedTuple):
    """A frame of a stack."""

    file: str
    line: int
    function: str

    @property
    def place(self) -> str:
        """The place as messages show it: ``train.py:31``."""
        return f"{PurePath(self.file).name}:{self.line}"


Stacks = Mapping[str, tuple[Frame, ...]]  # id of a thread -> its frames, the innermost first
Sizes = Mapping[str, int]  # of files, by their names without a suffix


def parse(text: str, main: str) -> list[Stacks]:
    """Return what a process wrote at each signal; the last may be cut off.

    Args:
        text: what follows the beginning of its file.
        main: id of the main thread, which comes last.
    """
    dumps: list[dict[str, list[Frame]]] = []
    last = main
    for line in text.split("\n", _MOST_LINES)[:_MOST_LINES]:
        thread, frame = _THREAD.match(line), FRAME.match(line)
        if thread:
            if not dumps or last == main or thread["ident"] in dumps[-1]:
                dumps.append({})
            last = thread["ident"]
            dumps[-1][last] = []
        elif frame and dumps and not frame["file"].endswith(_HOOK):
            row = Frame(frame["file"], int(frame["line"]), frame["function"] or "")
            dumps[-1][last].append(row)
    return [{ident: tuple(rows) for ident, rows in dump.items()} for dump in dumps]


def position(frames: Sequence[Frame], code: Callable[[Frame], str]) -> str:
    """Return the activity of a thread after a subject: ``waits in all_reduce (train.py:31)``.

    The place is the user's frame nearest to it.

    Args:
        frames: of the thread, the innermost first.
        code: returns the line of a frame's file, or an empty string.
    """
    files = (frame.file for frame in frames)
    own_ones = (not (PACKAGED.search(file) or file.startswith("<")) for file in files)
    number = next((at for at, is_own in enumerate(own_ones) if is_own), len(frames))
    inner, own = frames[:number], frames[number] if number < len(frames) else None
    place = f" ({own.place})" if own else ""
    for frame in reversed(inner):
        for part, names in _COLLECTIVES.items():
            if part in frame.file and frame.function in names:
                return f"waits in {frame.function}{place or f' ({frame.place})'}"
    if any(frame.file.endswith(_LOADER) for frame in inner):
        return f"waits for its data loader{place}"
    if any(_GPU.search(frame.file) and frame.function == "synchronize" for frame in inner):
        return f"waits for its GPU in synchronize{place}"
    if inner:
        public = (frame for frame in reversed(inner) if not frame.function.startswith(("_", "<")))
        shown = next(public, inner[-1])
        name = f"{PurePath(shown.file).stem}.{shown.function}"
        return f"is in {name}{place or f' ({shown.place})'}"
    if own is None:
        return "is in no Python code"
    if called := _NATIVE.search(code(own)[:1000]):
        return f"waits in {called['name']}{place}"
    return f"is at {own.place}" if own.function == "<module>" else f"is in {own.function}{place}"


class Standing(NamedTuple):
    """The activity of one process.

    Attributes:
        process: whose it is.
        label: ``3``, in an array ``2.3``; of a process that is no rank ``1234 on nid001``.
        position: its own.
        stacks: of its threads; empty if it has not answered.
        before: its position when it was asked before; empty if it was not asked.
        moved: its stack was another one then.
    """

    process: Process
    label: str
    position: str
    stacks: Stacks = {}
    before: str = ""
    moved: bool = False


def can_answer(plan: Plan) -> bool:
    """Return whether a run's ranks write their stacks: Python that Slurm's signals reach.

    The processes of a container of Docker or podman are not in the job's steps.
    """
    return plan.reports and runtimes.get(plan.container.runtime).image != "docker"


def ask(run: Run, state: JobState) -> tuple[Sequence[Process], Sizes]:
    """Have all processes of a running job write their stacks.

    A process that is gone, or does not know the signal, writes nothing; it is not waited for long.

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
        if (now == sizes and running and not is_silent) or passed > _PATIENCE:
            return processes, asked
        sizes = now
        if passed > _SLOW_SECONDS and not is_synced:
            is_synced = True
            with suppress(ToolkitError):  # a node's page cache of NFS is written after 30 seconds
                nodes = len(expand(state.nodes))
                run.client.on_nodes(state.job_id, nodes, f"sync -f {shell(run.reports)}")
        time.sleep(_LOOK_SECONDS + len(processes) * _LOOK_SECONDS / 1000)


def standing(process: Process, plan: Plan, asked: Sizes) -> Standing:
    """Return what a process is doing.

    Args:
        process: of the run.
        plan: of the run.
        asked: sizes of the files when processes were asked: what follows is the answer.
    """
    element = process.env.get("SLURM_ARRAY_TASK_ID", "0") + "." if plan.array else ""
    is_rank = process.rank is not None
    label = f"{element}{process.rank}" if is_rank else f"{process.pid} on {process.host}"
    earlier = asked.get(process.path.stem, 0) - process.size
    size = max(0, earlier + len(process.text))  # of the answers before
    past, answer = (
        parse(part.decode("utf-8", "replace"), process.main)
        for part in (process.text[:size], process.text[size:])
    )
    if not answer:
        silence = "does not answer: gone or stopped"
        return Standing(process, label, "has ended" if process.ended else silence)
    mains = [stacks.get(process.main, ()) for stacks in (*past, *answer)][-2:]
    places = [position(main, lambda frame: source_of(plan, frame)) for main in mains]
    before = places[0] if len(mains) > 1 else ""
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
        not stand.position.startswith("waits in "),
        stand.position.startswith("is in subprocess."),
        stand.process.pid,
    )


def summary(ranks: Sequence[Standing], plan: Plan) -> str:
    """Return where all ranks are as one sentence, those who wait for others first."""
    rows = [(stand.label, stand.position) for stand in ranks]
    text = "has written no file: no Python has started"
    return records.sentence(
        [*rows, *((str(rank), text) for rank in without_file(ranks, plan))], plan
    )


def moved_text(ranks: Sequence[Standing], plan: Plan) -> str:
    """Return what has moved since the ranks were asked before; empty if they were not."""
    rows = [
        (
            stand.label,
            f"has moved (before: {stand.before})" if stand.moved else "has not moved",
        )
        for stand in ranks
        if stand.before
    ]
    return records.sentence(rows, plan)


def without_file(ranks: Sequence[Standing], plan: Plan) -> list[int]:
    """Return the ranks that should be there and have no file; empty if their number is open."""
    known = {stand.process.rank for stand in ranks}
    if None in known or not known or plan.array or plan.least_nodes or plan.gpus_by_node:
        return []
    return sorted(set(range(plan.nodes * plan.ranks_per_node)) - known)


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
        name = stand.label if key == "ranks" else name
        for ident, frames in stand.stacks.items():
            is_main = ident == process.main
            row = {"ranks": [], "others": [], "frames": frames, "is_main": is_main}
            names = rows.setdefault((is_main, frames), row)[key]
            if names[-1:] != [name]:  # of threads that are alike one is enough
                names.append(name)
    return sorted(rows.values(), key=lambda row: (not row["ranks"], not row["is_main"]))


def source_of(plan: Plan, frame: Frame) -> str:
    """Return the line of a frame from a file in the run's working directory, or an empty string."""
    path, lines = Path(os.path.normpath(frame.file)), [b""]
    if path.is_relative_to(plan.directory):
        with suppress(OSError), open_regular(path, below=path.parent) as file:
            lines += file.read(_MOST_SOURCE).split(b"\n")
    return b"".join(lines[frame.line : frame.line + 1]).decode("utf-8", "replace").strip()[:200]
