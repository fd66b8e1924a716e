"""Run a job for a measurement: plan, submit and follow it to its end, as `toolkit run` does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from toolkit.localcluster.access import local_name
from toolkit.model.plan import Plan
from toolkit.model.run import Outcome
from toolkit.planning.inputs import Inputs
from toolkit.planning.settings import Layer
from toolkit.records.store import Paths
from toolkit.runs import follow, logs
from toolkit.runs.submit import gather_run, submit, write

Inform = Callable[[str, str], None]
Adapt = Callable[[Inputs], Inputs]


def _as_it_is(given: Inputs) -> Inputs:
    return given


class Ran(NamedTuple):
    """A job that has ended.

    Attributes:
        lines: all that its ranks printed.
    """

    paths: Paths
    plan: Plan
    outcome: Outcome
    lines: list[logs.Line]


def script_of(target: str, settings: Layer, cwd: Path, *, adapt: Adapt = _as_it_is) -> str:
    """Return the script that would be submitted.

    Raises:
        ToolkitError: it could not be planned.
    """
    from toolkit import scripts
    from toolkit.planning.plan import plan

    return scripts.script(plan(adapt(gather_run(target, settings, cwd).inputs)))


def run(target: str, settings: Layer, cwd: Path, say: Inform, *, adapt: Adapt = _as_it_is) -> Ran:
    """Run a job to its end.

    Args:
        target: a script or a job's folder.
        settings: the topmost layer of its settings.
        cwd: the directory where the run's own is made.
        say: called for each event with a subject and a text; a rank's lines have its number as the
            subject.
        adapt: changes the inputs of the plan.

    Raises:
        ToolkitError: it could not be planned, submitted or followed. A job that fails is no error:
            see ``outcome``.
        KeyboardInterrupt: the job was cancelled then, because its measurement would be incomplete.
    """
    inputs, client = gather_run(target, settings, cwd)
    paths, decided = write(adapt(inputs))
    say(
        "plan",
        f"{decided.name}: {decided.shape}, {decided.launch.launcher}, {decided.container.shown}, "
        f"site {decided.site}",
    )
    cluster = local_name(inputs.site)
    job_id = submit(paths, decided, client, cluster).job_id
    try:
        for event in follow.follow(client, paths, decided, job_id):
            if (
                isinstance(event, logs.Line)
                and not logs.is_noise(event.text)
                and not event.text.startswith("{")
            ):
                say(event.label or "batch", event.text)
            elif isinstance(event, follow.Changed):
                say(event.state.state.lower(), f"job {job_id} {event.state.nodes}".rstrip())
            elif isinstance(event, Outcome):
                return Ran(paths, decided, event, list(follow.all_lines(paths, decided, job_id)))
    except KeyboardInterrupt:
        client.cancel(job_id)
        say("cancelled", f"job {job_id}")
        raise
    raise AssertionError("a run that is followed ends with an outcome")
