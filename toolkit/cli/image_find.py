"""The commands that find images: `toolkit image list`, `show`, `search`, `path`, `diff`, `sbom`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from msgspec.structs import asdict

from toolkit.cli import console
from toolkit.cli.shared import json_option
from toolkit.errors import ImageMissingError
from toolkit.images.recipe import catalogue, library, names
from toolkit.images.store.diff import Difference, compare
from toolkit.images.store.listing import catalogue_entries, listing, matching
from toolkit.images.store.sbom import materials
from toolkit.images.store.signatures import is_signed
from toolkit.images.store.store import find
from toolkit.text import json_safe, one_line
from toolkit.units import human_size

_MOST = 40  # rows of each kind that a person is shown


@click.command("list")
@json_option
def list_images(as_json: bool) -> None:
    """List recipes and images with their state, size and contents.

    Images of others are in the directories under `images` in /etc/toolkit/toolkit.toml, in your own
    or the project's toolkit.toml, and in those of the site that is chosen there.

    \b
    Examples:
      toolkit image list
      toolkit image list --json
    """
    listed = listing()
    rows = [
        (
            image.name,
            image.state,
            human_size(image.size) if image.size else "-",
            f"{image.checks[0]} of {image.checks[1]}" if image.checks else "-",
            (
                ", ".join(f"{name} {version}" for name, version in image.frameworks.items())
                or image.summary
            )
            + (f" (in {image.directory})" if image.directory else ""),
        )
        for image in listed
    ]
    header = ("NAME", "STATE", "SIZE", "CHECKS", "CONTAINS")
    console.listing(header, rows, [asdict(image) for image in listed], as_json=as_json)


@click.command("show")
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show the facts of a recipe, an image or an NGC release.

    Each fact of a release has its source; unknown ones are listed, too.

    \b
    Examples:
      toolkit image show pytorch_cpu
      toolkit image show pytorch:22.03
      toolkit image show nvcr.io/nvidia/pytorch:25.06-py3
    """
    release = catalogue.find_by_name(name)
    if release is None:
        facts = {**_recipe_facts(name), **_image_facts(name)}
        lines = (line for key, value in facts.items() for line in _lines(key, value))
        console.result(facts, "\n".join(lines), as_json=as_json)
        return
    rows = []
    for fact_name in catalogue.FACTS:
        fact = release.facts.get(fact_name)
        note = f" ({fact.note})" if fact and fact.note else ""
        known = (fact.value, f"{fact.source}{note}") if fact else ("unknown", "-")
        rows.append((fact_name, *known))
    console.listing(("FACT", "VALUE", "SOURCE"), rows, release, as_json=as_json)
    console.say("next", f"toolkit image new mine --from {release.reference} --with horovod")


def _recipe_facts(name: str) -> dict[str, Any]:
    """Return the contents of a recipe; nothing if there is none of this name."""
    if name not in names.list_recipes() and not name.endswith(".toml"):
        return {}
    resolved = library.load(name)
    return {
        "recipe": resolved.name,
        "summary": resolved.summary,
        "base": resolved.base.output().detail,
        "steps": {step.name: step.detail for step in resolved.steps},
        "compiled": {step.name: step.detail for step in resolved.build},
        "dropped": list(resolved.dropped),
    }


def _image_facts(name: str) -> dict[str, Any]:
    """Return the facts of an image, or why there is none."""
    try:
        image = find(name.removesuffix(".toml"))
    except ImageMissingError as error:
        return {"image": error.cause}
    if (manifest := image.manifest) is None:
        return {"image": image.path}
    base, packages = manifest.base, manifest.packages
    unnoted = "by a key that is not noted here" if is_signed(Path(image.path)) else "no"
    return {
        "image": image.path,
        "size": human_size(manifest.size),
        "built": f"{manifest.built} by {manifest.builder}",
        "began as": f"{base.reference} {base.digest}".strip() if base else "unknown",
        "system": manifest.system or "unknown",
        "frameworks": manifest.frameworks,
        "gpu code": {name: ", ".join(code) for name, code in manifest.gpu_code.items()} or "none",
        "mpi": list(manifest.mpi),
        "horovod": manifest.horovod,
        "packages": f"{len(packages.apt)} of Debian or Ubuntu, {len(packages.pip)} of Python",
        "locked": manifest.locked or "no",
        "signed": [item.signer or item.fingerprint for item in manifest.signatures] or unnoted,
        "verified": {
            item.name + (f" at {item.site}" if item.site else ""): (
                f"{item.outcome} {item.when}: {item.detail}"
            )
            for item in manifest.verified
        },
        "built again by": manifest.command or "unknown",
    }


def _lines(key: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        lines = [f"{name}  {text}" for name, text in value.items()]
    elif isinstance(value, list):
        lines = [", ".join(map(str, value)) or "-"]
    else:
        lines = [str(value)]
    return [f"{'' if number else key:<15}{one_line(line)}" for number, line in enumerate(lines)]


@click.command("search")
@click.argument("words", nargs=-1)
@json_option
def search(words: tuple[str, ...], as_json: bool) -> None:
    """Find recipes, images and NVIDIA's NGC releases.

    Every word is searched in names and summaries.

    \b
    Examples:
      toolkit image search pytorch
      toolkit image search ngc 'cuda 12' 'python 3.10'
    """
    matches = matching(catalogue_entries(), words)
    if not matches and not as_json:
        console.note("nothing matches; next: toolkit image search, which lists everything")
        return
    rows = [(entry.name, entry.kind, entry.summary) for entry in matches]
    console.listing(("NAME", "KIND", "WHAT"), rows, matches, as_json=as_json)


@click.command("path")
@click.argument("name")
def path(name: str) -> None:
    """Print the path of an image.

    \b
    Example:
      apptainer exec "$(toolkit image path pytorch_cpu)" python3 --version
    """
    console.document(find(name).path)


@click.command("diff")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option("--quick", is_flag=True, help="Do not unpack; treat files of the same size as equal.")
@click.option("--json", "as_json", is_flag=True, help="Print all differences as JSON.")
def diff(before: str, after: str, quick: bool, as_json: bool) -> None:
    """Compare two images: packages, labels, environment, files.

    The exit code is 1 if they differ.

    \b
    Examples:
      toolkit image diff pytorch_cpu /shared/images/pytorch_cpu.sif
      toolkit image diff old.sif new.sif --quick
    """
    difference = compare(find(before), find(after), read=not quick)
    console.result(difference, "\n".join(_describe(difference)), as_json=as_json)
    if not difference.identical:
        raise SystemExit(1)


def _describe(difference: Difference) -> Iterator[str]:
    """Yield the lines about what two images have different."""
    if difference.identical:
        yield "identical contents: the file systems are the same in every byte"
        return
    counts = Counter(change.kind for change in difference.changes)
    for kind in ("packages", "labels", "environment", "files"):
        rows = [
            (change.name, change.before or "-", change.after or "-")
            for change in difference.changes
            if change.kind == kind
        ]
        if rows:
            yield console.table((kind.upper(), "A", "B"), rows[:_MOST])
            yield f"and {len(rows) - _MOST} more: --json\n" if len(rows) > _MOST else ""
    yield ", ".join(f"{counts[kind]} {kind}" for kind in counts)
    if not counts["files"] and difference.contents:
        yield "the files have the same contents"
    if not difference.contents:
        yield "files of the same size count as equal"


@click.command("sbom")
@click.argument("name")
def sbom(name: str) -> None:
    """Print the contents of an image as a bill of materials.

    The format is CycloneDX 1.6, in JSON. A build puts it into the image.

    \b
    Example:
      toolkit image sbom pytorch_cpu > pytorch_cpu.cdx.json
    """
    console.document(json_safe(materials(find(name))))
