"""shell: a program at the user's own terminal, on the first node of the job.

The other nodes wait for what the user starts there.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.errors import ToolkitError, UsageError
from toolkit.launchers.shared.base import Launcher
from toolkit.model.case import Case


class Shell(Launcher):
    """One task for the job's share of each node; only that of the first node is started."""

    summary = "a program at your terminal, on the first node: what toolkit shell starts"
    needs = frozenset(("nodes", "terminal"))
    is_internal = True
    is_per_node = True
    takes_node = True
    takes_programs = True
    writes_reports = False
    task_noun = "task"

    def check(self, case: Case) -> Sequence[ToolkitError]:
        """Require a terminal."""
        if case.job.interactive and case.job.pty:
            return ()
        return (
            UsageError(
                "the launcher shell is for a terminal",
                place="--launcher",
                next_step="toolkit shell",
            ),
        )


LAUNCHER = Shell()
