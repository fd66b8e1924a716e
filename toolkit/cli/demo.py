"""`toolkit demo`: the commands of the README, one after the other, on a cluster of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from toolkit.cli import console
from toolkit.cli.lazy import cluster_option
from toolkit.cli.main import cli
from toolkit.planning.settings import chosen
from toolkit.quoting import shell_words
from toolkit.runs.directories import find

CLUSTER = "demo"
_UP = ("cluster", "up", "--name", CLUSTER, "--nodes", "2")
_DOWN = ("cluster", "down", "--name", CLUSTER)


@click.command("demo")
@click.option(
    "--image", default="pytorch_cpu", show_default=True, help="Recipe to build and to train in."
)
@click.option("--keep", is_flag=True, help="Leave the cluster up.")
@cluster_option()
def command(image: str, keep: bool) -> int:
    """Run everything once: image, cluster, training on two nodes.

    Build an image, start a cluster of two nodes, train on 2 nodes x 2 ranks, show the result, and
    stop the cluster. Every step is a command that you could type;
    it is printed before it runs.

    \b
    Examples:
      toolkit demo
      toolkit demo --keep     and then: TOOLKIT_CLUSTER=demo toolkit run jobs/digits-horovod
    """
    os.environ["TOOLKIT_CLUSTER"] = (
        CLUSTER  # the runs of this process go there, whatever else is up
    )
    _type(("image", "build", image))
    try:
        _type(_UP)
        code = _type(("run", "--image", image, "jobs/digits-ddp"))
    finally:
        if not keep:
            _type(_DOWN)
    _summary()
    return code


def _type(arguments: Sequence[str]) -> int:
    """Show a command and run it, as if it had been typed."""
    console.note("")
    console.note("$ toolkit " + shell_words(arguments))
    result = cli.main(list(arguments), prog_name="toolkit", standalone_mode=False)
    return result if isinstance(result, int) else 0


def _summary() -> None:
    run = find(None, Path(chosen(Path.cwd()).runs or "runs"))
    outcome = run.outcome
    if outcome is None:
        return
    console.out("")
    console.fact(
        "accuracy", f"{outcome.results.get('accuracy', 'not reported')} on the test images"
    )
    for host, ranks in outcome.ranks.items():
        console.fact("ranks", f"{','.join(map(str, ranks))} on {host}")
    console.fact("run", os.path.relpath(run.directory))
    console.fact(
        "next", "toolkit cluster up, then toolkit run --image pytorch_cpu --nodes 2 your-script.py"
    )
