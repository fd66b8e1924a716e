"""`toolkit doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from toolkit.cli.options import _images, complete_sites

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit.doctor.assemble import Wanted
    from toolkit.doctor.case import Case, Finding


_OUTCOME = len("not checked")


@click.command("doctor")
@click.option(
    "--site",
    default="auto",
    shell_complete=complete_sites,
    metavar="NAME",
    help="The cluster; default: as toolkit run has it.",
)
@click.option(
    "--image",
    shell_complete=_images,
    metavar="NAME|PATH",
    help="That your jobs use; what runs on nodes runs in it.",
)
@click.option(
    "--nodes",
    "-N",
    type=click.IntRange(min=1),
    help="Look at so many nodes, too: up to four short jobs, through Slurm.",
)
@click.option(
    "--gpus-per-node",
    "--gpus",
    "gpus",
    type=click.IntRange(min=1),
    help="GPUs on each of these nodes.",
)
@click.option("--partition", "-p", help="Of the cluster, for these jobs.")
@click.option("--time", "limit", default="5", show_default=True, help="Time limit of these jobs.")
@click.option("--comment", help="Slurm's comment, where the site wants one.")
@click.option("--account", "-A", help="Account that is charged.")
@click.option(
    "--dry-run", is_flag=True, help="Show the job that would look at the nodes, and stop."
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(
    site: str,
    image: str | None,
    nodes: int | None,
    gpus: int | None,
    partition: str | None,
    limit: str,
    comment: str | None,
    account: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Preflight: say what would keep jobs from running here, before they queue.

    Looks at this machine and at Slurm; with --nodes and --image also at nodes, from inside the image: GPUs, driver, names, ports, clocks,
    the network between them, and an all-reduce by Gloo, MPI and NCCL. Each item is PASS, WARN, FAIL or not checked, with the next step.
    Ends with 92 where one is FAIL.

    \b
    Examples:
      toolkit doctor
      toolkit doctor --nodes 2 --image pytorch_cpu
      toolkit doctor --site neuron --image pytorch_22.03 --nodes 2 --gpus-per-node 4
    """
    from pathlib import Path

    from toolkit.cli import console
    from toolkit.doctor import CHECKS, findings
    from toolkit.doctor.assemble import Wanted, assemble
    from toolkit.errors import PreflightError, UsageError

    if gpus and not nodes:
        step = f"--nodes 1 --gpus-per-node {gpus}"
        raise UsageError("GPUs are of nodes", place="--gpus-per-node", next_step=step)
    pairs = (("--time", limit), ("--comment", comment), ("--account", account))
    options = [word for option, value in pairs if value for word in (option, value)]
    wanted = Wanted(site, image, nodes or 0, gpus or 0, partition, options)
    case = assemble(wanted, Path.cwd())
    if dry_run:
        _dry_run(wanted, case)
        return
    if nodes:
        console.note(
            console.subject(
                "looking", f"at this machine, and by jobs at {nodes} node{'s' if nodes > 1 else ''}"
            )
        )
    width = max(map(len, CHECKS))
    found: list[Finding] = []
    for finding in findings(case):
        found.append(finding)
        if not as_json and finding.outcome != "not checked":
            _print(finding, width)
    if as_json:
        import msgspec

        console.out_json(
            {"site": case.site.name if case.site else None, "findings": msgspec.to_builtins(found)}
        )
    else:
        _print_unchecked(found)
    wrong = [one.name for one in found if one.outcome == "FAIL"]
    if wrong:
        raise PreflightError(
            f"{len(wrong)} of {len(found)} items would keep jobs from running",
            place=", ".join(wrong),
        )


def _dry_run(wanted: Wanted, case: Case) -> None:
    from toolkit.cli import console
    from toolkit.doctor.assemble import PROBE, probe_words
    from toolkit.quoting import shell_words

    if not case.nodes or case.image is None:
        console.note("no job would be run: it takes --nodes and --image")
        return
    console.out(shell_words(("toolkit", "run", *probe_words(wanted, case.image), str(PROBE))))
    console.note(
        "then, where the image has what it takes, a job each for an all-reduce by Gloo, MPI and NCCL"
    )


def _print(one: Finding, width: int) -> None:
    from toolkit.cli import console

    console.out(f"{one.outcome:<{_OUTCOME}}  {one.name:<{width}}  {one.detail}")
    if one.next_step:
        console.out(f"{'':<{_OUTCOME}}  {'':<{width}}  next: {one.next_step}")


def _print_unchecked(found: Sequence[Finding]) -> None:
    """Items that were not checked for one and the same reason share a line."""
    from toolkit.cli import console

    together: dict[tuple[str, str], list[str]] = {}
    for one in found:
        if one.outcome == "not checked":
            together.setdefault((one.detail, one.next_step), []).append(one.name)
    for (detail, step), names in together.items():
        console.out(
            f"{'not checked':<{_OUTCOME}}  {', '.join(names)}: {detail}{f' ({step})' if step else ''}"
        )
