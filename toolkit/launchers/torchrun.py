"""torchrun: Slurm starts one agent on each node, the agents meet at the first node and start the ranks.

The agents' arguments that depend on the job (addresses, port) are in the template. With a range of
nodes the run is elastic, which is a template of its own: it goes on when nodes are lost, and takes
new ones in. A rank's exit code is lost on the way: torchrun itself always ends with 1, and tells
the code in its summary, which ``failures`` reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from toolkit.errors import ToolkitError
from toolkit.launchers import Request
from toolkit.launchers.common import batch_lines, failed, failures_of_step, interface, needs
from toolkit.model.plan import Launch
from toolkit.model.run import Failure

_RESTARTS = 3  # of an elastic run, where nobody says
_FIELD = re.compile(r"^\s*(time|host|rank|exitcode)\s+: (.*)$")
_NUMBER = re.compile(r"-?\d+")


def check(request: Request) -> Sequence[ToolkitError]:
    """torch must be in the image."""
    return needs("torch", "torchrun", request)


def launch(request: Request) -> Launch:
    """One task per node, with the CPUs of all its ranks."""
    least, most = request.job.node_range
    elastic, unequal = least != most, bool(request.job.gpus_by_node)
    restarts = (
        request.job.max_restarts
        if request.job.max_restarts is not None
        else (_RESTARTS if elastic else 0)
    )
    options = (
        f"--nnodes={least}:{most}" if elastic else f"--nnodes={most}",
        *(() if unequal else (f"--nproc-per-node={request.ranks_per_node}",)),
        *((f"--max-restarts={restarts}",) if restarts else ()),
        "--tee=3",
    )
    script = (
        (request.script,) if request.script.endswith(".py") else ("--no-python", request.script)
    )
    if request.job.python_module:
        script = ("-m", request.job.python_module)
    return Launch(
        launcher="torchrun",
        template="torchrun-elastic" if elastic else None,
        options=options,
        exclude=f",{request.job.exclude}" if request.job.exclude else "",
        directives=(("no-kill", ""), ("requeue", "")) if elastic else (),
        reason=request.reason,
        ntasks_per_node=1,
        cpus_per_task=None if unequal else request.cpus_per_rank * request.ranks_per_node,
        environment={
            "OMP_NUM_THREADS": str(request.cpus_per_rank),
            # An agent that ends after the first one finds its store closed and says so with a stack
            # trace, in healthy runs.
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            # Each line of a rank starts with its number, as srun --label does it: "3| epoch 1".
            "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${rank}| ",
            # Agents that start ranks again hang where these share the agents' own store.
            **({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if restarts else {}),
            **interface(request),
        },
        program=(*script, *request.arguments),
        task_is_rank=False,
        labels_lines=True,
    )


def failures(logs: Iterable[tuple[str, Sequence[str]]]) -> list[Failure]:
    """Return the ranks of the agents' summaries by the time of their end, those that their agent stopped (SIGTERM) last."""
    known = list(logs)
    found = [pair for host, lines in known if host for pair in _summaries(host, lines)]
    ordered = sorted(found, key=lambda pair: (pair[1].exit_code == 128 + 15, pair[0]))
    return [failure for _, failure in ordered] or failures_of_step(batch_lines(known), task="agent")


def _summaries(host: str, lines: Sequence[str]) -> Iterator[tuple[str, Failure]]:
    """Each entry of torchrun's summary: its fields stand on lines of their own, ``exitcode`` after ``time``, ``host`` and ``rank``."""
    fields: dict[str, str] = {}
    for line in lines:
        match = _FIELD.match(line)
        if not match:
            continue
        fields[match[1]] = match[2]
        if match[1] == "exitcode":
            code, rank = _NUMBER.search(fields["exitcode"]), _NUMBER.search(fields.get("rank", ""))
            number = int(code[0]) if code else 1
            yield (
                fields.get("time", ""),
                failed(
                    128 - number if number < 0 else number, int(rank[0]) if rank else None, host
                ),
            )
            fields = {}
