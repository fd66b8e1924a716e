"""`python -m benchmarks.cli`: how long commands take, beside their peers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from benchmarks import cluster, comparisons, measure, peers
from benchmarks.measure import Outcome, Times, environment, ourselves
from toolkit.cli import console
from toolkit.cli.main import main
from toolkit.shell import Progress

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

    Whole processes are timed, in turns. Peers are installed into a directory of their own; a local
    cluster is brought up and taken down again. The exit code is 1 if a bar is missed.
    """
    with console.Steps() as steps:
        outcomes = run(only or NAMES, runs, steps)
    if as_json:
        import msgspec

        console.out_json(msgspec.to_builtins(outcomes))
    else:
        show(outcomes)
    context.exit(0 if all(outcome.held for outcome in outcomes) else 1)


def _milliseconds(times: Times) -> str:
    return f"{times.median * 1000:.0f} ms ({times.smallest * 1000:.0f}-{times.largest * 1000:.0f})"


def show(outcomes: list[Outcome]) -> None:
    """Print a line for each comparison, with its bar."""
    rows = [
        (
            outcome.what,
            _milliseconds(outcome.ours),
            f"{outcome.peer_name}: {_milliseconds(outcome.peer)}",
            f"{outcome.ratio.median:.2f} "
            f"({outcome.ratio.smallest:.2f}-{outcome.ratio.largest:.2f})",
            f"{outcome.bar:.1f}",
            "held" if outcome.held else "missed",
        )
        for outcome in outcomes
    ]
    console.out(console.table(("what", "ours", "peer", "ratio", "bar", ""), rows))
    runs = outcomes[0].runs
    console.out(
        f"Medians (smallest-largest) of {runs} runs of whole processes, in turns after a warm-up; "
        "the ratio is that of each pair."
    )


def run(names: Sequence[str], runs: int, progress: Progress) -> list[measure.Outcome]:
    """Measure the comparisons ``names``, ``runs`` times each.

    Raises:
        ToolkitError: a command that is compared failed, or could not be installed; nothing is
            judged then.
    """
    cache = peers.cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    peers.install(progress)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=cache, prefix="run-")))
        comparisons.prepare(directory)
        prefix: tuple[str, ...] = ()
        if comparisons.NEED_CLUSTER.intersection(names):
            prefix = stack.enter_context(cluster.running(progress, cwd=directory))
            stack.enter_context(cluster.busy(prefix))
        setting = comparisons.Setting(ourselves(), prefix, comparisons.image(directory))
        return [_measure(name, setting, runs, progress, directory) for name in names]


def _measure(
    name: str, setting: comparisons.Setting, runs: int, progress: Progress, cwd: Path
) -> measure.Outcome:
    comparison = comparisons.COMPARISONS[name](setting)
    progress.begin(name, f"{runs} runs and {runs} of {comparison.peer.name}")
    try:
        outcome = measure.measure(
            comparison,
            runs=runs,
            cwd=cwd,
            env=environment(os.environ, peers.cache_directory() / "byte-code"),
        )
    except BaseException:
        progress.end("stopped")
        raise
    progress.end()
    return outcome


if __name__ == "__main__":
    main(command, "python -m benchmarks.cli")
