"""Parse the stacks that Python's faulthandler writes: what each process is doing. Pure.

A process writes the stacks of all of its threads when it gets SIGURG: the module in
``scripts/report`` has asked for that. The text is another program's, and may be cut off anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from toolkit.model.run import Report
from toolkit.runs.error_records import FRAME, PACKAGED

_THREAD = re.compile(
    r"(?:Current thread|Thread) (?P<ident>0x[0-9a-f]{1,16})(?: \[[^\]]{0,100}\])?"
    r" \(most recent call first\):"
)
_MOST_LINES = 20_000
_ENDED = "ended"
_HOOKS = ("/report/sitecustomize.py", "/report/stacks.py")  # around functions of others
_WORLD = re.compile(r"^world=(\d{1,9})$", re.MULTILINE)

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
_LOADER = "/torch/utils/data/dataloader.py"
_WORKER = "/torch/utils/data/_utils/worker.py"
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


class Process(NamedTuple):
    """The beginning of a process's file: whose it is.

    Attributes:
        report: what identifies the process, as a record of a failure has it.
        parent: process id of its parent.
        main: id of its main thread.
    """

    report: Report
    parent: int
    main: str


class Position(NamedTuple):
    """The activity of a process, and its place.

    Attributes:
        kind: ``collective``, ``loader``, ``gpu`` or ``code``.
        name: of the function: ``all_reduce``; empty if it is not known.
        frame: the user's frame nearest to it; None if no frame is the user's.
    """

    kind: str
    name: str
    frame: Frame | None

    def text(self, *, plural: bool = False) -> str:
        """Return it after a subject: ``waits in all_reduce (train.py:31)``."""
        place = f" ({self.frame.place})" if self.frame else ""
        waits, is_in = ("wait", "are") if plural else ("waits", "is")
        if self.kind == "collective":
            return f"{waits} in {self.name}{place}"
        if self.kind == "loader":
            return f"{waits} for {'their' if plural else 'its'} data loader{place}"
        if self.kind == "gpu":
            return f"{waits} for {'their' if plural else 'its'} GPU in {self.name}{place}"
        if self.name:
            return f"{is_in} in {self.name}{place}"
        return f"{is_in} at {self.frame.place}" if self.frame else f"{is_in} in no Python code"


def read_process(text: str) -> Process | None:
    """Parse the beginning of a process's file; None if it is incomplete or not one."""
    head, ends, _ = text.partition("\n\n")
    facts = dict(line.partition("=")[::2] for line in head.split("\n")[:200])
    pid, index = _number(facts.get("pid")), _number(facts.get("index"))
    if not ends or pid is None or "main" not in facts:
        return None
    report = Report(
        kind="stack",
        time_ns=_number(facts.get("time")) or 0,
        host=facts.get("host", ""),
        pid=pid,
        errors=(),
        env={name[4:]: value for name, value in facts.items() if name.startswith("env.")},
        program=_program(facts.get("program", "")),
        process=facts.get("process", ""),
        index=index,
    )
    return Process(report, _number(facts.get("parent")) or 0, facts["main"])


def _number(text: str | None) -> int | None:
    is_number = text and text.isascii() and text.isdecimal() and len(text) < 20
    return int(text) if text and is_number else None


def _program(word: str) -> str:
    """Return a program as records of failures have it; ``-m torch.distributed.run`` is a file."""
    is_module = "/" not in word and not word.endswith(".py") and "." in word
    return f"/{word.replace('.', '/')}.py" if is_module else word


def has_ended(text: str) -> bool:
    """Return whether a process noted its end."""
    return text.endswith(f"{_ENDED}\n")


def world_of(text: str) -> int:
    """Return the size of the largest world that a process noted; 0 if it noted none."""
    return max(map(int, _WORLD.findall(text)), default=0)


Stacks = Mapping[str, tuple[Frame, ...]]  # id of a thread -> its frames, the innermost first


def parse(text: str, main: str) -> list[Stacks]:
    """Return what a process wrote at each signal; the last may be cut off.

    Args:
        text: what follows the beginning of its file.
        main: id of the main thread, which comes last.
    """
    dumps: list[dict[str, list[Frame]]] = []
    frames: list[Frame] | None = None
    last = main
    for line in text.split("\n", _MOST_LINES)[:_MOST_LINES]:
        if thread := _THREAD.match(line):
            if not dumps or last == main or thread["ident"] in dumps[-1]:
                dumps.append({})
            last, frames = thread["ident"], []
            dumps[-1][last] = frames
        elif frames is None or not (frame := FRAME.match(line)):
            continue
        elif not frame["file"].endswith(_HOOKS):
            frames.append(Frame(frame["file"], int(frame["line"]), frame["function"] or ""))
    return [{ident: tuple(rows) for ident, rows in dump.items()} for dump in dumps]


def is_own(frame: Frame) -> bool:
    """Return whether a frame is in the user's code."""
    return not (PACKAGED.search(frame.file) or frame.file.startswith("<"))


def position(frames: Sequence[Frame], code: Callable[[Frame], str]) -> Position:
    """Return what a thread is doing.

    Args:
        frames: of the thread, the innermost first.
        code: returns the line of a frame's file, or an empty string.
    """
    number = next((at for at, frame in enumerate(frames) if is_own(frame)), len(frames))
    inner, own = frames[:number], frames[number] if number < len(frames) else None
    for frame in reversed(inner):
        for part, names in _COLLECTIVES.items():
            if part in frame.file and frame.function in names:
                return Position("collective", frame.function, own or frame)
    if any(frame.file.endswith(_LOADER) for frame in inner):
        return Position("loader", "", own)
    if any(_GPU.search(frame.file) and frame.function == "synchronize" for frame in inner):
        return Position("gpu", "synchronize", own)
    if not inner and own is not None:
        called = _NATIVE.search(code(own)[:1000])
        if called:
            return Position("collective", called["name"], own)
        return Position("code", "" if own.function == "<module>" else own.function, own)
    if not inner:
        return Position("code", "", None)
    public = (frame for frame in reversed(inner) if not frame.function.startswith(("_", "<")))
    shown = next(public, inner[-1])
    name = f"{PurePath(shown.file).stem}.{shown.function}"
    return Position("code", name, own or shown)


def is_idle_worker(frames: Sequence[Frame]) -> bool:
    """Return whether a thread is a data loader's worker that waits for something to do."""
    number = next((at for at, frame in enumerate(frames) if frame.file.endswith(_WORKER)), None)
    return number is not None and not any(is_own(frame) for frame in frames[:number])


def numbers_text(numbers: Iterable[int], *, most: int = 8) -> str:
    """Format the numbers of ranks: ``0, 1, 3``, or of many ``0-6, 8-63``."""
    ordered = sorted(set(numbers))
    if len(ordered) <= most:
        return ", ".join(map(str, ordered))
    ranges: list[list[int]] = []
    for number in ordered:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    shown = [f"{low}-{high}" if high > low else str(low) for low, high in ranges[:20]]
    return ", ".join([*shown, *(["..."] if len(ranges) > 20 else [])])
