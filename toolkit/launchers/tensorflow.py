"""tensorflow: Slurm starts the workers, one on each node where nobody says otherwise, and TF_CONFIG tells each who it is and where all are.

A worker uses all GPUs that it sees; where a node has several workers, each sees its share of the
node's. TF_CONFIG is given only where nobody set it, and knows workers only: parameter servers are
another kind of task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toolkit.errors import LauncherMismatchError, ToolkitError
from toolkit.launchers import Request
from toolkit.launchers.common import batch_lines, failures_of_step, needs, python_command
from toolkit.model.plan import Launch
from toolkit.model.run import Failure


def check(request: Request) -> Sequence[ToolkitError]:
    """TensorFlow must be in the image, and the script must do with workers."""
    findings: list[ToolkitError] = list(needs("tensorflow", "tensorflow", request))
    if request.source.calls_any("ParameterServerStrategy"):
        findings.append(
            LauncherMismatchError(
                "the script uses ParameterServerStrategy, and the launcher tensorflow starts workers only, no parameter servers",
                place="--launcher",
                next_step="tf.distribute.MultiWorkerMirroredStrategy needs none",
            )
        )
    return findings


def launch(request: Request) -> Launch:
    """One task per worker."""
    threads, interface = str(request.cpus_per_rank), request.site.interface
    return Launch(
        launcher="tensorflow",
        reason=request.reason,
        ntasks_per_node=request.ranks_per_node,
        cpus_per_task=request.cpus_per_rank,
        environment={
            "OMP_NUM_THREADS": threads,
            # Else TensorFlow makes a thread for each core of the node, on every worker.
            "TF_NUM_INTRAOP_THREADS": threads,
            "TF_NUM_INTEROP_THREADS": threads,
            **({"NCCL_SOCKET_IFNAME": interface} if interface else {}),
        },
        program=(*python_command(request), *request.arguments),
        warnings=_warnings(request),
    )


def _warnings(request: Request) -> tuple[str, ...]:
    """A strategy for one process does not look beyond it, whatever TF_CONFIG says."""
    several = request.nodes * request.ranks_per_node > 1
    if (
        not several
        or not request.source.calls_any("MirroredStrategy")
        or request.source.calls_any("MultiWorkerMirroredStrategy")
    ):
        return ()
    return (
        "MirroredStrategy stays within one process: every worker will train a network of its own; use MultiWorkerMirroredStrategy",
    )


def failures(logs: Iterable[tuple[str, Sequence[str]]]) -> list[Failure]:
    """Return the tasks that srun says failed."""
    return failures_of_step(batch_lines(logs))
