"""The points of a study, and the settings of the job at each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from toolkit.bench.scale.model import Mode, Options, Point
from toolkit.errors import UsageError
from toolkit.model.plan import Plan
from toolkit.units import counted

MOST_POINTS = 200


def points(options: Options) -> tuple[Point, ...]:
    """Return all points of a study, the smallest first within each mode and launcher.

    Raises:
        UsageError: the options contradict each other.
    """
    _check(options)
    shapes = sorted(
        set(product(options.nodes, options.ntasks_per_node or (0,))),
        key=lambda shape: (shape[0] * max(shape[1], 1), shape[0]),
    )
    return tuple(
        Point(mode=mode, launcher=launcher, nodes=nodes, ntasks_per_node=ranks)
        for mode in dict.fromkeys(options.modes)
        for launcher in dict.fromkeys(options.launchers or ("",))
        for nodes, ranks in shapes
    )


def _check(options: Options) -> None:
    if len(set(options.modes)) > 1 and not (options.divide or options.multiply):
        raise UsageError(
            "--strong and --weak would run the script with the same arguments",
            place="--strong --weak",
            next_step="name the argument that differs: --divide batch-size=64",
        )
    for name, mode in (("divide", "strong"), ("multiply", "weak")):
        if getattr(options, name) and mode not in options.modes:
            cause = f"--{name} changes arguments of {mode} scaling, which is not measured"
            raise UsageError(cause, place=f"--{name}", next_step=f"add --{mode}")
    shapes = len(options.nodes) * max(len(options.ntasks_per_node), 1)
    count = shapes * max(len(options.launchers), 1) * len(options.modes)
    if count > MOST_POINTS:
        cause = f"the study has {count} points; the limit is {MOST_POINTS}"
        raise UsageError(cause, place="--nodes", next_step="give fewer values")


def turns(planned: Sequence[Point], runs: int) -> Iterator[tuple[Point, int]]:
    """Yield each point and the number of its run: all points once, then all again.

    A machine that gets slower meanwhile then slows every point, not the last one.
    """
    for number in range(1, runs + 1):
        for point in planned:
            yield point, number


def scaled_arguments(options: Options, mode: Mode, ranks: int) -> tuple[str, ...]:
    """Return the arguments that depend on the number of ranks.

    Raises:
        UsageError: a total cannot be divided.
    """
    words: list[str] = []
    if mode == "strong":
        for name, total in options.divide.items():
            if total % ranks:
                raise UsageError(
                    f"{total} cannot be divided by {counted(ranks, 'rank')}",
                    place=f"--divide {name}={total}",
                    next_step=f"--divide {name}={total * ranks}, or other sizes",
                )
            words += [f"--{name}", str(total // ranks)]
    else:
        for name, value in options.multiply.items():
            words += [f"--{name}", str(value * ranks)]
    return tuple(words)


def asked_hours(plan: Plan, minutes: int | None, runs: int) -> tuple[float, str]:
    """Return the most hours of GPUs or cores that the runs of a point may take, and the unit.

    Args:
        plan: of the job at this point.
        minutes: its time limit; None: the partition's, so that the hours are unknown (0).
        runs: how often it runs.
    """
    unit = "GPU" if plan.gpus_per_node else "core"
    amount = plan.gpus_per_node or plan.ranks_per_node * plan.cpus_per_rank
    return plan.nodes * amount * runs * (minutes or 0) / 60, unit
