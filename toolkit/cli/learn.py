"""`toolkit docs`, `jobs` and `demo`: the pages and the exercises that came with the tool."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import click

from toolkit import exercises, pages
from toolkit.cli import console
from toolkit.cli.lazy import cluster_option
from toolkit.cli.main import cli
from toolkit.cli.shared import completion, json_option
from toolkit.quoting import shell, shell_words


@completion
def _exercises() -> Iterable[str]:
    return exercises.exercises()


@click.command("docs")
@click.argument("topic", required=False, shell_complete=completion(pages.topics))
def docs(topic: str | None) -> None:
    """Print a page of the documentation, or list the pages.

    On a terminal the page opens in your pager ($PAGER). Errors name their page.

    \b
    Examples:
      toolkit docs
      toolkit docs quick-start
      toolkit docs run/pending
    """
    if topic is None:
        rows = [(name, pages.title(path)) for name, path in pages.topics().items()]
        console.out(console.table(("TOPIC", "PAGE"), rows))
        return
    text = pages.text(topic)
    if console.on_terminal():
        click.echo_via_pager(pages.wrapped(text, min(shutil.get_terminal_size().columns, 100)))
    else:
        console.document(text)


@click.command("list")
@json_option
def list_jobs(as_json: bool) -> None:
    """List the exercises.

    \b
    Example:
      toolkit jobs list
    """
    listed = [
        {"name": name, "image": job.image or "", "summary": job.summary or ""}
        for name, job in exercises.exercises().items()
    ]
    rows = [(each["name"], each["image"] or "-", each["summary"]) for each in listed]
    console.result(listed, console.table(("NAME", "IMAGE", "SHOWS"), rows), as_json=as_json)


@click.command("copy")
@click.argument("name", shell_complete=_exercises)
@click.argument("directory", required=False, type=click.Path(path_type=Path))
def copy(name: str, directory: Path | None) -> None:
    """Copy the exercise NAME to DIRECTORY (default: one of its name, here).

    \b
    Examples:
      toolkit jobs copy digits-ddp
      toolkit jobs copy digits-ddp ~/first
    """
    target = directory or Path(Path(name).name)
    exercises.copy(name, target)
    console.fact("copied", str(target))
    word = str(target) if "/" in str(target) else f"./{target}"
    console.fact("next", f"toolkit run {shell(word)}")


@click.command("demo")
@click.option(
    "--image", default="pytorch_cpu", show_default=True, help="Recipe to build and to train in."
)
@click.option("--keep", is_flag=True, help="Leave the cluster up.")
@cluster_option()
def demo(image: str, keep: bool) -> int:
    """Run everything once: image, cluster, training on two nodes.

    Build an image, start a cluster of two nodes, train on 2 nodes x 2 ranks, show the result, and
    stop the cluster. Every step is a command that you could type;
    it is printed before it runs.

    \b
    Examples:
      toolkit demo
      toolkit demo --keep     and then: TOOLKIT_CLUSTER=demo toolkit run jobs/digits-horovod
    """
    os.environ["TOOLKIT_CLUSTER"] = "demo"  # where all runs of this process go
    _type("image", "build", image)
    try:
        _type("cluster", "up", "--name", "demo", "--nodes", "2")
        code = _type("run", "--image", image, "jobs/digits-ddp")
        _type("results")
    finally:
        if not keep:
            _type("cluster", "down", "--name", "demo")
    then = "toolkit run --image pytorch_cpu --nodes 2 your-script.py"
    console.fact("next", f"toolkit cluster up, then {then}")
    return code


def _type(*words: str) -> int:
    """Show a command and run it, as if it had been typed."""
    console.note("")
    console.note("$ toolkit " + shell_words(words))
    result = cli.main(list(words), prog_name="toolkit", standalone_mode=False)
    return result if isinstance(result, int) else 0
