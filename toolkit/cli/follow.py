"""Print the states and lines of a run while it goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from toolkit.cli import console
from toolkit.cli.outcome import show_explanation, show_outcome
from toolkit.model.base import to_json
from toolkit.model.plan import Plan
from toolkit.records.store import Paths
from toolkit.runs import follow as events
from toolkit.runs import logs
from toolkit.slurm.client import Client
from toolkit.slurm.hostlist import expand
from toolkit.units import human_time

DETACHED = 130  # as a shell reports Ctrl-C: the job's own exit code is not known yet
_SECOND_CTRL_C = 3.0  # seconds in which a second Ctrl-C means the job


def is_worth_showing(line: logs.Line) -> bool:
    """Return whether a line is shown by default."""
    return not logs.is_noise(line.text)


def follow_run(
    client: Client,
    paths: Paths,
    plan: Plan,
    job_id: int,
    *,
    as_json: bool = False,
    wanted: Callable[[logs.Line], bool] = is_worth_showing,
) -> int:
    """Show a run until its job has ended, and return its exit code; Ctrl-C detaches, twice cancels.

    Args:
        wanted: tells which lines of the logs are shown.
    """
    try:
        return show(client, paths, plan, job_id, as_json=as_json, wanted=wanted)
    except KeyboardInterrupt:
        return _interrupted(client, paths, job_id)


def _interrupted(client: Client, paths: Paths, job_id: int) -> int:
    console.note("")
    console.note(
        console.subject(
            "detached",
            f"job {job_id} goes on; Ctrl-C again within {_SECOND_CTRL_C:.0f} s cancels it",
        )
    )
    console.note(
        console.subject(
            "", f"back: toolkit logs -f {paths.word}     end it: toolkit cancel {paths.word}"
        )
    )
    try:
        time.sleep(_SECOND_CTRL_C)
    except KeyboardInterrupt:
        client.cancel(job_id)
        console.note("")
        console.note(
            console.subject(
                "cancelled", f"job {job_id}; its logs are kept: toolkit logs {paths.word}"
            )
        )
    return DETACHED


def show(
    client: Client,
    paths: Paths,
    plan: Plan,
    job_id: int,
    *,
    as_json: bool,
    wanted: Callable[[logs.Line], bool] = is_worth_showing,
) -> int:
    """Show a run until its job has ended, and return its exit code."""
    began = time.monotonic()
    say = console.note if as_json else console.out
    unreachable, queued = False, False
    for event in events.follow(client, paths, plan, job_id):
        if isinstance(event, logs.Line):
            if wanted(event):
                say(f"{event.label or 'batch'}| {event.text}")
        elif isinstance(event, events.Changed):
            unreachable = False
            if not queued and event.state.state != "PENDING":  # it started before the first query
                console.note(
                    console.subject(
                        "queued", f"job {job_id}, partition {event.state.partition}; it has started"
                    )
                )
            queued = True
            _show_state(event, job_id, time.monotonic() - began)
        elif isinstance(event, events.Unreachable):
            if not unreachable:
                console.note(
                    console.subject("waiting", f"{event.error.cause}; asking again for ten minutes")
                )
            unreachable = True
        else:
            if plan.points and not as_json:
                from toolkit.cli.results import table

                console.out(table(plan.points, event.points))
            show_outcome(event, paths)
            if event.kind != "ok":
                show_explanation(paths)
            if as_json:
                console.out_json(
                    {
                        "run": paths.name,
                        "directory": str(paths.directory),
                        "job_id": job_id,
                        **json.loads(to_json(event)),
                    }
                )
            return event.exit_code
    raise AssertionError("a run that is followed ends with an outcome")


def _show_state(event: events.Changed, job_id: int, passed: float) -> None:
    state = event.state
    if state.state == "PENDING":
        reason = "" if state.reason in ("", "None") else f"; waits: {state.reason}"
        start = f"; expected start {event.expected_start}" if event.expected_start else ""
        console.note(
            console.subject("queued", f"job {job_id}, partition {state.partition}{reason}{start}")
        )
    elif state.state == "RUNNING":
        console.note(
            console.subject(
                "running", f"{' '.join(expand(state.nodes)):<56} {human_time(passed):>8}"
            )
        )
