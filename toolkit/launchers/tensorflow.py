"""tensorflow: Slurm starts the workers, and TF_CONFIG has their numbers and addresses.

There is one worker on each node by default. A worker uses all GPUs that it sees; where a node has
several workers, each sees its share of the node's. A TF_CONFIG that is already set stays. It names
workers only: parameter servers are another kind of task.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from toolkit.errors import LauncherMismatchError, ToolkitError
from toolkit.launchers.shared.base import Launcher, Recognition, sockets
from toolkit.model.case import Case
from toolkit.model.plan import Launch
from toolkit.model.source import Source

_STRATEGIES = ("MultiWorkerMirroredStrategy", "MirroredStrategy", "ParameterServerStrategy")


class TensorFlow(Launcher):
    """Tasks of Slurm as workers of tf.distribute."""

    summary = (
        "Slurm starts a worker on each node, TF_CONFIG tells it of the others; for tf.distribute"
    )
    needs = frozenset(("nodes",))
    framework = "tf.distribute"
    takes_node = True

    def recognize(self, case: Case) -> Recognition | None:
        """Claim scripts that use a strategy of tf.distribute."""
        if self.is_used_by(case.source):
            return Recognition(60, "uses a strategy of tf.distribute")
        return None

    def is_used_by(self, source: Source) -> bool:
        """Return whether a script uses a strategy of tf.distribute."""
        return source.calls_any(*_STRATEGIES)

    def check(self, case: Case) -> Sequence[ToolkitError]:
        """Require TensorFlow in the image, and a script that needs workers only."""
        findings: list[ToolkitError] = list(self.require("tensorflow", case))
        if case.source.calls_any("ParameterServerStrategy"):
            findings.append(
                LauncherMismatchError(
                    "the script uses ParameterServerStrategy, and the launcher tensorflow "
                    "starts workers only, no parameter servers",
                    place="--launcher",
                    next_step="tf.distribute.MultiWorkerMirroredStrategy needs none",
                )
            )
        return findings

    def launch(self, case: Case) -> Launch:
        """Start one task for each worker."""
        decided, threads = super().launch(case), str(case.cpus_per_rank)
        return replace(
            decided,
            environment={
                **decided.environment,
                # By default TensorFlow makes a thread for each core of the node, on every worker.
                "TF_NUM_INTRAOP_THREADS": threads,
                "TF_NUM_INTEROP_THREADS": threads,
                **sockets(case, "NCCL"),
            },
            warnings=_warnings(case),
        )


def _warnings(case: Case) -> tuple[str, ...]:
    """Warn of a strategy for one process, which ignores TF_CONFIG."""
    if (
        case.ranks == 1
        or not case.source.calls_any("MirroredStrategy")
        or case.source.calls_any("MultiWorkerMirroredStrategy")
    ):
        return ()
    return (
        "MirroredStrategy stays within one process: every worker will train a network of its own; "
        "use MultiWorkerMirroredStrategy",
    )


LAUNCHER = TensorFlow()
