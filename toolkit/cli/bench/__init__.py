"""`toolkit bench`: measure on the user's cluster."""

from __future__ import annotations

import click

from toolkit.cli.lazy import LazyGroup

VERBS: dict[str, tuple[str, str]] = {
    "allreduce": (
        "toolkit.cli.bench.allreduce",
        "Measure all-reduce over NCCL, Gloo, Horovod or MPI; check every sum.",
    ),
    "compare": (
        "toolkit.cli.bench.compare",
        "Compare trainings: samples per second, memory, accuracy.",
    ),
}


@click.group(name="bench", cls=LazyGroup, verbs=VERBS)
def command() -> None:
    """Measure all-reduce and trainings on this cluster.

    \b
    Examples:
      toolkit bench allreduce --nodes 2
      toolkit bench compare jobs/digits-ddp jobs/digits-horovod
    """
