"""none: the command as it is: one process, a job array, or any program of the image."""

from __future__ import annotations

from toolkit.launchers.shared.base import Launcher, Recognition
from toolkit.model.case import Case


class NoLauncher(Launcher):
    """The command as it is, as many tasks on each node as were asked for."""

    summary = "the command as it is: one process, a job array, any program of the image"
    takes_node = True
    takes_programs = True
    task_noun = "task"

    def recognize(self, case: Case) -> Recognition | None:
        """Claim programs that are not Python, and scripts that nothing spreads over ranks."""
        if not (case.source.python or case.target.name.endswith(".py")):
            return Recognition(0, "is no Python script")
        least, most = case.job.node_range
        if case.source.calls_any("DataParallel") and least == most:
            return Recognition(80, "uses DataParallel, in one process")
        if case.manifest is not None and "torch" not in case.manifest.frameworks:
            reason = f"imports nothing that spreads it, and the {case.noun} holds no torch"
            return Recognition(900, reason)
        if (least, case.ranks) == (1, 1):
            return Recognition(910, "imports nothing that spreads it, and one rank was asked for")
        return None


LAUNCHER = NoLauncher()
