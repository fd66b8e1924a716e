"""`toolkit workshop new`, `show`, `schema`, `pack` and `unpack`: the folder of a workshop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli import console
from toolkit.cli.shared import json_option
from toolkit.errors import UsageError
from toolkit.files import hash_file
from toolkit.quoting import shell
from toolkit.shell import interrupted_by_signals
from toolkit.units import counted, human_size

if TYPE_CHECKING:
    from toolkit.model.job import Job
    from toolkit.workshops.archive import Verify

FOLDER = click.Path(path_type=Path)
folder_argument = click.argument("folder", metavar="[WORKSHOP]", default=".", type=FOLDER)
key_option = click.option(
    "--key",
    type=FOLDER,
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
    from toolkit.workshops.new import create

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
    from toolkit.workshops.reading import job_of, load, notes, source_of

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
        rows.append((exercise.name, (job.image or "-") if job else "-", _summary(job)))
    console.out(console.table(("EXERCISE", "IMAGE", "SHOWS"), rows))
    for subject, text in notes(folder, workshop):
        console.say(subject, text)


def _summary(job: Job | None) -> str:
    return "a notebook" if job is None else job.summary or ""


@click.command("schema")
def schema() -> None:
    """Print the JSON schema of workshop.toml, for editors.

    \b
    Example:
      toolkit workshop schema > workshop.schema.json
    """
    from toolkit.workshops import reading

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
    from toolkit.workshops import pack as packing
    from toolkit.workshops.reading import notes

    target = output or Path(f"{folder.resolve().name}.tar")
    options = packing.Options(images=not no_images, key=sign, ask=_ask)
    with interrupted_by_signals(), console.Steps() as steps:
        contents = packing.pack(folder, target, options, steps)
    size = human_size(target.stat().st_size)
    console.out(
        console.subject("packed", f"{target}: {size}, {counted(len(contents.files), 'file')}")
    )
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


def _ask(name: str) -> str:
    answer: str = click.prompt(f"passphrase of {name}", hide_input=True, err=True)
    return answer


@click.command("unpack")
@click.argument("packed", metavar="FILE", type=FOLDER)
@click.argument("directory", type=FOLDER)
@key_option
def unpack(packed: Path, directory: Path, key: Path | None) -> None:
    """Unpack a workshop for all participants of a cluster.

    \b
    Example:
      toolkit workshop unpack first-steps.tar /scratch/workshops/first-steps
    """
    from toolkit.workshops import archive

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
        contents = archive.unpack(packed, directory, verifier_of(key))
    console.out(
        console.subject("unpacked", f"{contents.name}: {counted(len(contents.files), 'file')}")
    )
    console.fact("next", f"toolkit workshop join {shell(str(directory))}")


def verifier_of(key: Path | None) -> Verify | None:
    """Return the function that verifies signatures by a key; None without a key."""
    if key is None:
        return None
    from toolkit.workshops.signing import verifier

    return verifier(key)
