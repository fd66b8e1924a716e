"""`toolkit bench`: measure all-reduce, trainings and their scaling on the user's cluster."""

from __future__ import annotations

import click

from toolkit.cli.lazy import LazyGroup

SECTION = "Check and measure"


@click.group("bench", cls=LazyGroup, package=__name__, sections=("Measure", "Scaling"))
def command() -> None:
    """Measure all-reduce, compare trainings, and measure how they scale.

    \b
    Examples:
      toolkit bench allreduce --nodes 2
      toolkit bench compare jobs/digits-ddp jobs/digits-horovod
      toolkit bench scale --nodes 1,2,4 jobs/digits-ddp
    """
