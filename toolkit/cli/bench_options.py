"""The options of a scaling study on the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from toolkit.bench.scale.published import names
from toolkit.cli.bench_measure import Size
from toolkit.cli.options import LauncherOption
from toolkit.cli.shared import Decorator, completion, options


@completion
def _published() -> Iterable[str]:
    """Return the published results that --beside shows."""
    return names()


class Numbers(click.ParamType):  # type: ignore[type-arg]  # only generic in newer versions
    """Positive numbers with commas: ``1,2,4``."""

    name = "numbers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return the numbers, each once, in their order."""
        words = str(value).split(",")
        if not all(word.isascii() and word.isdigit() and int(word[:9]) > 0 for word in words):
            self.fail(f"{value!r} is not a list of numbers; an example is 1,2,4", param, ctx)
        return tuple(dict.fromkeys(int(word) for word in words))


class Argument(click.ParamType):  # type: ignore[type-arg]  # only generic in newer versions
    """An argument of the script with a number: ``batch-size=64``."""

    name = "argument"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Return the name without dashes, and the number."""
        name, _, number = str(value).partition("=")
        name = name.removeprefix("--")
        if not name or not number.isascii() or not number.isdigit() or not int(number[:18]):
            self.fail(f"{value!r} is not NAME=NUMBER; an example is batch-size=64", param, ctx)
        return name, int(number)


study_options: Decorator[Any] = options(
    click.option(
        "--nodes",
        "-N",
        type=Numbers(),
        metavar="N,N",
        help="Numbers of nodes to measure (default 1,2,4).",
    ),
    click.option(
        "--ntasks-per-node",
        type=Numbers(),
        metavar="N,N",
        help="Ranks on each node; several: each with each number of nodes (default: the job's).",
    ),
    click.option(
        "--launcher",
        cls=LauncherOption,
        metavar="NAME,NAME",
        help="Launchers to measure (default: the job's):",
    ),
    click.option(
        "--weak", is_flag=True, help="The same work for each rank at all sizes (default)."
    ),
    click.option("--strong", is_flag=True, help="The same work in all at all sizes."),
    click.option(
        "--divide",
        type=Argument(),
        metavar="NAME=TOTAL",
        multiple=True,
        help="With --strong: give the script --NAME with the total by the ranks. Repeatable.",
    ),
    click.option(
        "--multiply",
        type=Argument(),
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
        type=Size(),
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
    click.option(
        "--beside",
        metavar="NAME",
        multiple=True,
        shell_complete=_published,
        help="Show a published result in the report, such as horovod-2018; repeatable.",
    ),
)
