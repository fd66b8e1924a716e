"""`toolkit site init`, `check`, `use` and `schema`: the user's own sites."""

from __future__ import annotations

import re
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli import console
from toolkit.cli.shared import complete_sites, json_option, site_option
from toolkit.errors import ConfigError, SlurmUnreachableError, UsageError
from toolkit.units import counted

if TYPE_CHECKING:
    from toolkit.model.site import Site
    from toolkit.sites.compare import Difference

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")


@click.command("init")
@click.argument("name")
@click.option(
    "--probe",
    is_flag=True,
    help="Also start a job of some seconds on a node of each partition with GPUs: driver, "
    "interface.",
)
@click.option("--comment", metavar="TEXT", help="Slurm's comment of these jobs.")
@click.option("--account", "-A", metavar="NAME", help="Account of these jobs.")
@site_option("The cluster to ask (default auto).", default="auto")
@click.option("--replace", is_flag=True, help="Overwrite your site of this name.")
@click.option("--dry-run", is_flag=True, help="Print the file, and write nothing.")
def init(
    name: str,
    probe: bool,
    comment: str | None,
    account: str | None,
    site: str,
    replace: bool,
    dry_run: bool,
) -> None:
    """Write the file of a site from the live cluster.

    Unknown values are in it as comments.

    \b
    Examples:
      toolkit site init ours --dry-run
      toolkit site init ours --probe --comment "field=misc;appl=misc"
    """
    from toolkit.config import user_directory
    from toolkit.files import write_atomically
    from toolkit.planning.cluster import find_cluster
    from toolkit.sites.draft import draft
    from toolkit.sites.survey import survey
    from toolkit.slurm.client import Client

    if not _NAME.match(name) or name == "auto":
        raise UsageError(
            f"{name!r} cannot be the name of a site: letters, digits, . _ -",
            place="NAME",
            next_step="toolkit site init ours",
        )
    path = user_directory() / "sites" / f"{name}.toml"
    if path.exists() and not (replace or dry_run):
        raise UsageError(
            f"there is a site {name} already",
            place=str(path),
            next_step="--replace, or another name",
        )
    options = [
        f"--{key}={value}"
        for key, value in (("comment", comment), ("account", account))
        if value is not None
    ]
    with console.Steps() as steps:
        answers = survey(Client(find_cluster(site).access), steps, probe=options if probe else None)
    text = draft(name, answers, date=date.today().isoformat())
    if dry_run:
        console.document(text)
        return
    write_atomically(path, text)
    unknown = sum(line.startswith("# ?") for line in text.splitlines())
    partitions = counted(len(answers.queues), "partition")
    console.fact("site", f"{name}: {partitions}, {counted(unknown, 'value')} unknown")
    console.fact("file", str(path))
    then = f"toolkit site check {name}   toolkit site use {name}"
    console.fact("next", f"fill in the lines marked `# ?`, then: {then}")


@click.command("check")
@click.argument("site", metavar="NAME|FILE", shell_complete=complete_sites)
@json_option
def check(site: str, as_json: bool) -> int:
    """Check a site's file, and compare it with the live cluster.

    The keys and values are checked also where the cluster cannot be reached. The exit code is 78 if
    something is wrong.

    \b
    Examples:
      toolkit site check ours
      toolkit site check ./ours.toml --json
    """
    from toolkit import sites
    from toolkit.sites import compare

    written = (
        sites.from_file(Path(site))
        if site.endswith(".toml") or "/" in site
        else sites.load(site, "NAME")
    )
    live, where = _live(written)
    differences = [*compare.within(written), *live]
    wrong = any(difference.wrong for difference in differences)
    if as_json:
        rows = [difference._asdict() for difference in differences]
        console.out_json({"site": written.name, "compared": where, "found": rows})
    else:
        if differences:
            table = [
                ("wrong" if difference.wrong else "note", difference.key, difference.text)
                for difference in differences
            ]
            console.out(console.table(("WHAT", "KEY", "IS"), table))
        console.fact(
            "site",
            f"{written.name}: {'something is wrong' if wrong else 'nothing is wrong'}; {where}",
        )
    return ConfigError.exit_code if wrong else 0


def _live(site: Site) -> tuple[list[Difference], str]:
    """Return the differences to the live cluster, and which cluster was asked."""
    from toolkit.planning.cluster import cluster_of
    from toolkit.sites.compare import against
    from toolkit.sites.survey import survey
    from toolkit.slurm.client import Client

    try:
        with console.Steps() as steps:
            answers = survey(Client(cluster_of(site).access), steps)
    except SlurmUnreachableError as error:
        return [], f"not compared with the cluster: {error.cause}"
    asked = f"compared with cluster {answers.cluster}, Slurm {answers.slurm}"
    return list(against(site, answers)), asked


@click.command("use")
@click.argument("name", shell_complete=complete_sites)
def use(name: str) -> None:
    """Make NAME your default site.

    A project can set another one. With `auto`, each command finds the cluster by itself.

    \b
    Examples:
      toolkit site use neuron
      toolkit site use auto
    """
    from toolkit import sites
    from toolkit.config import PROJECT_FILE, machine_directory, user_directory
    from toolkit.files import read_text, write_atomically
    from toolkit.sites import chosen
    from toolkit.trust import require_trusted

    if name != "auto":
        sites.load(name, "NAME")
    path = user_directory() / PROJECT_FILE
    require_trusted(path)
    before = read_text(path) if path.is_file() else ""
    is_default = name == "auto" and not (machine_directory() / path.name).is_file()
    write_atomically(path, chosen(before, None if is_default else name))
    console.fact("site", f"{name}   (in {path})")


@click.command("schema")
def schema() -> None:
    """Print the JSON schema of a site's file.

    Editors complete keys and mark mistakes by it.

    \b
    Example:
      toolkit site schema > ~/.config/toolkit/site.schema.json
    """
    from toolkit.sites.schema import text

    console.document(text())


@click.command("rules")
@json_option
def rules(as_json: bool) -> None:
    """List the rules that jobs are checked against before submission.

    \b
    Example:
      toolkit site rules
    """
    from toolkit.rules import RULES

    rules = {rule.name: rule.about for rule in RULES}
    text = partial(console.table, ("RULE", "ASKS FOR"), list(rules.items()))
    console.result(rules, text, as_json=as_json)
