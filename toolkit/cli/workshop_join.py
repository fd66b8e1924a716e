"""`toolkit workshop join` and `reset`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli import console
from toolkit.cli.shared import json_option
from toolkit.cli.workshop_folder import FOLDER, key_option, verifier_of
from toolkit.errors import PreflightError, UsageError
from toolkit.quoting import shell
from toolkit.shell import interrupted_by_signals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from toolkit.checks import Result


@click.command("join")
@click.argument("source", metavar="FILE|URL|DIRECTORY")
@click.argument("directory", required=False, type=FOLDER)
@click.option(
    "--share-results/--no-share-results",
    "share",
    default=None,
    help="Leave states and accuracies of your runs for the instructor; asked if not given.",
)
@key_option
@json_option
def join(
    source: str, directory: Path | None, share: bool | None, key: Path | None, as_json: bool
) -> None:
    """Copy the exercises of a workshop, and check that they can run here.

    What is in the folders of exercises already is not touched. The exit code is 92 if a check is
    FAIL.

    \b
    Examples:
      toolkit workshop join /scratch/workshops/first-steps
      toolkit workshop join https://example.org/course/ --share-results
      toolkit workshop join first-steps.tar ~/course --key instructor.pem
    """
    from toolkit.checks import to_json
    from toolkit.workshops.checks import examine
    from toolkit.workshops.join import join as join_workshop

    with interrupted_by_signals(), console.Steps() as steps:
        member = join_workshop(
            source, directory, share=share, verify=verifier_of(key), progress=steps
        )
        is_open = share is None and not member.joined.results
        if is_open and member.contents.workshop.results and console.on_terminal():
            share = click.confirm(
                "Leave the state and accuracy of your runs (nothing else) for the instructor?",
                err=True,
            )
            if share:
                again = join_workshop(
                    member.joined.source,
                    member.directory,
                    share=True,
                    verify=verifier_of(key),
                    progress=steps,
                )
                member = again._replace(unchanged=member.unchanged)
    results = list(_shown(examine(member), quiet=as_json))
    if as_json:
        console.out_json(
            {
                "directory": str(member.directory),
                "workshop": member.contents.name,
                "unchanged": member.unchanged,
                "findings": [to_json(result) for result in results],
            }
        )
    failures = [result.name for result in results if result.outcome == "failed"]
    if failures:
        raise PreflightError(
            f"{len(failures)} of {len(results)} checks failed", place=", ".join(failures)
        )
    if not as_json:
        if member.unchanged:
            console.fact("kept", f"as they are: {', '.join(member.unchanged)}")
        if member.unused is not None:
            console.fact("unused", f"{member.unused}, which you can remove")
        first = member.joined.exercises[0]
        console.out(
            console.subject("next", f"cd {shell(str(member.directory))}; toolkit run {first}")
        )


def _shown(results: Iterable[Result], *, quiet: bool) -> Iterator[Result]:
    """Print each result as soon as it is known."""
    from toolkit.checks import row

    for result in results:
        if not quiet:
            for line in row(result, 11):
                console.out(line)
        yield result


@click.command("reset")
@click.argument("name")
@click.argument("folder", metavar="[WORKSHOP]", default=".", type=FOLDER)
def reset(name: str, folder: Path) -> None:
    """Start an exercise, or the results of a participant, again.

    In a joined directory the exercise is copied again, and your folder is kept under another name.
    In the workshop's own folder the results of a participant are removed, which they can leave
    again.

    \b
    Examples:
      toolkit workshop reset 01-ddp
      toolkit workshop reset minji first-steps
    """
    from toolkit.cli.workshop_lead import results_of
    from toolkit.files import read_json
    from toolkit.workshops import join as joining
    from toolkit.workshops.model import JOINED, WORKSHOP, Joined
    from toolkit.workshops.results import remove_one

    if not (folder / JOINED).is_file():
        if not (folder / WORKSHOP).is_file():
            raise UsageError(
                f"{folder.resolve()} is neither a joined workshop nor a workshop's folder",
                place="WORKSHOP",
                next_step="cd to the directory that you joined in, then reset again",
            )
        remove_one(results_of(folder), name)
        console.fact("removed", f"the results of {name}")
        return
    aside = joining.reset(folder, read_json(folder / JOINED, Joined, searched=True), name)
    console.fact("reset", str(folder / name))
    if aside is not None:
        console.fact("kept", f"yours is {aside}")
