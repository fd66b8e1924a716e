"""The options of a scaling study on the command line."""

from __future__ import annotations

from typing import Any

import click

from toolkit.cli.bench_measure import size
from toolkit.cli.shared import Decorator, options
from toolkit.launchers import offered


def numbers(text: str) -> tuple[int, ...]:
    """Return positive numbers with commas, ``1,2,4``, each once, in their order."""
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() and int(word[:9]) > 0 for word in words):
        raise click.BadParameter(f"{text!r} is not a list of numbers; an example is 1,2,4")
    return tuple(dict.fromkeys(int(word) for word in words))


def argument(text: str) -> tuple[str, int]:
    """Return an argument of the script with a number, ``batch-size=64``, without dashes."""
    name, _, number = text.partition("=")
    name = name.removeprefix("--")
    if not name or not number.isascii() or not number.isdigit() or not int(number[:18]):
        raise click.BadParameter(f"{text!r} is not NAME=NUMBER; an example is batch-size=64")
    return name, int(number)


study_options: Decorator[Any] = options(
    click.option(
        "--nodes",
        "-N",
        type=numbers,
        metavar="N,N",
        help="Numbers of nodes to measure (default 1,2,4).",
    ),
    click.option(
        "--ntasks-per-node",
        type=numbers,
        metavar="N,N",
        help="Ranks on each node; several: each with each number of nodes (default: the job's).",
    ),
    click.option(
        "--launcher",
        metavar="NAME,NAME",
        help=f"Launchers to measure (default: the job's): {', '.join(offered())}.",
    ),
    click.option(
        "--weak", is_flag=True, help="The same work for each rank at all sizes (default)."
    ),
    click.option("--strong", is_flag=True, help="The same work in all at all sizes."),
    click.option(
        "--divide",
        type=argument,
        metavar="NAME=TOTAL",
        multiple=True,
        help="With --strong: give the script --NAME with the total by the ranks. Repeatable.",
    ),
    click.option(
        "--multiply",
        type=argument,
        metavar="NAME=VALUE",
        multiple=True,
        help="With --weak: give the script --NAME with the value times the ranks. Repeatable.",
    ),
    click.option(
        "--runs",
        "rounds",
        type=click.IntRange(1, 1000),
        help="How often each point is measured, in turns (default 3).",
    ),
    click.option(
        "--metric",
        metavar="KEY",
        help="The printed key to measure: a rate, or a time if it ends in seconds "
        "(default samples_per_second).",
    ),
    click.option(
        "--arguments",
        metavar="WORDS",
        help="More arguments of the script: --arguments '--epochs 3'.",
    ),
    click.option(
        "--gradient-size",
        type=size,
        help="Bytes that ranks add up in a step (default: as the optimizer's parameters have).",
    ),
    click.option(
        "--samples-per-epoch",
        type=click.IntRange(1),
        help="For hours per epoch, if the script prints neither samples_per_epoch nor epochs and "
        "seconds.",
    ),
    click.option(
        "--count-oversubscribed",
        metavar="REASON",
        help="Count points with more ranks than cores for speed-up and fits; the report has the "
        "reason.",
    ),
    click.option(
        "--no-hook",
        is_flag=True,
        help="Record no steps in the ranks: no communication share, stragglers and start-up.",
    ),
)
