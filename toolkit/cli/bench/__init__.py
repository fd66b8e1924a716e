"""`toolkit bench`: measure, always against a named peer in the same run. One module per comparison, imported when it is used."""

from __future__ import annotations

import click

from toolkit.cli.lazy import LazyGroup

VERBS: dict[str, tuple[str, str]] = {
    "explain": ("toolkit.cli.bench.explain", "Count how many failures are explained rightly."),
    "cli": ("toolkit.cli.bench.cli", "Compare the speed of our commands with the field's."),
    "allreduce": (
        "toolkit.cli.bench.allreduce",
        "How fast the ranks of a job add up, over NCCL, Gloo, Horovod, MPI; every sum checked.",
    ),
    "launch": (
        "toolkit.cli.bench.launch",
        "From sbatch to the first all-reduce: our script and one by hand; training without a container.",
    ),
    "coverage": (
        "toolkit.cli.bench.coverage",
        "Run the command for each step of the guides, and keep how it went.",
    ),
    "compare": (
        "toolkit.cli.bench.compare",
        "Trainings side by side: samples per second, memory, accuracy.",
    ),
    "build": ("toolkit.cli.bench.build", "Build a changed image again: ours, Apptainer, BuildKit."),
}


@click.group(name="bench", cls=LazyGroup, verbs=VERBS)
def command() -> None:
    """Measure, always against a named peer in the same run.

    \b
    Examples:
      toolkit bench cli
      toolkit bench cli --only render --runs 30 --json
      toolkit bench build
      toolkit bench allreduce --nodes 2
    """
