"""`toolkit doctor` and `lint`: find what would keep jobs from running, before they do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from toolkit import sites
from toolkit.checks import Result, row
from toolkit.checks import to_json as as_data
from toolkit.cli import console
from toolkit.cli.shared import (
    cluster_option,
    complete_images,
    gpus_option,
    json_option,
    node_job_options,
    require_passed,
    site_option,
)
from toolkit.doctor.case import gather
from toolkit.doctor.items import ITEMS, diagnose
from toolkit.errors import UsageError
from toolkit.lint.files import context_of, read, save
from toolkit.lint.linter import fixed, lint, report, to_json
from toolkit.units import counted


@click.command("doctor")
@site_option("The cluster; default: as for toolkit run.", default="auto")
@click.option(
    "--image",
    shell_complete=complete_images,
    metavar="NAME|PATH",
    help="The image of your jobs; the checks on nodes run in it.",
)
@click.option(
    "--nodes",
    "-N",
    type=click.IntRange(min=1),
    help="Examine this many nodes, too: up to four short jobs, through Slurm.",
)
@gpus_option("GPUs on each of these nodes.")
@node_job_options(minutes=5)
@json_option
@cluster_option
def doctor(
    site: str,
    image: str | None,
    nodes: int | None,
    gpus: int | None,
    as_json: bool,
    **job_options: str | None,
) -> None:
    """Check this machine and the cluster before jobs run.

    Reports what would keep jobs from running. Examines this machine and Slurm; with --nodes and
    --image also nodes, from inside the image: GPUs, driver, names, ports, clocks, the network
    between them, and an all-reduce by Gloo, MPI and NCCL. Each item is PASS, WARN, FAIL or not
    checked, with the next step. The exit code is 92 if one is FAIL.

    \b
    Examples:
      toolkit doctor
      toolkit doctor --nodes 2 --image pytorch_cpu
      toolkit doctor --site neuron --image pytorch_22.03 --nodes 2 --gpus-per-node 4
    """
    if gpus and not nodes:
        raise UsageError(
            "--gpus-per-node needs --nodes: GPUs are counted on nodes",
            place="--gpus-per-node",
            next_step=f"--nodes 1 --gpus-per-node {gpus}",
        )
    settings = {key: value for key, value in job_options.items() if value}
    case = gather(site, image, nodes or 0, gpus or 0, settings, Path.cwd())
    if case.nodes:
        jobs = f"this machine, and {counted(case.nodes, 'node')} through jobs"
        console.say("checking", jobs)
    width = max(len(item.name) for item in ITEMS)
    results: list[Result] = []
    for result in diagnose(case):
        results.append(result)
        for line in row(result, width) if result.outcome != "unchecked" and not as_json else ():
            console.out(line)
    if as_json:
        name = case.site.name if case.site else None
        console.out_json({"site": name, "findings": [as_data(each) for each in results]})
    else:
        _show_unchecked(results)
    require_passed(results, "items would keep jobs from running")


def _show_unchecked(results: Sequence[Result]) -> None:
    """Print the items that were not checked; those with one reason share a line."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if result.outcome == "unchecked":
            by_reason.setdefault((result.message, result.fix), []).append(result.name)
    for (reason, step), names in by_reason.items():
        advice = f" ({step})" if step else ""
        console.out(f"not checked  {', '.join(names)}: {reason}{advice}")


@click.command("lint")
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@site_option("The cluster of the scripts: its partitions, comments and modules are checked too.")
@click.option(
    "--fix",
    is_flag=True,
    help="Fix what is mechanical, in the file; the original becomes FILE.orig, FILE.orig.2, ...",
)
@json_option
@click.pass_context
def lint_files(
    context: click.Context, files: tuple[Path, ...], site: str | None, fix: bool, as_json: bool
) -> None:
    """Find faults in existing sbatch scripts, and fix them.

    Each is shown with its line, what follows from it, and what to write instead. Nothing is run.
    "-" reads a script from standard input. The exit code is 1 if there is an error, and 0 if there
    are only warnings.

    \b
    Examples:
      toolkit lint job.sbatch
      toolkit lint --site neuron --fix job.sbatch
    """
    loaded = sites.load(site) if site else None
    results: dict[str, tuple[Result, ...]] = {}
    for file in files:
        text = read(file)
        known = context_of(file, text, loaded)
        if fix and str(file) != "-":
            text, faults = fixed(text, known)
            original = save(file, text) if faults else file
            for fault in faults:
                console.say("fixed", f"{file}:{fault.line} {fault.message}")
            if faults:
                console.say("original", str(original))
                known = context_of(file, text, loaded)
        results[str(file)] = lint(text, known)
    if as_json:
        console.out_json({name: [to_json(each) for each in results[name]] for name in results})
    else:
        for name, of_file in results.items():
            _show_faults(name, of_file)
        if loaded:
            source = f"the file of {loaded.cited}"
            console.note(f"checked against {source}; the live cluster was not checked")
    errors = any(each.outcome == "failed" for of_file in results.values() for each in of_file)
    context.exit(1 if errors else 0)


def _show_faults(name: str, results: tuple[Result, ...]) -> None:
    """Print the faults of a script, and their numbers."""
    for result in results:
        for line in report(result, name):
            console.out(line)
    errors = sum(result.outcome == "failed" for result in results)
    fixable = sum(bool(result.edits) for result in results)
    tail = f"; --fix corrects {fixable}" if fixable else ""
    console.note(
        f"{name}: {counted(errors, 'error')}, {counted(len(results) - errors, 'warning')}{tail}"
    )
