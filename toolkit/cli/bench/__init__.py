"""`toolkit bench`: measure on the user's cluster."""

from __future__ import annotations

import click

from toolkit.cli.lazy import LazyGroup

SECTION = "Check and measure"


@click.group("bench", cls=LazyGroup, package=__name__)
def command() -> None:
    """Measure all-reduce, and compare trainings, on this cluster.

    \b
    Examples:
      toolkit bench allreduce --nodes 2
      toolkit bench compare jobs/digits-ddp jobs/digits-horovod
    """
