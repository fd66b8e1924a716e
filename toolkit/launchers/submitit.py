"""submitit: each task calls a Python function that ``toolkit.submit`` stored with the run.

The function and its results are files of ``<run>/submitit``, which submitit names. Slurm's signal
goes to the batch shell, which tells the tasks; the first of them saves what the function's
``checkpoint()`` returns and leaves a file for the batch shell, which queues the job again: Slurm's
own commands are not in the image.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from toolkit.errors import ToolkitError, UsageError
from toolkit.launchers.shared.base import Launcher, sockets
from toolkit.model.case import Case
from toolkit.model.plan import Launch

TARGET = "toolkit.submit"  # in place of a script's name
SIGNAL = "USR2"  # what submitit listens to
FOLDER = "submitit"  # of the run's directory: functions and results
AGAIN = "again"  # a file in it: the first task wants the job to be queued again
_SECONDS = 90  # before the time limit, as submitit itself has it
_WANTED = re.compile(rf"B:(SIG)?{SIGNAL}(@\d+)?\Z")

# What a task runs: submitit's own beginning, but for the one call that needs Slurm's commands. The
# signal comes twice, from Slurm and from the process that keeps the image mounted and passes on
# signals; the second would save into the middle of the first.
_TASK = f"""\
import pathlib, signal, sys
from submitit.core.job_environment import SignalHandler
from submitit.core.submission import submitit_main
from submitit.slurm.slurm import SlurmJobEnvironment
save = SignalHandler.checkpoint_and_try_requeue
def save_once(self, signum, frame=None):
    signal.signal(signum, signal.SIG_IGN)
    save(self, signum, frame)
SignalHandler.checkpoint_and_try_requeue = save_once
SlurmJobEnvironment._requeue = lambda self, countdown: pathlib.Path(sys.argv[1], "{AGAIN}").touch()
submitit_main()
"""


class Submitit(Launcher):
    """Tasks of Slurm that call a Python function."""

    summary = "Slurm starts a Python function that toolkit.submit carries to it, once in each task"
    needs = frozenset(("command", "nodes"))
    is_internal = True
    takes_node = True
    takes_programs = True
    starts_python = True
    task_noun = "task"

    def check(self, case: Case) -> Sequence[ToolkitError]:
        """Require submitit in the image, and a function: scripts are other launchers' work."""
        findings: list[ToolkitError] = []
        if not (case.target.is_program and case.target.script == TARGET):
            findings.append(
                UsageError(
                    "the launcher submitit calls functions, not scripts",
                    place="--launcher",
                    next_step="from Python: toolkit.submit(function, ...); "
                    "for a script another launcher, or none named",
                )
            )
        if case.job.signal is not None and not _WANTED.match(case.job.signal):
            findings.append(
                UsageError(
                    f"functions are signaled by {SIGNAL} to the batch shell, "
                    f"not by {case.job.signal}",
                    place="signal",
                    next_step=f"signal='B:{SIGNAL}@SECONDS', or leave it out",
                )
            )
        return [*findings, *self.require("submitit", case)]

    def launch(self, case: Case) -> Launch:
        """Start as many tasks on each node as were asked for."""
        signal = () if case.job.signal else (("signal", f"B:{SIGNAL}@{_SECONDS}"),)
        decided = super().launch(case)
        return replace(
            decided,
            environment={
                **decided.environment,
                "SUBMITIT_EXECUTOR": "slurm",
                **sockets(case, "GLOO", "NCCL"),
            },
            program=("python3", "-u", "-c", _TASK, f"{case.run}/{FOLDER}"),
            directives=(*signal, ("requeue", "")),
        )


LAUNCHER = Submitit()
