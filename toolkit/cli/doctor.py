"""`toolkit doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from toolkit.checks import Result, row, to_json
from toolkit.cli import console
from toolkit.cli.lazy import cluster_option
from toolkit.cli.shared import (
    complete_images,
    gpus_option,
    json_option,
    node_job_options,
    site_option,
)
from toolkit.doctor.case import DoctorCase
from toolkit.doctor.gather import DoctorOptions, gather, probe_command
from toolkit.doctor.items import ITEMS, diagnose
from toolkit.errors import PreflightError, UsageError
from toolkit.quoting import shell_words
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
@click.option(
    "--dry-run", is_flag=True, help="Show the job that would examine the nodes, and stop."
)
@json_option
@cluster_option()
def command(
    site: str,
    image: str | None,
    nodes: int | None,
    gpus: int | None,
    dry_run: bool,
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
        step = f"--nodes 1 --gpus-per-node {gpus}"
        raise UsageError(
            "--gpus-per-node needs --nodes: GPUs are counted on nodes",
            place="--gpus-per-node",
            next_step=step,
        )
    settings = {key: value for key, value in job_options.items() if value}
    options = DoctorOptions(site, image, nodes or 0, gpus or 0, settings)
    case = gather(options, Path.cwd())
    if dry_run:
        _dry_run(options, case)
        return
    results = _show(case, as_json=as_json)
    failures = [result.name for result in results if result.outcome == "failed"]
    if failures:
        raise PreflightError(
            f"{len(failures)} of {len(results)} items would keep jobs from running",
            place=", ".join(failures),
        )


def _show(case: DoctorCase, *, as_json: bool) -> list[Result]:
    """Print each result as soon as it is known; those that were not checked come last."""
    if case.nodes:
        jobs = f"this machine, and {counted(case.nodes, 'node')} through jobs"
        console.say("checking", jobs)
    width = max(len(item.name) for item in ITEMS)
    results = []
    for result in diagnose(case):
        results.append(result)
        if not as_json and result.outcome != "unchecked":
            for line in row(result, width):
                console.out(line)
    if as_json:
        site = case.site.name if case.site else None
        console.out_json({"site": site, "findings": [to_json(each) for each in results]})
    else:
        _show_unchecked(results)
    return results


def _dry_run(options: DoctorOptions, case: DoctorCase) -> None:
    if not case.nodes or case.image is None:
        console.note("no job would run; next: add --nodes and --image")
        return
    console.out(shell_words(probe_command(options, case.image)))
    console.note(
        "then, if the image has what it takes, a job each for an all-reduce by Gloo, MPI and NCCL"
    )


def _show_unchecked(results: Sequence[Result]) -> None:
    """Print the items that were not checked; those with one reason share a line."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if result.outcome == "unchecked":
            by_reason.setdefault((result.message, result.fix), []).append(result.name)
    for (reason, step), names in by_reason.items():
        advice = f" ({step})" if step else ""
        console.out(f"not checked  {', '.join(names)}: {reason}{advice}")
