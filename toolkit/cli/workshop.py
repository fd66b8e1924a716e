"""`toolkit workshop`: prepare a workshop, take part in one, lead it."""

from __future__ import annotations

from pathlib import Path

import click

from toolkit.checks import Result, row, to_json
from toolkit.cli import console
from toolkit.cli.shared import INTERRUPTED, json_option, require_passed
from toolkit.config import package_directory
from toolkit.errors import PreflightError, UsageError
from toolkit.files import hash_file, read_json, read_text
from toolkit.quoting import shell
from toolkit.shell import interrupted_by_signals
from toolkit.units import counted, human_size
from toolkit.workshops import archive, exercises, results
from toolkit.workshops import join as joining
from toolkit.workshops import pack as packing
from toolkit.workshops.checks import examine
from toolkit.workshops.model import JOINED, WORKSHOP, Done, Joined
from toolkit.workshops.rehearsal import rehearse as acts
from toolkit.workshops.rehearsal import report as reports

FOLDER = click.Path(path_type=Path)
folder_argument = click.argument("folder", metavar="[WORKSHOP]", default=".", type=FOLDER)
key_option = click.option(
    "--key",
    "verify",
    type=FOLDER,
    callback=lambda _ctx, _param, key: packing.verifier(key) if key else None,
    metavar="PUBLIC.pem",
    help="Accept only a workshop that is signed by this key.",
)


@click.command("new")
@click.argument("directory", type=FOLDER)
def new(directory: Path) -> None:
    """Write a workshop with two exercises that works as it is.

    \b
    Example:
      toolkit workshop new first-steps
    """
    exercises.create(directory)
    word = shell(str(directory))
    console.fact("written", str(directory))
    console.fact("next", f"edit {word}/workshop.toml; toolkit workshop pack {word}")


@click.command("show")
@folder_argument
@json_option
def show(folder: Path, as_json: bool) -> None:
    """Check the workshop.toml of a folder, and show what it says.

    \b
    Example:
      toolkit workshop show first-steps
    """
    workshop = exercises.load(folder)
    facts = {
        "date": workshop.date or "-",
        "people": workshop.people,
        "images": ", ".join(workshop.images) or "none",
        "data": ", ".join(workshop.data) or "none",
        "results": workshop.results or "not collected",
        **workshop.job_options(),
    }
    rows = []
    for exercise in workshop.exercises:
        job = exercises.job_of(exercises.source_of(folder, exercise))
        summary = "a notebook" if job is None else job.summary or ""
        rows.append((exercise.name, (job.image or "-") if job else "-", summary))
    table = console.table(("EXERCISE", "IMAGE", "SHOWS"), rows)
    title = workshop.title_in(workshop.language[0])
    console.result(workshop, f"{title}\n{console.mapping(facts)}\n{table}", as_json=as_json)
    console.say_all(exercises.notes(folder, workshop))


@click.command("schema")
def schema() -> None:
    """Print the JSON schema of workshop.toml, for editors.

    \b
    Example:
      toolkit workshop schema > workshop.schema.json
    """
    console.document(read_text(package_directory("workshops/workshop.schema.json")))


@click.command("pack")
@folder_argument
@click.option("-o", "--output", type=FOLDER, metavar="FILE", help="Default: NAME.tar, here.")
@click.option("--sign", type=FOLDER, metavar="PRIVATE.pem", help="Sign it with this key.")
@click.option("--pages", type=FOLDER, metavar="DIR", help="Also write static pages to publish.")
@click.option("--address", metavar="URL", default="", help="Where the pages will be.")
def pack(
    folder: Path, output: Path | None, sign: Path | None, pages: Path | None, address: str
) -> None:
    """Pack a workshop into one file: images, exercises, data, guide.

    The same workshop gives the same bytes.

    \b
    Examples:
      toolkit workshop pack first-steps
      toolkit workshop pack first-steps --sign course.pem
      toolkit workshop pack first-steps --pages public --address https://example.org/course
    """
    target = output or Path(f"{folder.resolve().name}.tar")
    with interrupted_by_signals(), console.Steps() as steps:
        contents = packing.pack(folder, target, steps, key=sign)
    size = human_size(target.stat().st_size)
    console.fact("packed", f"{target}: {size}, {counted(len(contents.files), 'file')}")
    console.say_all(exercises.notes(folder, contents.workshop))
    digest = hash_file(target)
    console.fact("sha256", digest)
    if pages:
        written = packing.publish(folder, target, digest, pages, address)
        console.fact("pages", f"{pages}: {', '.join(written)}")
    shared = contents.workshop.results
    is_open = not shared or Path(shared).exists()
    first = "" if is_open else f"toolkit workshop open {shell(str(folder))}; "
    console.fact("next", f"{first}toolkit workshop join {shell(str(target))}")


@click.command("unpack")
@click.argument("packed", metavar="FILE", type=FOLDER)
@click.argument("directory", type=FOLDER)
@key_option
def unpack(packed: Path, directory: Path, verify: archive.Verify | None) -> None:
    """Unpack a workshop for all participants of a cluster.

    \b
    Example:
      toolkit workshop unpack first-steps.tar /scratch/workshops/first-steps
    """
    if directory.exists() or directory.is_symlink():
        raise UsageError(
            f"{directory} exists already",
            place="DIRECTORY",
            next_step="toolkit workshop unpack FILE OTHER-DIRECTORY",
        )
    if not packed.is_file():
        raise UsageError(
            f"there is no file {packed}",
            place="FILE",
            next_step="the instructor writes it: toolkit workshop pack WORKSHOP",
        )
    with interrupted_by_signals(), console.Steps() as steps:
        steps.begin("unpack", str(packed))
        contents = archive.unpack(packed, directory, verify)
    console.fact("unpacked", f"{contents.name}: {counted(len(contents.files), 'file')}")
    console.fact("next", f"toolkit workshop join {shell(str(directory))}")


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
    source: str,
    directory: Path | None,
    share: bool | None,
    verify: archive.Verify | None,
    as_json: bool,
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
    with interrupted_by_signals(), console.Steps() as steps:
        member = joining.join(source, directory, share=share, verify=verify, progress=steps)
        is_open = share is None and not member.joined.results
        if is_open and member.contents.workshop.results and console.on_terminal():
            text = "Leave the state and accuracy of your runs (nothing else) for the instructor?"
            if click.confirm(text, err=True):
                where = (member.joined.source, member.directory)
                again = joining.join(*where, share=True, verify=verify, progress=steps)
                member = again._replace(unchanged=member.unchanged)
    checks: list[Result] = []
    for check in examine(member):
        checks.append(check)
        for line in () if as_json else row(check, 11):
            console.out(line)
    if as_json:
        console.out_json(
            {
                "directory": str(member.directory),
                "workshop": member.contents.name,
                "unchanged": member.unchanged,
                "findings": [to_json(check) for check in checks],
            }
        )
    require_passed(checks, "checks failed")
    if as_json:
        return
    if member.unchanged:
        console.fact("kept", f"as they are: {', '.join(member.unchanged)}")
    first = member.joined.exercises[0]
    console.fact("next", f"cd {shell(str(member.directory))}; toolkit run {first}")


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
    results.open_directory(directory)
    console.fact("open", str(directory))
    console.fact("next", f"toolkit workshop status {shell(str(folder))}")


def results_of(folder: Path) -> Path:
    """Return the directory of results that a workshop names."""
    workshop = exercises.load(folder)
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
    participants, unread = results.read_all(results_of(folder), folder.resolve().name)
    names = [exercise.name for exercise in exercises.load(folder).exercises]
    rows = [
        (each.name, *(_cell(each.exercises.get(name)) for name in names)) for each in participants
    ]
    left_out = [{"name": name, "why": why} for name, why in unread]
    data = {"participants": participants, "not_counted": left_out}
    console.listing(("PARTICIPANT", *names), rows, data, as_json=as_json)
    for name in names:
        states = [each.exercises[name].state for each in participants if name in each.exercises]
        console.say(name, f"{states.count('ok')} of {len(participants)} have done it")
    console.say_all(("not counted", f"{name}: {why}") for name, why in unread)


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
    shared = exercises.load(folder).results
    if shared and Path(shared).exists():
        count = results.close_directory(Path(shared))
        console.fact("closed", f"{shared}: {counted(count, 'file')}")
    else:
        console.fact("closed", f"{shared or 'a directory of results'}: there is none")
    if unpacked is not None:
        results.remove_unpacked(unpacked, folder.resolve().name)
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
    if (folder / JOINED).is_file():
        joined = read_json(folder / JOINED, Joined, searched=True)
        aside = joining.reset(folder, joined, name)
        console.fact("reset", str(folder / name))
        if aside is not None:
            console.fact("kept", f"yours is {aside}")
        return
    if not (folder / WORKSHOP).is_file():
        raise UsageError(
            f"{folder.resolve()} is neither a joined workshop nor a workshop's folder",
            place="WORKSHOP",
            next_step="cd to the directory that you joined in, then reset again",
        )
    results.remove_one(results_of(folder), name)
    console.fact("removed", f"the results of {name}")


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
@click.option("--clean", is_flag=True, help="Only remove what a killed rehearsal has left here.")
@json_option
def rehearse(
    folder: Path,
    people: int | None,
    nodes: int,
    only: tuple[str, ...],
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
      toolkit workshop rehearse first-steps --people 40 --only 01-ddp
      toolkit workshop rehearse --clean
    """
    if clean:
        with console.Steps() as steps:
            removed = acts.clean(steps)
        for place in removed:
            console.fact("removed", str(place))
        if not removed:
            console.fact("clean", "no rehearsal that was killed has left anything here")
        return 0
    count = people or exercises.load(folder).people
    with console.Steps() as steps:
        report = acts.rehearse(folder, steps, people=count, nodes=nodes, only=only)
    header, *rows = reports.rows(report)
    parts = [console.table(header, rows), "", console.mapping(reports.summary(report))]
    parts += [console.subject("failed", f"{where}: {why}") for where, why in reports.causes(report)]
    console.result(report, "\n".join(parts), as_json=as_json)
    if report.interrupted:
        return INTERRUPTED
    return PreflightError.exit_code if report.failures else 0
