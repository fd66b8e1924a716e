"""`toolkit image show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from toolkit.model.catalogue import Release
    from toolkit.model.image import Manifest


@click.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(name: str, as_json: bool) -> None:
    """Show the facts of a recipe, an image or an NGC release.

    Each fact of a release has its source; unknown ones are listed, too.

    \b
    Examples:
      toolkit image show pytorch_cpu
      toolkit image show pytorch:22.03
      toolkit image show nvcr.io/nvidia/pytorch:25.06-py3
    """
    from toolkit.cli import console
    from toolkit.images.recipe import catalogue

    release = catalogue.find_by_name(name)
    if release is not None:
        if as_json:
            import msgspec

            console.out_json(msgspec.to_builtins(release))
        else:
            _show_release(release)
        return
    facts = _known(name)
    if as_json:
        console.out_json(facts)
    else:
        for key, value in facts.items():
            _show(key, value)


def _show_release(release: Release) -> None:
    from toolkit.cli import console
    from toolkit.model.catalogue import FACTS

    rows = []
    for name in FACTS:
        fact = release.facts.get(name)
        note = f" ({fact.note})" if fact and fact.note else ""
        rows.append(
            (name, fact.value if fact else "unknown", f"{fact.source}{note}" if fact else "-")
        )
    console.out(console.table(("FACT", "VALUE", "SOURCE"), rows))
    console.note(
        console.subject("next", f"toolkit image new mine --from {release.reference} --with horovod")
    )


def _known(name: str) -> dict[str, Any]:
    """Return the recipe's contents and the facts of its image."""
    from toolkit.errors import ImageMissingError
    from toolkit.images.recipe import library
    from toolkit.images.recipe.names import recipe_names
    from toolkit.images.store import store

    known: dict[str, Any] = {}
    if name in recipe_names() or name.endswith(".toml"):
        resolved = library.load(name)
        stages = library.build_stages(resolved)
        known |= {
            "recipe": resolved.name,
            "summary": resolved.summary,
            "base": resolved.base.detail(),
            "steps": {step.name: step.detail for step in stages.steps},
            "compiled": {step.name: step.detail for step in stages.build},
            "dropped": list(resolved.dropped),
        }
    try:
        image = store.find(name.removesuffix(".toml") if name.endswith(".toml") else name)
    except ImageMissingError as error:
        return {**known, "image": error.cause}
    known["image"] = image.path
    if image.manifest is not None:
        known |= _of_manifest(image.manifest)
    return known


def _of_manifest(manifest: Manifest) -> dict[str, Any]:
    from toolkit.units import human_size

    return {
        "size": human_size(manifest.size),
        "built": f"{manifest.built} by {manifest.builder}",
        "began as": f"{manifest.base.reference} {manifest.base.digest}".strip()
        if manifest.base
        else "unknown",
        "system": manifest.system or "unknown",
        "frameworks": manifest.frameworks,
        "mpi": list(manifest.mpi),
        "horovod": manifest.horovod,
        "packages": f"{len(manifest.packages.apt)} of Debian or Ubuntu, {len(manifest.packages.pip)} of Python",
        "locked": manifest.locked or "no",
        "signed": [item.signer or item.fingerprint for item in manifest.signatures] or "no",
        "verified": {
            item.name
            + (
                f" at {item.site}" if item.site else ""
            ): f"{item.outcome} {item.when}: {item.detail}"
            for item in manifest.verdicts
        },
        "built again by": manifest.command or "unknown",
    }


def _show(key: str, value: Any) -> None:
    from toolkit.cli import console
    from toolkit.terminal_text import one_line

    if isinstance(value, dict):
        lines = [f"{name}  {text}" for name, text in value.items()]
    elif isinstance(value, list):
        lines = [", ".join(map(str, value)) or "-"]
    else:
        lines = [str(value)]
    for number, line in enumerate(lines):
        console.out(f"{key if number == 0 else '':<15}{one_line(line)}")
