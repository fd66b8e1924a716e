"""`toolkit workshop rehearse`, `open`, `status`, `reset`, `close`: before, during and after it."""

from __future__ import annotations

from pathlib import Path

import click

from toolkit.cli import console
from toolkit.cli.shared import INTERRUPTED, json_option
from toolkit.cli.workshop_folder import FOLDER, folder_argument
from toolkit.errors import PreflightError, UsageError
from toolkit.files import read_json, write_atomically
from toolkit.quoting import shell
from toolkit.units import counted
from toolkit.workshops.join import reset as reset_exercise
from toolkit.workshops.model import JOINED, WORKSHOP, Done, Joined
from toolkit.workshops.reading import load
from toolkit.workshops.rehearsal import rehearse as acts
from toolkit.workshops.rehearsal import report as reports
from toolkit.workshops.results import (
    close_directory,
    open_directory,
    read_all,
    remove_one,
    remove_unpacked,
)


@click.command("open")
@folder_argument
def open_(folder: Path) -> None:
    """Create the shared directory of results that workshop.toml names.

    Participants can put their own file into it, and cannot list or read it.

    \b
    Example:
      toolkit workshop open first-steps
    """
    directory = results_of(folder)
    open_directory(directory)
    console.fact("open", str(directory))
    console.fact("next", f"toolkit workshop status {shell(str(folder))}")


def results_of(folder: Path) -> Path:
    """Return the directory of results that a workshop names."""
    workshop = load(folder)
    if not workshop.results:
        raise UsageError(
            "the workshop names no directory of results",
            place="workshop.toml, key results",
            next_step='results = "/scratch/workshops/NAME", a directory that all nodes see',
        )
    return Path(workshop.results)


@click.command("status")
@folder_argument
@json_option
def status(folder: Path, as_json: bool) -> None:
    """Show who has done which exercise, by the shared results.

    \b
    Example:
      toolkit workshop status first-steps
    """
    directory = results_of(folder)
    results, unread = read_all(directory, folder.resolve().name)
    if as_json:
        left_out = [entry._asdict() for entry in unread]
        console.out_json({"participants": results, "not_counted": left_out})
        return
    names = [exercise.name for exercise in load(folder).exercises]
    rows = [(each.name, *(_cell(each.exercises.get(name)) for name in names)) for each in results]
    console.out(console.table(("PARTICIPANT", *names), rows))
    for name in names:
        states = [each.exercises[name].state for each in results if name in each.exercises]
        console.say(name, f"{states.count('ok')} of {len(results)} have done it")
    for entry in unread:
        console.say("not counted", f"{entry.name}: {entry.why}")


def _cell(done: Done | None) -> str:
    if done is None:
        return "-"
    accuracy = "" if done.accuracy is None else f" {done.accuracy:.3f}"
    tries = f" ({done.tries} tries)" if done.tries > 1 else ""
    return f"{done.state}{accuracy}{tries}"


@click.command("close")
@folder_argument
@click.option("--unpacked", type=FOLDER, metavar="DIR", help="Also remove this unpacked workshop.")
def close(folder: Path, unpacked: Path | None) -> None:
    """End a workshop: remove the shared directory of results.

    \b
    Examples:
      toolkit workshop status --json first-steps > results.json
      toolkit workshop close first-steps --unpacked /scratch/workshops/first-steps
    """
    results = load(folder).results
    if results and Path(results).exists():
        count = close_directory(Path(results))
        console.fact("closed", f"{results}: {counted(count, 'file')}")
    else:
        console.fact("closed", f"{results or 'a directory of results'}: there is none")
    if unpacked is not None:
        remove_unpacked(unpacked, folder.resolve().name)
        console.fact("removed", str(unpacked))


@click.command("reset")
@click.argument("name")
@folder_argument
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
    aside = reset_exercise(folder, read_json(folder / JOINED, Joined, searched=True), name)
    console.fact("reset", str(folder / name))
    if aside is not None:
        console.fact("kept", f"yours is {aside}")


@click.command("rehearse")
@folder_argument
@click.option("--people", type=click.IntRange(1, 99), help="Default: people of workshop.toml.")
@click.option(
    "--nodes",
    type=click.IntRange(1, 200),
    default=2,
    show_default=True,
    help="Nodes of each partition of the local cluster.",
)
@click.option("--only", multiple=True, metavar="EXERCISE", help="Run only this one; repeatable.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=60,
    show_default=True,
    metavar="MINUTES",
    help="End a participant's command after this time.",
)
@click.option("--html", type=FOLDER, metavar="FILE", help="Also write the report as a page.")
@click.option("--clean", is_flag=True, help="Only remove what a killed rehearsal has left here.")
@json_option
def rehearse(
    folder: Path,
    people: int | None,
    nodes: int,
    only: tuple[str, ...],
    limit: int,
    html: Path | None,
    clean: bool,
    as_json: bool,
) -> int:
    """Let many participants run all exercises at once, and report.

    On a local cluster like the workshop's site, each participant is a real user with an own home;
    users and cluster are removed afterwards, also after Ctrl-C. This takes root. The exit code is
    92 if anything failed. Ctrl-C ends it early: the report has what was done by then.

    \b
    Examples:
      toolkit workshop rehearse first-steps --people 6
      toolkit workshop rehearse first-steps --people 40 --only 01-ddp --html report.html
      toolkit workshop rehearse --clean
    """
    if clean:
        with console.Steps() as steps:
            removed = acts.clean_up(steps)
        for place in removed:
            console.fact("removed", str(place))
        if not removed:
            console.fact("clean", "no rehearsal that was killed has left anything here")
        return 0
    count = people or load(folder).people
    options = acts.Options(count, nodes, limit * 60.0, only)
    with console.Steps() as steps:
        report = acts.rehearse(folder, options, steps)
    if html is not None:
        write_atomically(html, reports.to_html(report))
    if as_json:
        console.out_json(report)
    else:
        header, *rows = reports.rows(report)
        console.out(console.table(header, rows))
        console.out("")
        console.out(console.mapping(reports.summary(report)))
        for where, cause in reports.causes(report):
            console.fact("failed", f"{where}: {cause}")
    if report.interrupted:
        return INTERRUPTED
    return PreflightError.exit_code if report.failures else 0
