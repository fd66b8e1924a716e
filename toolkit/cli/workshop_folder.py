"""`toolkit workshop new`, `show`, `schema`, `pack`, `unpack`, `join`: a workshop and its copies."""

from __future__ import annotations

from pathlib import Path

import click

from toolkit.checks import Result, row, to_json
from toolkit.cli import console
from toolkit.cli.shared import json_option
from toolkit.errors import PreflightError, UsageError
from toolkit.files import hash_file
from toolkit.quoting import shell
from toolkit.shell import interrupted_by_signals
from toolkit.units import counted, human_size
from toolkit.workshops import archive, reading
from toolkit.workshops import pack as packing
from toolkit.workshops.archive import Verify
from toolkit.workshops.checks import examine
from toolkit.workshops.join import join as join_workshop
from toolkit.workshops.new import create
from toolkit.workshops.reading import job_of, load, notes, source_of
from toolkit.workshops.signing import verifier

FOLDER = click.Path(path_type=Path)
folder_argument = click.argument("folder", metavar="[WORKSHOP]", default=".", type=FOLDER)
key_option = click.option(
    "--key",
    "verify",
    type=FOLDER,
    callback=lambda _ctx, _param, key: verifier(key) if key else None,
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
    create(directory)
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
    workshop = load(folder)
    if as_json:
        console.out_json(workshop)
        return
    console.out(workshop.title_in(workshop.language[0]))
    facts = {
        "languages": ", ".join(workshop.language),
        "people": workshop.people,
        "images": ", ".join(workshop.images) or "none",
        "data": ", ".join(workshop.data) or "none",
        "results": workshop.results or "not collected",
        **workshop.job_options(),
    }
    console.out(console.mapping(facts))
    rows = []
    for exercise in workshop.exercises:
        job = job_of(source_of(folder, exercise))
        summary = "a notebook" if job is None else job.summary or ""
        rows.append((exercise.name, (job.image or "-") if job else "-", summary))
    console.out(console.table(("EXERCISE", "IMAGE", "SHOWS"), rows))
    for subject, text in notes(folder, workshop):
        console.say(subject, text)


@click.command("schema")
def schema() -> None:
    """Print the JSON schema of workshop.toml, for editors.

    \b
    Example:
      toolkit workshop schema > workshop.schema.json
    """
    console.document(reading.schema())


@click.command("pack")
@folder_argument
@click.option("-o", "--output", type=FOLDER, metavar="FILE", help="Default: NAME.tar, here.")
@click.option("--no-images", is_flag=True, help="Pack the locks of the images, not the images.")
@click.option("--sign", type=FOLDER, metavar="PRIVATE.pem", help="Sign it with this key.")
@click.option("--pages", type=FOLDER, metavar="DIR", help="Also write static pages to publish.")
@click.option("--address", metavar="URL", default="", help="Where the pages will be.")
def pack(
    folder: Path,
    output: Path | None,
    no_images: bool,
    sign: Path | None,
    pages: Path | None,
    address: str,
) -> None:
    """Pack a workshop into one file: images, exercises, data, guide.

    The same workshop gives the same bytes.

    \b
    Examples:
      toolkit workshop pack first-steps
      toolkit workshop pack first-steps --no-images --sign course.pem
      toolkit workshop pack first-steps --pages public --address https://example.org/course
    """
    target = output or Path(f"{folder.resolve().name}.tar")
    options = packing.Options(images=not no_images, key=sign)
    with interrupted_by_signals(), console.Steps() as steps:
        contents = packing.pack(folder, target, options, steps)
    size = human_size(target.stat().st_size)
    console.fact("packed", f"{target}: {size}, {counted(len(contents.files), 'file')}")
    for subject, text in notes(folder, contents.workshop):
        console.say(subject, text)
    digest = hash_file(target)
    console.fact("sha256", digest)
    if pages:
        written = packing.publish(folder, target, digest, pages, address)
        console.fact("pages", f"{pages}: {', '.join(written)}")
    results = contents.workshop.results
    is_open = not results or Path(results).exists()
    first = "" if is_open else f"toolkit workshop open {shell(str(folder))}; "
    console.fact("next", f"{first}toolkit workshop join {shell(str(target))}")


@click.command("unpack")
@click.argument("packed", metavar="FILE", type=FOLDER)
@click.argument("directory", type=FOLDER)
@key_option
def unpack(packed: Path, directory: Path, verify: Verify | None) -> None:
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
    source: str, directory: Path | None, share: bool | None, verify: Verify | None, as_json: bool
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
        member = join_workshop(source, directory, share=share, verify=verify, progress=steps)
        is_open = share is None and not member.joined.results
        if is_open and member.contents.workshop.results and console.on_terminal():
            text = "Leave the state and accuracy of your runs (nothing else) for the instructor?"
            if click.confirm(text, err=True):
                where = (member.joined.source, member.directory)
                again = join_workshop(*where, share=True, verify=verify, progress=steps)
                member = again._replace(unchanged=member.unchanged)
    results: list[Result] = []
    for result in examine(member):
        results.append(result)
        for line in () if as_json else row(result, 11):
            console.out(line)
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
        cause = f"{len(failures)} of {len(results)} checks failed"
        raise PreflightError(cause, place=", ".join(failures))
    if as_json:
        return
    if member.unchanged:
        console.fact("kept", f"as they are: {', '.join(member.unchanged)}")
    if member.unused is not None:
        console.fact("unused", f"{member.unused}, which you can remove")
    first = member.joined.exercises[0]
    console.fact("next", f"cd {shell(str(member.directory))}; toolkit run {first}")
