"""horovod-gloo: Slurm starts every rank, and Gloo carries their messages.

One small server gives the ranks each other's addresses. No MPI, no ssh, no horovodrun. The server
is Horovod's own; it runs in the image on the first node and ends with the batch script.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from toolkit.errors import ToolkitError
from toolkit.launchers.shared import horovod_build
from toolkit.launchers.shared.base import Launcher
from toolkit.model.case import Case
from toolkit.model.plan import Launch


class HorovodGloo(Launcher):
    """Tasks of Slurm as ranks of Horovod over Gloo."""

    summary = (
        "Slurm starts every rank, one server tells them of each other; for Horovod without MPI"
    )
    framework = "horovod"

    def check(self, case: Case) -> Sequence[ToolkitError]:
        """Require Horovod with Gloo in the image."""
        return horovod_build.check(self, case, "gloo")

    def launch(self, case: Case) -> Launch:
        """Start one task for each rank."""
        decided = super().launch(case)
        return replace(
            decided,
            environment={
                **decided.environment,
                **horovod_build.gloo(case),
                # Horovod waits half a minute for ranks that come late, less than a cold start from
                # a busy file system may take. The user can set another time.
                "HOROVOD_GLOO_TIMEOUT_SECONDS": "300",
            },
        )


LAUNCHER = HorovodGloo()
