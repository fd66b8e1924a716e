"""submitit: a Python function that ``toolkit.submit`` has put into the run's directory, called once by each task; never a script.

What is called, and what comes back, lies in ``<run>/submitit`` as submitit names it. Slurm's signal
goes to the batch shell, which tells the tasks; the first of them saves what the function's
``checkpoint()`` returns and leaves a file for the batch shell, which queues the job again: Slurm's
own commands are not in the image.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from toolkit.errors import ToolkitError, UsageError
from toolkit.launchers import Request
from toolkit.launchers.common import batch_lines, failures_of_step, interface, needs
from toolkit.model.plan import Launch
from toolkit.model.run import Failure

TARGET = "toolkit.submit"  # stands where a script's name would
SIGNAL = "USR2"  # what submitit listens to
FOLDER = "submitit"  # of the run's directory: functions and results
AGAIN = "again"  # a file in it: the first task wants the job to be queued again
_SECONDS = 90  # before the time limit, as submitit itself has it
_WANTED = re.compile(rf"B:(SIG)?{SIGNAL}(@\d+)?\Z")

# What a task runs: submitit's own beginning, but for the one call that needs Slurm's commands. The
# signal comes twice, from Slurm and from the process that keeps the image mounted and passes on
# what it is told; the second would save into the middle of the first.
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


def check(request: Request) -> Sequence[ToolkitError]:
    """submitit must be in the image; scripts are other launchers' work."""
    findings: list[ToolkitError] = []
    if not (request.program and request.script == TARGET):
        findings.append(
            UsageError(
                "the launcher submitit calls functions, not scripts",
                place="--launcher",
                next_step="from Python: toolkit.submit(function, ...); for a script another launcher, or none named",
            )
        )
    if request.job.signal is not None and not _WANTED.match(request.job.signal):
        findings.append(
            UsageError(
                f"functions are told by {SIGNAL} to the batch shell, not by {request.job.signal}",
                place="signal",
                next_step=f"signal='B:{SIGNAL}@SECONDS', or leave it out",
            )
        )
    return [*findings, *needs("submitit", "submitit", request)]


def launch(request: Request) -> Launch:
    """As many tasks on each node as were asked for."""
    signal = () if request.job.signal else (("signal", f"B:{SIGNAL}@{_SECONDS}"),)
    return Launch(
        launcher="submitit",
        reason=request.reason,
        ntasks_per_node=request.ranks_per_node,
        cpus_per_task=request.cpus_per_rank,
        environment={
            "OMP_NUM_THREADS": str(request.cpus_per_rank),
            "SUBMITIT_EXECUTOR": "slurm",
            **interface(request),
        },
        program=("python3", "-u", "-c", _TASK, f"{request.run_directory}/{FOLDER}"),
        directives=(*signal, ("requeue", "")),
    )


def failures(logs: Iterable[tuple[str, Sequence[str]]]) -> list[Failure]:
    """Return the tasks that srun says failed."""
    return failures_of_step(batch_lines(logs), task="task")
