"""`toolkit site`: what is written of clusters, and the user's own sites."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path

import click

from toolkit import sites
from toolkit.cli import console
from toolkit.cli.shared import complete_sites, json_option, pattern, site_option
from toolkit.config import PROJECT_FILE, machine_directory, package_directory, user_directory
from toolkit.errors import ConfigError, SlurmUnreachableError, ToolkitError, UsageError
from toolkit.files import read_text, write_atomically
from toolkit.model.site import Site
from toolkit.planning.settings import cluster_of, find_cluster
from toolkit.rules import described
from toolkit.sites.survey import against, draft, survey, within
from toolkit.trust import require_trusted
from toolkit.units import counted

NAME = pattern("a name for a site", r"(?!auto\Z)[A-Za-z0-9][A-Za-z0-9._-]*", "ours")


@click.command("init")
@click.argument("name", type=NAME)
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
    path = user_directory() / "sites" / f"{name}.toml"
    if path.exists() and not (replace or dry_run):
        raise UsageError(
            f"there is a site {name} already",
            place=str(path),
            next_step="--replace, or another name",
        )
    given = {"comment": comment, "account": account}
    options = [f"--{key}={value}" for key, value in given.items() if value is not None]
    with console.Steps() as steps:
        answers = survey(find_cluster(site).client, steps, probe=options if probe else None)
    text = draft(name, answers, date=date.today().isoformat())
    if dry_run:
        console.document(text)
        return
    write_atomically(path, text)
    unknown = sum(line.startswith("# ?") for line in text.splitlines())
    partitions = counted(len(answers.partitions), "partition")
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
    is_file = site.endswith(".toml") or "/" in site
    written = sites.from_file(Path(site)) if is_file else sites.load(site, "NAME")
    differences = list(within(written))
    try:
        with console.Steps() as steps:
            answers = survey(cluster_of(written).client, steps)
        differences += against(written, answers)
        where = f"compared with cluster {answers.cluster}, Slurm {answers.slurm}"
    except SlurmUnreachableError as error:
        where = f"not compared with the cluster: {error.cause}"
    wrong = any(difference.wrong for difference in differences)
    plain = [difference._asdict() for difference in differences]
    data = {"site": written.name, "compared": where, "found": plain}
    rows = [("wrong" if each.wrong else "note", each.key, each.text) for each in differences]
    verdict = "something is wrong" if wrong else "nothing is wrong"
    lines = [console.table(("WHAT", "KEY", "IS"), rows)] if rows else []
    lines.append(console.subject("site", f"{written.name}: {verdict}; {where}"))
    console.result(data, "\n".join(lines), as_json=as_json)
    return ConfigError.exit_code if wrong else 0


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
    if name != "auto":
        sites.load(name, "NAME")
    path = user_directory() / PROJECT_FILE
    require_trusted(path)
    before = read_text(path) if path.is_file() else ""
    is_default = name == "auto" and not (machine_directory() / path.name).is_file()
    write_atomically(path, sites.chosen(before, None if is_default else name))
    console.fact("site", f"{name}   (in {path})")


@click.command("schema")
def schema() -> None:
    """Print the JSON schema of a site's file.

    Editors complete keys and mark mistakes by it.

    \b
    Example:
      toolkit site schema > ~/.config/toolkit/site.schema.json
    """
    console.document(read_text(package_directory("sites/site.schema.json")))


@click.command("rules")
@json_option
def rules(as_json: bool) -> None:
    """List the rules that jobs are checked against before submission.

    \b
    Example:
      toolkit site rules
    """
    rules = described()
    console.listing(("RULE", "ASKS FOR"), list(rules.items()), rules, as_json=as_json)


@click.command("list")
@json_option
def list_sites(as_json: bool) -> None:
    """List the known sites.

    \b
    Example:
      toolkit site list
    """
    listed: list[dict[str, str]] = []
    rows: list[tuple[object, ...]] = []
    for name in sites.names():
        entry = {"name": name, "summary": "", "date": "", "file": str(sites.path_of(name))}
        row: tuple[object, ...]
        try:
            site = sites.load(name)
        except ToolkitError as error:
            entry["error"] = f"{error.place}: {error.cause}"
            row = (f"broken: {error.cause}; next: toolkit site check {name}", "-", "-")
        else:
            entry |= {"summary": site.summary, "date": site.date}
            row = (site.summary, site.date or "-", len(site.partitions) or "from Slurm")
        listed.append(entry)
        rows.append((name, *row))
    console.listing(("NAME", "WHAT", "AS OF", "PARTITIONS"), rows, listed, as_json=as_json)


@click.command("show")
@click.argument("name", shell_complete=complete_sites)
@json_option
def show(name: str, as_json: bool) -> None:
    """Show what the file of a site says, with what it extends.

    \b
    Example:
      toolkit site show neuron
    """
    site = sites.load(name, "NAME")
    lines = _lines(site, str(sites.path_of(name)))
    console.result(site, "\n".join(lines), as_json=as_json)


def _lines(site: Site, file: str) -> Iterator[str]:
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
            f"{sites.comment_form(site.comment)}   such as {sites.comment_example(site.comment)} "
            f"({site.comment.source}, {site.comment.date})"
        )
    for word, options in (("required", site.required), ("forbidden", site.forbidden)):
        for option, rule in options.items():
            rows[f"--{option}"] = f"{word}: {rule.why} ({rule.source})"
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
