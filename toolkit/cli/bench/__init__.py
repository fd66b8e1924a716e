"""`toolkit bench`: measure all-reduce, trainings and their scaling on the user's cluster."""

from __future__ import annotations

import click

from toolkit.cli.lazy import Commands, LazyGroup

COMMANDS: Commands = {
    "Measure": {
        "allreduce": ("measure:allreduce", "Measure all-reduce over NCCL, Gloo, Horovod or MPI."),
        "compare": ("measure:compare", "Compare trainings: samples per second, memory, accuracy."),
    },
    "Scaling": {
        "history": ("history:history", "Show scaling studies over time."),
        "scale": ("scale:scale", "Measure how a training scales over nodes."),
    },
}


@click.group("bench", cls=LazyGroup, package=__name__, commands=COMMANDS)
def command() -> None:
    """Measure all-reduce, compare trainings, and measure how they scale.

    \b
    Examples:
      toolkit bench allreduce --nodes 2
      toolkit bench compare jobs/digits-ddp jobs/digits-horovod
      toolkit bench scale --nodes 1,2,4 jobs/digits-ddp
    """
