"""Measure the points of a study, one run after the other, and take up where it was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from toolkit import __version__, git
from toolkit.bench import jobs
from toolkit.bench.scale.directory import StudyDirectory
from toolkit.bench.scale.measuring import Measuring
from toolkit.bench.scale.model import Options, Origin, Point, Study
from toolkit.bench.scale.point_run import adapted, layer, now
from toolkit.bench.scale.points import asked_hours, points, turns
from toolkit.model.case import Case
from toolkit.model.plan import Plan
from toolkit.planning.case import gather as gather_case
from toolkit.planning.plan import decide
from toolkit.slurm.failures import configured_wait, patiently


class PlannedPoint(NamedTuple):
    """A point that could run, and the most that its runs take."""

    point: Point
    plan: Plan
    hours: float
    unit: str


def plan_points(options: Options, cwd: Path, say: jobs.Inform) -> tuple[list[PlannedPoint], Origin]:
    """Plan every point, so that one that cannot run is refused before the first is submitted.

    Returns:
        The points, and the software and cluster that they run on.

    Raises:
        ToolkitError: a point could not run, or the options contradict each other.
    """
    planned: list[PlannedPoint] = []
    origin = Origin()
    wait = configured_wait(lambda text: say("waiting", text))
    for point in points(options):
        gather = partial(gather_case, options.target, layer(options, point), cwd)
        case = patiently(gather, wait)
        case = adapted(options, point, case)
        decided = decide(case)
        if not planned:
            origin = _origin(case, patiently(case.client.version, wait))
        hours, unit = asked_hours(decided, case.minutes, options.runs)
        planned.append(PlannedPoint(point, decided, hours, unit))
    return planned, origin


def _origin(case: Case, slurm: str) -> Origin:
    manifest, script = case.manifest, case.script_file
    return Origin(
        image=Path(case.image.path).name,
        image_digest=(manifest.partition or manifest.sif_id) if manifest else "",
        lock=manifest.locked if manifest else "",
        commit=_commit(Path(case.target.folder)),
        script=script.path if script else case.target.script,
        script_sha256=script.sha256 if script else "",
        site=case.site.name,
        slurm=slurm,
        toolkit=__version__,
        began=now(),
    )


def _commit(folder: Path) -> str:
    """Return git's commit of a folder, with ``+`` if tracked files differ; empty without git."""
    tree = git.top(folder)
    state = git.state(tree) if tree else None
    return f"{state.commit}{'+' if state.is_changed else ''}" if state and state.commit else ""


def measure(
    options: Options,
    planned: Sequence[PlannedPoint],
    origin: Origin,
    directory: StudyDirectory,
    cwd: Path,
    say: jobs.Inform,
    on_sample: Callable[[Study], object] = bool,
) -> Study:
    """Measure all points that are not measured yet.

    Args:
        on_sample: called with the study after each measurement, to write its report.

    Raises:
        FailedRunError: a run failed.
        ToolkitError: one could not be submitted or followed, or printed no metric.
        KeyboardInterrupt: the job in progress was cancelled; all finished ones are kept.
    """
    chosen = [entry.point for entry in planned]
    study = directory.begin(options, origin, chosen)
    schedule = list(turns(chosen, options.runs))
    missing = [turn for turn in schedule if not directory.sample_file(*turn).is_file()]
    # Runs of an interrupted study come first: their job may still be running.
    missing.sort(key=lambda turn: directory.run_in_progress(*turn) is None)
    plans = {entry.point: entry.plan for entry in planned}
    measuring = Measuring(options, directory, cwd, say, plans)
    with measuring.cancelling():
        for count, (point, number) in enumerate(missing, len(schedule) - len(missing) + 1):
            say("point", f"{count} of {len(schedule)}: {point.key}, run {number}")
            taken = measuring.sample_of(point, number)
            directory.keep(point, taken)
            say("value", f"{options.metric} {taken.value:.6g}")
            on_sample(replace(study, samples=directory.read_samples()))
    return replace(study, samples=directory.read_samples())
