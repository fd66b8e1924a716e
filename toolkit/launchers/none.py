"""none: the command as it is: one process, a job array, or any program of the image."""

from __future__ import annotations

from toolkit.launchers.shared.base import Launcher, Recognition, Script


class NoLauncher(Launcher):
    """The command as it is, as many tasks on each node as were asked for."""

    summary = "the command as it is: one process, a job array, any program of the image"
    takes_node = True
    takes_programs = True
    task_noun = "task"

    def recognize(self, script: Script) -> Recognition | None:
        """Claim programs that are not Python, and scripts that nothing spreads over ranks."""
        if not (script.source.python or script.name.endswith(".py")):
            return Recognition(0, "is no Python script")
        least, most = script.job.node_range
        if script.source.calls_any("DataParallel") and least == most:
            return Recognition(80, "uses DataParallel, in one process")
        if script.frameworks is not None and "torch" not in script.frameworks:
            reason = f"imports nothing that spreads it, and the {script.noun} holds no torch"
            return Recognition(900, reason)
        ranks = script.job.ntasks_per_node or script.job.most_gpus or 1
        if (least, most, ranks) == (1, 1, 1):
            return Recognition(910, "imports nothing that spreads it, and one rank was asked for")
        return None


LAUNCHER = NoLauncher()
