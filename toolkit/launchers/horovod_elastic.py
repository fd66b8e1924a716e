"""horovod-elastic: Horovod's elastic driver, with an agent on each node that Slurm started in the place of ssh.

A rank that dies, or a node that is lost, costs its node's ranks; training goes on with the others
from the last commit of the script's state. The node is tried again after a while
(``HOROVOD_ELASTIC_COOLDOWN=10,120``: seconds at first, doubled each time, and at most). Slurm takes
a node that is down out of the job for good, and gives a job no new ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from toolkit.errors import LauncherMismatchError, ToolkitError
from toolkit.launchers import Request, built
from toolkit.launchers.common import batch_lines, failed, python_command
from toolkit.launchers.horovod_gloo import environment
from toolkit.model.plan import Launch
from toolkit.model.run import Failure

_FAILED = re.compile(
    r"elastic: failed: rank (?P<rank>\d+) on (?P<host>\S+): (?:exit code (?P<code>\d+)|killed by signal (?P<signal>\d+))"
)


def check(request: Request) -> Sequence[ToolkitError]:
    """Horovod with Gloo must be in the image, and the script must be one that can go on: it calls ``hvd.elastic.run``."""
    findings: list[ToolkitError] = list(built.check(request, "horovod-elastic", "gloo"))
    if request.source.imports_any("horovod") and not request.source.calls_any("elastic.run"):
        findings.append(
            LauncherMismatchError(
                "the script uses Horovod and never its elastic.run: it could not go on after a change",
                place="--launcher",
                next_step="--launcher horovod-gloo, or see jobs/digits-horovod-elastic/train.py",
            )
        )
    return findings


def launch(request: Request) -> Launch:
    """One agent on each node, with the CPUs of all its ranks; the job goes on without a node that fails."""
    least, most = request.job.node_range
    resets = request.job.max_restarts
    ranks = (str(nodes * request.ranks_per_node) for nodes in (least, most))
    return Launch(
        launcher="horovod-elastic",
        reason=request.reason,
        ntasks_per_node=1,
        cpus_per_task=request.cpus_per_rank * request.ranks_per_node,
        environment={
            **environment(request),
            "HOROVOD_ELASTIC": "1",
            "HOROVOD_ELASTIC_COOLDOWN": "10,120",
        },
        program=(*python_command(request), *request.arguments),
        task_is_rank=False,
        labels_lines=True,
        options=(*ranks, "" if resets is None else str(resets)),
        directives=(("no-kill", ""),),
    )


def failures(logs: Iterable[tuple[str, Sequence[str]]]) -> list[Failure]:
    """Return the failure that the driver could not mend; those that it survived do not count."""
    matches = (match for line in batch_lines(logs) if (match := _FAILED.search(line)))
    return [_failure(match) for match in matches][:1]


def _failure(match: re.Match[str]) -> Failure:
    code = int(match["code"]) if match["code"] else 128 + int(match["signal"])
    return failed(code, int(match["rank"]), match["host"])
