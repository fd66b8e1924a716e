"""`toolkit bench cli`: how long commands take, beside their peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from toolkit.cli import console

if TYPE_CHECKING:
    from toolkit.bench.measure import Outcome, Times

NAMES = ("plan", "render", "submit")


@click.command("cli")
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=15,
    show_default=True,
    help="Runs of each side, in turns.",
)
@click.option(
    "--only",
    type=click.Choice(NAMES),
    multiple=True,
    help="Only this comparison; may be given again.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(context: click.Context, runs: int, only: tuple[str, ...], as_json: bool) -> None:
    """Compare the speed of our commands with the field's.

    \b
      plan    toolkit run --dry-run    and  torchx run -s slurm --dryrun
      render  toolkit image render     and  hpccm --format singularity
      submit  toolkit run --detach     and  a submit by submitit

    Whole processes are timed, in turns. Peers are installed into a directory of their own; a local cluster is brought up
    and taken down again. Ends with 1 where a bar is missed.
    """
    from toolkit.bench import session

    with console.Steps() as steps:
        outcomes = session.run(only or NAMES, runs, steps)
    if as_json:
        import msgspec

        console.out_json(msgspec.to_builtins(outcomes))
    else:
        show(outcomes)
    context.exit(0 if all(outcome.held for outcome in outcomes) else 1)


def _milliseconds(times: Times) -> str:
    return f"{times.median * 1000:.0f} ms ({times.smallest * 1000:.0f}-{times.largest * 1000:.0f})"


def show(outcomes: list[Outcome]) -> None:
    """A line for each comparison, with its bar."""
    rows = [
        (
            outcome.what,
            _milliseconds(outcome.ours),
            f"{outcome.peer_name}: {_milliseconds(outcome.peer)}",
            f"{outcome.ratio.median:.2f} ({outcome.ratio.smallest:.2f}-{outcome.ratio.largest:.2f})",
            f"{outcome.bar:.1f}",
            "held" if outcome.held else "missed",
        )
        for outcome in outcomes
    ]
    console.out(console.table(("what", "ours", "peer", "ratio", "bar", ""), rows))
    runs = outcomes[0].runs
    console.out(
        f"Medians (smallest-largest) of {runs} runs of whole processes, in turns after a warm-up; the ratio is that of each pair."
    )
