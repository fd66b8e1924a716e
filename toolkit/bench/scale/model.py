"""The files of a scaling study: its options, its points, and the measurement of each run.

``report.json`` holds all of them, so that a study can be repeated and compared. Fields are never
renamed: reports of earlier versions stay readable.
"""

from __future__ import annotations

from itertools import product
from typing import Any, Literal

from toolkit.errors import UsageError
from toolkit.model.base import Stored
from toolkit.units import counted

Mode = Literal["strong", "weak"]
MOST_POINTS = 200


class Options(Stored, frozen=True, kw_only=True):
    """The options of a study.

    Attributes:
        target: a job's folder or a script, as the user named it.
        nodes: numbers of nodes.
        ntasks_per_node: numbers of ranks on each node; empty: as the job has it.
        modes: ``strong``: the work is the same at each size; ``weak``: the work of each rank is.
        launchers: of the ranks; empty: as the job has it.
        runs: how often each point is measured.
        metric: key of the printed value: a rate, or seconds if the name ends so.
        divide: argument of the script -> total, divided by the ranks in strong scaling.
        multiply: argument of the script -> value for one rank, multiplied in weak scaling.
        arguments: further arguments of the script at each point.
        job: further options of the job, as on the command line.
        gradient_size: bytes that ranks add up in a step; 0: measured in the script.
        samples_per_epoch: for the hours of an epoch; 0: taken from what the script prints.
        count_oversubscribed: the reason why points with more ranks than cores count; empty: they
            do not.
        hook: record the time of each step in the ranks.
    """

    target: str
    nodes: tuple[int, ...]
    ntasks_per_node: tuple[int, ...] = ()
    modes: tuple[Mode, ...] = ("weak",)
    launchers: tuple[str, ...] = ()
    runs: int = 3
    metric: str = "samples_per_second"
    divide: dict[str, int] = {}
    multiply: dict[str, int] = {}
    arguments: tuple[str, ...] = ()
    job: dict[str, Any] = {}
    gradient_size: int = 0
    samples_per_epoch: int = 0
    count_oversubscribed: str = ""
    hook: bool = True

    @property
    def is_time(self) -> bool:
        """Return whether the metric is a duration, of which less is better."""
        return self.metric == "seconds" or self.metric.endswith("_seconds")

    def points(self) -> tuple[Point, ...]:
        """Return all points of a study, the smallest first within each mode and launcher.

        Raises:
            UsageError: the options contradict each other.
        """
        if len(set(self.modes)) > 1 and not (self.divide or self.multiply):
            raise UsageError(
                "--strong and --weak would run the script with the same arguments",
                place="--strong --weak",
                next_step="name the argument that differs: --divide batch-size=64",
            )
        for name, mode in (("divide", "strong"), ("multiply", "weak")):
            if getattr(self, name) and mode not in self.modes:
                cause = f"--{name} changes arguments of {mode} scaling, which is not measured"
                raise UsageError(cause, place=f"--{name}", next_step=f"add --{mode}")
        nodes, ranks = {*self.nodes}, {*self.ntasks_per_node} or {0}
        modes, launchers = dict.fromkeys(self.modes), dict.fromkeys(self.launchers or ("",))
        count = len(nodes) * len(ranks) * len(launchers) * len(modes)
        if count > MOST_POINTS:
            cause = f"the study has {count} points; the limit is {MOST_POINTS}"
            raise UsageError(cause, place="--nodes", next_step="give fewer values")
        shapes = sorted(
            product(nodes, ranks), key=lambda shape: (shape[0] * max(shape[1], 1), shape[0])
        )
        return tuple(
            Point(mode=mode, launcher=launcher, nodes=shape[0], ntasks_per_node=shape[1])
            for mode, launcher, shape in product(modes, launchers, shapes)
        )

    def scaled_arguments(self, mode: Mode, ranks: int) -> tuple[str, ...]:
        """Return the arguments that depend on the number of ranks.

        Raises:
            UsageError: a total cannot be divided.
        """
        words: list[str] = []
        for name, total in self.divide.items() if mode == "strong" else ():
            if total % ranks:
                raise UsageError(
                    f"{total} cannot be divided by {counted(ranks, 'rank')}",
                    place=f"--divide {name}={total}",
                    next_step=f"--divide {name}={total * ranks}, or other sizes",
                )
            words += [f"--{name}", str(total // ranks)]
        for name, value in self.multiply.items() if mode == "weak" else ():
            words += [f"--{name}", str(value * ranks)]
        return tuple(words)


class Point(Stored, frozen=True, kw_only=True):
    """One size of a study, measured several times.

    Attributes:
        launcher: empty: the job's.
        ntasks_per_node: 0: the job's.
    """

    mode: Mode
    launcher: str
    nodes: int
    ntasks_per_node: int

    @property
    def key(self) -> str:
        """Return the name of the point in file names: ``weak-torchrun-2x4``."""
        ranks = self.ntasks_per_node or "job"
        return f"{self.mode}-{self.launcher or 'job'}-{self.nodes}x{ranks}"


class RankTimes(Stored, frozen=True, kw_only=True):
    """The steps of one rank after the warm-up.

    Attributes:
        steps: how many were recorded.
        step_seconds: mean time of a step.
        busy_seconds: of it, the time outside of collectives and of the backward pass, in which a
            rank may wait for others.
    """

    rank: int
    host: str
    steps: int
    step_seconds: float
    busy_seconds: float


class Straggler(Stored, frozen=True, kw_only=True):
    """Ranks on which all others wait.

    Attributes:
        busy_seconds: of the slowest of them, in a step.
        others_seconds: the median of all other ranks.
    """

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    busy_seconds: float
    others_seconds: float


class Communication(Stored, frozen=True, kw_only=True):
    """An all-reduce of the gradients, measured by the ranks of the run itself.

    Attributes:
        bytes: of the gradients of one rank.
        seconds: the median of the slowest rank.
        backend: the library.
    """

    bytes: int = 0
    seconds: float = 0.0
    backend: str = ""


class Sample(Stored, frozen=True, kw_only=True):
    """The measurement of one run.

    Attributes:
        point: key of the point.
        number: of the run at this point, from 1.
        name: of the run's directory.
        value: the metric in the steady state.
        values: how many values of the metric were printed.
        warm_up: values that were dropped as warm-up.
        nodes, ranks_per_node, gpus_per_node, cpus_per_rank: the job's shape.
        launcher: that started the ranks.
        oversubscribed: there are more ranks than cores, or than GPUs.
        start_seconds: from the first rank's start to the first step.
        step_seconds: of the steady state, by the slowest rank; 0: unknown.
        epoch_seconds: time of one epoch; 0: unknown.
        ranks: the ranks with recorded steps.
        nodelist: nodes of the job, as Slurm writes them.
        job_id: of its job; 0: unknown.
        ended: UTC, ISO 8601.
    """

    point: str
    number: int
    name: str
    value: float
    values: int = 1
    warm_up: int = 0
    nodes: int
    ranks_per_node: int
    gpus_per_node: int = 0
    cpus_per_rank: int = 1
    launcher: str = ""
    oversubscribed: bool = False
    start_seconds: float = 0.0
    step_seconds: float = 0.0
    epoch_seconds: float = 0.0
    straggler: Straggler | None = None
    communication: Communication = Communication()
    ranks: tuple[RankTimes, ...] = ()
    nodelist: str = ""
    job_id: int = 0
    ended: str = ""

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def units(self) -> tuple[int, str]:
        """Return the number and the name of what the job occupies: GPUs, else cores."""
        if self.gpus_per_node:
            return self.nodes * self.gpus_per_node, "GPU"
        return self.size * self.cpus_per_rank, "core"


class Study(Stored, frozen=True, kw_only=True):
    """``report.json``: a study with its measurements so far.

    Attributes:
        directory: of the study, as the user named it.
        origin: the software and the cluster that it is repeated with, by their names.
    """

    directory: str = ""
    options: Options
    origin: dict[str, str] = {}
    points: tuple[Point, ...] = ()
    samples: tuple[Sample, ...] = ()

    def of(self, point: Point) -> tuple[Sample, ...]:
        """Return the measurements of a point."""
        return tuple(sample for sample in self.samples if sample.point == point.key)
