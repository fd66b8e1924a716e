"""ray: a program on each node starts Ray there, and the first node runs the script, once.

Ray's own ``ray symmetric-run`` is not used. It refuses to start where another Ray is on the node,
and at its end kills by name, maybe another job's; it ends with 0 where Ray did not start; and its
other nodes stay for a minute after the script has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from toolkit.errors import ToolkitError
from toolkit.launchers.shared.base import Launcher, Recognition, sockets
from toolkit.model.case import Case
from toolkit.model.plan import Launch


class Ray(Launcher):
    """A cluster of Ray on the job's nodes."""

    summary = (
        "Ray on all nodes, and the script once, on the first; "
        "for remote functions, actors, Train and Tune"
    )
    needs = frozenset(("command", "nodes"))
    framework = "ray"
    is_per_node = True
    takes_node = True
    task_noun = "task"
    starters = ("ray", "ray_node.py")

    def recognize(self, case: Case) -> Recognition | None:
        """Claim scripts that import ray."""
        return Recognition(30, "imports ray") if case.source.imports_any("ray") else None

    def check(self, case: Case) -> Sequence[ToolkitError]:
        """Require Ray in the image."""
        return self.require("ray", case)

    def launch(self, case: Case) -> Launch:
        """Start one task on each node, whose Ray has all CPUs and GPUs that the task is given.

        The script decides how many workers there are. The first node's task ends with the script's
        exit code; the others end because Ray ended.
        """
        decided, interface = super().launch(case), case.interface or ""
        return replace(
            decided,
            environment={
                # Only this job gives work to its Ray; versions that do not know of tokens have no
                # such lock.
                "RAY_AUTH_MODE": "token",
                # Usage statistics stay with the job.
                "RAY_USAGE_STATS_ENABLED": "0",
                # Ray announces a change of its own there, in every task.
                "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
                # Ray starts workers at a niceness of 15: on shared nodes, they would get what all
                # other jobs leave of the CPUs (ray_config_def.h, worker_niceness).
                "RAY_worker_niceness": "0",
                # Logs are files, not terminals.
                "RAY_COLOR_PREFIX": "0",
                **sockets(case, "GLOO", "NCCL"),
            },
            options=(str(decided.cpus_per_task), str(case.job.most_gpus), interface),
        )


LAUNCHER = Ray()
