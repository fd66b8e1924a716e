"""`toolkit jobs`: the exercises that came with the tool."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import click

from toolkit.cli import console
from toolkit.cli.lazy import Group
from toolkit.cli.shared import completion, json_option


@click.group("jobs", cls=Group)
def command() -> None:
    """List and copy the exercises that come with the toolkit.

    \b
    Examples:
      toolkit jobs list
      toolkit jobs copy digits-ddp
      toolkit run jobs/digits-ddp             as it is, without a copy
    """


@completion
def _exercises() -> Iterable[str]:
    from toolkit.exercises import exercises

    return [exercise.name for exercise in exercises()]


@command.command("list")
@json_option
def listing(as_json: bool) -> None:
    """List the exercises.

    \b
    Example:
      toolkit jobs list
    """
    from toolkit.exercises import exercises

    listed = exercises()
    rows = [(exercise.name, exercise.image or "-", exercise.summary) for exercise in listed]
    text = partial(console.table, ("NAME", "IMAGE", "SHOWS"), rows)
    console.result(listed, text, as_json=as_json)


@command.command("copy")
@click.argument("name", shell_complete=_exercises)
@click.argument("directory", required=False, type=click.Path(path_type=Path))
def copy(name: str, directory: Path | None) -> None:
    """Copy the exercise NAME to DIRECTORY (default: one of its name, here).

    \b
    Examples:
      toolkit jobs copy digits-ddp
      toolkit jobs copy digits-ddp ~/first
    """
    from toolkit import exercises
    from toolkit.quoting import shell

    target = directory or Path(Path(name).name)
    exercises.copy(name, target)
    console.fact("copied", str(target))
    word = str(target) if "/" in str(target) else f"./{target}"
    console.fact("next", f"toolkit run {shell(word)}")
