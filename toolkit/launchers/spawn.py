"""spawn: Slurm starts the script once on each node, and the script forks its ranks (``mp.spawn``, ``--multiprocessing-distributed``).

The arguments that such scripts want are filled in where they define them. RANK and WORLD_SIZE count
nodes, as PyTorch's ImageNet example has it; NPROC_PER_NODE says how many ranks to fork. Others read
NODE_RANK, NNODES, MASTER_ADDR, MASTER_PORT or INIT_METHOD.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Sequence

from toolkit.errors import ToolkitError
from toolkit.launchers import Request
from toolkit.launchers.arguments import MEETING, Known, backend, command
from toolkit.launchers.common import batch_lines, failed, failures_of_step, interface, needs
from toolkit.model.plan import Launch
from toolkit.model.run import Failure

_ENDED = re.compile(
    r"process (?P<rank>\d+) terminated with (?:exit code (?P<code>\d+)|signal (?P<signal>SIG\w+))"
)
_NODES = Known(("nodes", "nnodes", "num-nodes", "num-machines"), '"$NNODES"')
_NODE_RANK = Known(("rank", "node-rank", "machine-rank", "nr"), '"$NODE_RANK"')
_RANKS = Known(
    ("nprocs", "nproc-per-node", "num-gpus", "gpus-per-node", "ngpus-per-node"), '"$NPROC_PER_NODE"'
)
_SWITCH = Known(("multiprocessing-distributed",), None)


def check(request: Request) -> Sequence[ToolkitError]:
    """torch must be in the image."""
    return needs("torch", "spawn", request)


def launch(request: Request) -> Launch:
    """One task per node, with the CPUs of all its ranks."""
    return Launch(
        launcher="spawn",
        reason=request.reason,
        ntasks_per_node=1,
        cpus_per_task=request.cpus_per_rank * request.ranks_per_node,
        environment={"OMP_NUM_THREADS": str(request.cpus_per_rank), **interface(request)},
        program=command(
            request,
            (_SWITCH, *MEETING, *_world(request), _NODES, _NODE_RANK, _RANKS, *backend(request)),
        ),
        task_is_rank=False,
        init="tcp",
    )


def _world(request: Request) -> tuple[Known, ...]:
    """Scripts that are told which node they are on multiply the world by their ranks; the others know one node only."""
    if request.source.option(*_NODE_RANK.names) or request.source.option(*_SWITCH.names):
        return (Known(("world-size",), '"$NNODES"'),)
    return (Known(("world-size",), '"$NPROC_PER_NODE"'),) if request.nodes == 1 else ()


def failures(logs: Iterable[tuple[str, Sequence[str]]]) -> list[Failure]:
    """Return the ranks that a node's script says failed, those that it stopped last; where none says so, what srun said of the script."""
    known = list(logs)
    found = [failure for host, lines in known if host for failure in _ends(host, lines)]
    return sorted(
        found, key=lambda failure: failure.exit_code == 128 + signal.SIGTERM
    ) or failures_of_step(batch_lines(known), task="script")


def _ends(host: str, lines: Sequence[str]) -> Iterator[Failure]:
    for line in lines:
        match = _ENDED.search(line)
        if match:
            code = (
                int(match["code"])
                if match["code"]
                else 128 + getattr(signal.Signals, match["signal"], signal.SIGKILL).value
            )
            failure = failed(code, None, host)
            yield Failure(
                exit_code=code,
                host=host,
                text=failure.text.replace("rank ?", f"local rank {match['rank']}"),
            )
