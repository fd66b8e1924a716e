"""`toolkit bench launch`: what our scripts and the container cost, beside scripts by hand and training without a container."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from toolkit.cli import console

if TYPE_CHECKING:
    from toolkit.bench.measure import Outcome, Times

NAMES = ("srun", "torchrun")


@click.command("launch")
@click.option(
    "--image",
    metavar="NAME|PATH",
    default="pytorch_cpu",
    show_default=True,
    help="The image of both sides.",
)
@click.option(
    "--launcher", type=click.Choice(NAMES), multiple=True, help="Only this one; may be given again."
)
@click.option(
    "--throughput",
    is_flag=True,
    help="Also training by 2 ranks, in the container and in a venv with the same packages (700 MB, once).",
)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=7,
    show_default=True,
    help="Jobs of each side, in turns.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    image: str, launcher: tuple[str, ...], throughput: bool, runs: int, as_json: bool
) -> int:
    """Time from `sbatch` to the first all-reduce that is done, 2 nodes x 1 rank: our script and one written by hand, in the same image.

    \b
      srun      ours by --launcher srun      and  srun apptainer exec ... python3
      torchrun  ours by --launcher torchrun  and  srun apptainer exec ... torchrun

    \b
    Examples:
      toolkit bench launch
      toolkit bench launch --launcher srun --runs 15 --json
      toolkit bench launch --throughput

    The scripts by hand are in toolkit/bench/handwritten. A local cluster is brought up and taken down again.
    Ends with 1 where a bar is missed.
    """
    from toolkit.bench import launch

    with console.Steps() as steps:
        outcomes = launch.run(image, launcher or NAMES, runs, steps, throughput=throughput)
    if as_json:
        import msgspec

        console.out_json(msgspec.to_builtins(outcomes))
    else:
        show(outcomes)
    return 0 if all(outcome.held for outcome in outcomes) else 1


def show(outcomes: list[Outcome]) -> None:
    """A line for each comparison: times of launches, samples a second of trainings, both as the ratio that has a bar."""
    console.out(
        console.table(
            ("what", "ours", "peer", "ratio (pairs)", "bar", ""),
            [_row(outcome) for outcome in outcomes],
        )
    )
    runs = outcomes[0].runs
    console.out(
        f"Medians (smallest-largest) of {runs} jobs of each side, in turns after a warm-up; the ratio is that of the medians."
    )


def _row(outcome: Outcome) -> tuple[str, ...]:
    trained = outcome.what == "training"
    shown = _samples if trained else _seconds
    ratio, bar = outcome.ratio, outcome.bar
    return (
        outcome.what,
        f"{outcome.ours_name}: {shown(outcome.ours)}" if trained else shown(outcome.ours),
        f"{outcome.peer_name}: {shown(outcome.peer)}",
        f"{1 / ratio.median:.3f} ({1 / ratio.largest:.3f}-{1 / ratio.smallest:.3f})"
        if trained
        else f"{ratio.median:.3f} ({ratio.smallest:.3f}-{ratio.largest:.3f})",
        f"at least {1 / bar:.2f}" if trained else f"at most {bar:.2f}",
        "held" if outcome.held else "missed",
    )


def _seconds(times: Times) -> str:
    return f"{times.median:.2f} s ({times.smallest:.2f}-{times.largest:.2f})"


def _samples(times: Times) -> str:
    return f"{1 / times.median:.1f} samples/s ({1 / times.largest:.1f}-{1 / times.smallest:.1f})"
