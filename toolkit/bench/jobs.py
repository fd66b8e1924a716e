"""Run a job for a measurement: plan, submit and follow it to its end, as `toolkit run` does."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from toolkit import scripts
from toolkit.api.run import Adapt, CompletedRun, complete, unchanged
from toolkit.config import package_directory
from toolkit.model.run import Plan
from toolkit.planning.case import gather
from toolkit.planning.plan import decide
from toolkit.planning.settings import Layer
from toolkit.runs.logs import Line, is_noise
from toolkit.runs.run import Run
from toolkit.runs.status import Changed, Event
from toolkit.slurm.client import PATIENCE, Wait, patiently

Inform = Callable[[str, str], None]
HOOK = package_directory("bench/inside") / "toolkit_bench.py"


class FailedRunError(Exception):
    """A job of a measurement has ended, and failed."""

    def __init__(self, ran: CompletedRun) -> None:
        super().__init__(ran.run.name)
        self.ran = ran


def place_hook(plan: Plan, records: str) -> None:
    """Put the module that measures in the ranks into a run, and make the folder of its records."""
    run = Run(Path(plan.run_directory))
    (run.directory / records).mkdir(exist_ok=True)
    if plan.reports:  # the ranks may be Python
        shutil.copyfile(HOOK, run.reports / HOOK.name)


def script_of(target: str, settings: Layer, cwd: Path, *, adapt: Adapt = unchanged) -> str:
    """Return the script that would be submitted.

    Raises:
        ToolkitError: it could not be planned.
    """
    return scripts.script(decide(adapt(gather(target, settings, cwd))))


def run(
    target: str,
    settings: Layer,
    cwd: Path,
    say: Inform,
    *,
    adapt: Adapt = unchanged,
    on_plan: Callable[[Plan], object] = bool,
) -> CompletedRun:
    """Run a job to its end.

    Args:
        target: a script or a job's folder.
        settings: the topmost layer of its settings.
        cwd: the directory where the run's own is made.
        say: called for each event with a subject and a text; a rank's lines have its number as the
            subject.
        adapt: changes the case of the plan.
        on_plan: called once the run's directory is written, before its job is submitted.

    Raises:
        ToolkitError: it could not be planned, submitted or followed. A job that fails is no error:
            see ``outcome``.
        KeyboardInterrupt: the job was cancelled then, because its measurement would be incomplete.
    """
    wait = Wait(PATIENCE, lambda text: say("waiting", text))
    case = patiently(lambda: gather(target, settings, cwd), wait)

    def planned(plan: Plan) -> None:
        launcher, image = plan.launch.launcher, plan.container.shown
        say("plan", f"{plan.name}: {plan.shape}, {launcher}, {image}, site {plan.site}")
        on_plan(plan)

    return complete(
        case,
        wait,
        adapt=adapt,
        on_plan=planned,
        on_event=lambda event: report(event, say),
        on_cancel=lambda job_id: say("cancelled", f"job {job_id}"),
    )


def report(event: Event, say: Inform) -> None:
    """Pass on a state of the job, or a line of its ranks that is neither noise nor JSON."""
    if isinstance(event, Changed):
        state = event.state
        say(state.state.lower(), f"job {state.job_id} {state.nodes}".rstrip())
    elif isinstance(event, Line) and not (is_noise(event.text) or event.text.startswith("{")):
        say(event.label, event.text)
