"""`toolkit site list` and `show`: what is written of clusters."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from toolkit.cli.shared import complete_sites, json_option
from toolkit.errors import ToolkitError
from toolkit.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from toolkit.model.site import Site


@click.command("list")
@json_option
def list_sites(as_json: bool) -> None:
    """List the known sites.

    \b
    Example:
      toolkit site list
    """
    from toolkit import sites
    from toolkit.cli import console

    listed: list[dict[str, str]] = []
    rows: list[tuple[object, ...]] = []
    for name in sites.names():
        entry = {"name": name, "summary": "", "date": "", "file": str(sites.path_of(name))}
        try:
            site = sites.load(name)
        except ToolkitError as error:
            listed.append({**entry, "error": f"{error.place}: {error.cause}"})
            rows.append((name, f"broken: {error.cause}; next: toolkit site check {name}", "-", "-"))
            continue
        listed.append({**entry, "summary": site.summary, "date": site.date})
        count = len(site.partitions) or "from Slurm"
        rows.append((name, site.summary, site.date or "-", count))
    table = partial(console.table, ("NAME", "WHAT", "AS OF", "PARTITIONS"), rows)
    console.result(listed, table, as_json=as_json)


@click.command("show")
@click.argument("name", shell_complete=complete_sites)
@json_option
def show(name: str, as_json: bool) -> None:
    """Show what the file of a site says, with what it extends.

    \b
    Example:
      toolkit site show neuron
    """
    from toolkit import sites
    from toolkit.cli import console

    site = sites.load(name, "NAME")
    file = str(sites.path_of(name))
    console.result(site, lambda: "\n".join(_lines(site, file)), as_json=as_json)


def _lines(site: Site, file: str) -> Iterator[str]:
    from toolkit.cli import console
    from toolkit.sites.rules import comment_example, comment_form

    rows: dict[str, object] = {
        "site": f"{site.name}: {site.summary}",
        "file": file,
        "as of": site.date or "-",
        "container": " or ".join(site.containers),
        "modules": ", ".join(site.modules) or "-",
        "interface": site.interface or "chosen by the libraries",
        "images": ", ".join(site.images) or "-",
        "datasets": ", ".join(f"{key}: {place}" for key, place in site.datasets.items()) or "-",
        "scratch": (site.scratch or "-")
        + (
            f"   files unread for {counted(site.purge_days, 'day')} are removed"
            if site.purge_days
            else ""
        ),
        "driver": site.driver or "not known",
        "ports": f"{site.ports[0]} to {site.ports[1]}" if site.ports else "any",
        "jobs from": site.submit_directory or "anywhere",
        "time": f"{counted(site.max_minutes // 60, 'hour')} at most"
        if site.max_minutes
        else "from Slurm",
    }
    if site.comment:
        rows["--comment"] = (
            f"{comment_form(site.comment)}   such as {comment_example(site.comment)} "
            f"({site.comment.source}, {site.comment.date})"
        )
    rows |= {
        f"--{option}": f"required: {rule.why} ({rule.source})"
        for option, rule in site.required.items()
    }
    rows |= {
        f"--{option}": f"forbidden: {rule.why} ({rule.source})"
        for option, rule in site.forbidden.items()
    }
    yield console.mapping(rows)
    if site.partitions:
        yield ""
        yield console.table(
            ("PARTITION", "NODES", "CPUS", "GPUS", "GPU", "ARCH", "JOBS", "GPUS PER USER"),
            [
                (
                    partition,
                    values.nodes if values.nodes is not None else "?",
                    values.cpus or "?",
                    values.gpus,
                    values.gpu or "-",
                    values.arch,
                    f"{values.jobs_submitted or '?'}/{values.jobs_running or '?'}"
                    if values.batch
                    else "no batch jobs",
                    values.gpus_per_user or "-",
                )
                for partition, values in site.partitions.items()
            ],
        )
    for note in site.notes:
        yield ""
        yield f"note: {note.text} ({note.source}{f', {note.date}' if note.date else ''})"
