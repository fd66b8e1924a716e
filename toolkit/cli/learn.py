"""`toolkit docs` and `toolkit jobs`: the pages and the exercises that came with the tool."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from toolkit import exercises, pages
from toolkit.cli import console
from toolkit.cli.shared import completion, json_option
from toolkit.quoting import shell


@completion
def _exercises() -> Iterable[str]:
    return [exercise.name for exercise in exercises.exercises()]


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
        click.echo_via_pager(pages.wrapped(text, min(console.columns(), 100)))
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
    listed = exercises.exercises()
    rows = [(exercise.name, exercise.image or "-", exercise.summary) for exercise in listed]
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
