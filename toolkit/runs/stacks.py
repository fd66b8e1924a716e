"""Parse the stacks that Python's faulthandler writes, and name what a process is doing. Pure.

A process writes the stacks of all of its threads when it gets SIGURG: the module in
``scripts/report`` has asked for that. The text is another program's, and may be cut off anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from toolkit.runs.blame import FRAME, PACKAGED

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


class Position(NamedTuple):
    """The activity of a process, and its place.

    Attributes:
        kind: ``collective``, ``loader``, ``gpu`` or ``code``; ``silent`` if it has not answered,
            ``ended`` if it has noted its end.
        name: of the function: ``all_reduce``; empty if it is not known.
        frame: the user's frame nearest to it; None if no frame is the user's.
    """

    kind: str
    name: str = ""
    frame: Frame | None = None

    @property
    def text(self) -> str:
        """The activity after a subject: ``waits in all_reduce (train.py:31)``."""
        place = f" ({self.frame.place})" if self.frame else ""
        at = f"is at {self.frame.place}" if self.frame else "is in no Python code"
        return {
            "collective": f"waits in {self.name}{place}",
            "loader": f"waits for its data loader{place}",
            "gpu": f"waits for its GPU in {self.name}{place}",
            "code": f"is in {self.name}{place}" if self.name else at,
            "ended": "has ended",
            "silent": "does not answer: gone or stopped",
        }[self.kind]


Stacks = Mapping[str, tuple[Frame, ...]]  # id of a thread -> its frames, the innermost first


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


def _is_own(frame: Frame) -> bool:
    return not (PACKAGED.search(frame.file) or frame.file.startswith("<"))


def position(frames: Sequence[Frame], code: Callable[[Frame], str]) -> Position:
    """Return what a thread is doing.

    Args:
        frames: of the thread, the innermost first.
        code: returns the line of a frame's file, or an empty string.
    """
    number = next((at for at, frame in enumerate(frames) if _is_own(frame)), len(frames))
    inner, own = frames[:number], frames[number] if number < len(frames) else None
    for frame in reversed(inner):
        for part, names in _COLLECTIVES.items():
            if part in frame.file and frame.function in names:
                return Position("collective", frame.function, own or frame)
    if any(frame.file.endswith(_LOADER) for frame in inner):
        return Position("loader", frame=own)
    if any(_GPU.search(frame.file) and frame.function == "synchronize" for frame in inner):
        return Position("gpu", "synchronize", own)
    if inner:
        public = (frame for frame in reversed(inner) if not frame.function.startswith(("_", "<")))
        shown = next(public, inner[-1])
        name = f"{PurePath(shown.file).stem}.{shown.function}"
        return Position("code", name, own or shown)
    called = _NATIVE.search(code(own)[:1000]) if own else None
    if called:
        return Position("collective", called["name"], own)
    return Position("code", own.function.replace("<module>", "") if own else "", own)
