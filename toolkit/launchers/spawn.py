"""spawn: Slurm starts the script once on each node, and the script forks its ranks.

It serves scripts that call ``mp.spawn`` or have ``--multiprocessing-distributed``. Their arguments
are filled in where they define them. RANK and WORLD_SIZE count nodes, as PyTorch's ImageNet example
has it; NPROC_PER_NODE is the number of ranks to fork. Other scripts read NODE_RANK, NNODES,
MASTER_ADDR, MASTER_PORT or INIT_METHOD.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from toolkit.errors import ToolkitError
from toolkit.launchers.shared.arguments import MEETING, Argument, backend, command
from toolkit.launchers.shared.base import Launcher, Recognition, number_of, sockets
from toolkit.launchers.shared.step_log import batch_lines, failures_of_step, rank_failure
from toolkit.model.case import Case
from toolkit.model.plan import Launch
from toolkit.model.run import Failure

if TYPE_CHECKING:
    from toolkit.model.run import Report

_ENDED = re.compile(
    r"process (?P<rank>\d{1,9}) terminated with "
    r"(?:exit code (?P<code>\d{1,9})|signal (?P<signal>SIG\w+))"
)
# How a parent reports a process that torch.multiprocessing.spawn started.
_CHILD = re.compile(r"[Pp]rocess (?P<index>\d{1,6}) terminated")
_NODES = Argument(("nodes", "nnodes", "num-nodes", "num-machines"), '"$NNODES"')
_NODE_RANK = Argument(("rank", "node-rank", "machine-rank", "nr"), '"$NODE_RANK"')
_RANKS = Argument(
    ("nprocs", "nproc-per-node", "num-gpus", "gpus-per-node", "ngpus-per-node"), '"$NPROC_PER_NODE"'
)
_SWITCH = Argument(("multiprocessing-distributed",), None)


class Spawn(Launcher):
    """One process on each node that forks the node's ranks."""

    summary = "Slurm starts the script once on each node, and the script forks its ranks (mp.spawn)"
    framework = "torch.distributed"
    is_per_node = True

    def recognize(self, case: Case) -> Recognition | None:
        """Claim scripts that fork their ranks."""
        if case.source.calls_any("multiprocessing.spawn", "multiprocessing.start_processes"):
            return Recognition(40, "calls mp.spawn")
        if case.source.option("multiprocessing-distributed") is not None:
            return Recognition(40, "has --multiprocessing-distributed")
        meets_itself = "MASTER_ADDR=localhost" in case.source.texts
        if meets_itself and case.source.calls_any("multiprocessing.Process"):
            return Recognition(40, "starts processes that meet at localhost")
        return None

    def check(self, case: Case) -> Sequence[ToolkitError]:
        """Require torch in the image."""
        return self.require("torch", case)

    def launch(self, case: Case) -> Launch:
        """Start one task on each node, with the CPUs of all its ranks."""
        decided = super().launch(case)
        arguments = (_SWITCH, *MEETING, *_world(case), _NODES, _NODE_RANK, _RANKS)
        return replace(
            decided,
            environment={**decided.environment, **sockets(case, "GLOO", "NCCL")},
            program=command(case, (*arguments, *backend(case))),
            task_is_rank=False,
            init="tcp",
        )

    def failures(self, logs: Iterable[tuple[str, Sequence[str]]]) -> list[Failure]:
        """Return the ranks whose end a node's script reports, those that it stopped last.

        If no script reports one, return the scripts that srun reports.
        """
        by_host = list(logs)
        ends = [failure for host, lines in by_host if host for failure in _ends(host, lines)]
        return sorted(
            ends, key=lambda failure: failure.exit_code == 128 + signal.SIGTERM
        ) or failures_of_step(batch_lines(by_host), task="script")

    def rank_of(self, report: Report) -> int | None:
        """Return the rank from the node's number and the process's index on the node."""
        message = report.errors[0].message[:200] if report.errors and not report.process else ""
        child = _CHILD.search(message)
        index = int(child["index"]) if child else report.index
        node = number_of(report.env.get("NODE_RANK"))
        ranks = number_of(report.env.get("NPROC_PER_NODE"))
        return None if index is None or node is None or ranks is None else index + node * ranks


def _world(case: Case) -> tuple[Argument, ...]:
    """Return the argument for the size of the world.

    Scripts that are given their node's number multiply the world by their ranks; the others run on
    one node only.
    """
    if case.source.option(*_NODE_RANK.names) or case.source.option(*_SWITCH.names):
        return (Argument(("world-size",), '"$NNODES"'),)
    return (Argument(("world-size",), '"$NPROC_PER_NODE"'),) if case.nodes == 1 else ()


def _ends(host: str, lines: Sequence[str]) -> Iterator[Failure]:
    for line in lines:
        match = _ENDED.search(line)
        if match:
            by_signal = getattr(signal.Signals, match["signal"] or "", signal.SIGKILL)
            code = int(match["code"]) if match["code"] else 128 + by_signal.value
            text = rank_failure(code, None, host).text
            yield Failure(
                exit_code=code,
                host=host,
                text=text.replace("rank ?", f"local rank {match['rank']}"),
            )


LAUNCHER = Spawn()
