"""Print the states and lines of a run, its outcome, and why it failed; `toolkit explain`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from toolkit.cli import console
from toolkit.cli.shared import (
    DETACHED,
    INTERRUPTED,
    cluster_option,
    complete_runs,
    json_option,
    points_table,
    runs_option,
)
from toolkit.errors import ToolkitError
from toolkit.explain import gather, waiting
from toolkit.explain.explanation import NO_FAILURE, explain
from toolkit.explain.match import Evidence, Explanation, Match
from toolkit.model.base import to_json
from toolkit.model.job import JOINED
from toolkit.model.run import JobAttempt, JobState, Outcome
from toolkit.runs import logs, status
from toolkit.runs.outcome import headline
from toolkit.runs.run import Run, find
from toolkit.slurm.hostlist import expand
from toolkit.units import human_time

_MOST_HOSTS, _MOST_RANKS = 64, 8  # that are named one by one
_WORTH_SECONDS = 300.0  # shorter runs waste little
_SECOND_CTRL_C = 3.0  # seconds in which a second Ctrl-C means the job


def is_worth_showing(line: logs.Line) -> bool:
    """Return whether a line is shown by default."""
    return not logs.is_noise(line.text)


def follow_run(
    run: Run, *, as_json: bool = False, wanted: Callable[[logs.Line], bool] = is_worth_showing
) -> int:
    """Show a run until its job has ended, and return its exit code; Ctrl-C detaches, twice cancels.

    Args:
        run: that was submitted.
        as_json: the outcome is printed for programs.
        wanted: tells which lines of the logs are shown.
    """
    try:
        return show(run, as_json=as_json, wanted=wanted)
    except KeyboardInterrupt:
        return _interrupted(run) if run.is_own else DETACHED


def _interrupted(run: Run) -> int:
    """Print how to go on with a run that is not followed any more; cancel it by a second Ctrl-C."""
    again = f"Ctrl-C again within {_SECOND_CTRL_C:.0f} s cancels it"
    steps = f"follow again: toolkit logs -f {run.word}     cancel: toolkit cancel {run.word}"
    try:  # a second Ctrl-C may come before the messages have been printed
        console.note("")
        console.say("detached", f"job {run.job_id} continues; {again}")
        console.say("", steps)
        time.sleep(_SECOND_CTRL_C)
    except KeyboardInterrupt:
        run.client.cancel(run.job_id)
        console.note("")
        console.say("cancelled", f"job {run.job_id}; its logs are kept: toolkit logs {run.word}")
        return INTERRUPTED  # as of every job that was cancelled
    return DETACHED  # the job's own exit code is not known yet


def show(run: Run, *, as_json: bool, wanted: Callable[[logs.Line], bool] = is_worth_showing) -> int:
    """Show a run until its job has ended, and return its exit code."""
    say = console.note if as_json else console.out

    def show_line(line: logs.Line) -> None:
        if wanted(line):
            say(f"{line.label}| {line.text}")

    outcome = watch(run, show_line)
    if outcome is None:
        raise AssertionError("a run that is followed ends with an outcome")
    show_end(run, outcome, as_json=as_json)
    return outcome.exit_code


def watch(
    run: Run,
    show_line: Callable[[logs.Line], None] = lambda _: None,
    until: Callable[[], bool] = lambda: False,
) -> Outcome | None:
    """Print the states of a run, and return its outcome when its job has ended.

    Args:
        run: that was submitted.
        show_line: takes each line of the logs.
        until: tells whether to stop before the end; there is no outcome then.
    """
    began = time.monotonic()
    is_queued = False
    for event in status.follow(run):
        if isinstance(event, logs.Line):
            show_line(event)
        elif isinstance(event, status.Changed):
            if not is_queued and event.state.state == "RUNNING":  # it began before the first query
                job = f"job {run.job_id}, partition {event.state.partition}"
                console.say("queued", f"{job}; it has started")
            is_queued = True
            show_state(event, time.monotonic() - began)
        elif isinstance(event, status.Notice):
            console.say(*event)
        else:
            return event
        if until():
            break
    return None


def show_end(run: Run, outcome: Outcome, *, as_json: bool) -> None:
    """Print how a run came out, and why it failed."""
    if run.plan.points and not as_json:
        console.out(points_table(run.plan.points, outcome.points))
    show_outcome(outcome, run)
    if run.is_own and not run.has_ended:
        console.say("", "the outcome could not be recorded; make room there, and see ls -ld")
    if run.is_own:
        leave_results(run)
    if outcome.kind != "ok":
        show_explanation(run)
    if outcome.seconds >= _WORTH_SECONDS and run.is_own:
        show_waste(run)
    if as_json:
        job = {"run": run.name, "directory": str(run.directory), "job_id": run.job_id}
        console.out_json({**job, **json.loads(to_json(outcome))})


def show_waste(run: Run) -> None:
    """Print in one line what a run was given and did not use, if that is much."""
    from toolkit.runs import efficiency  # most runs are short

    with suppress(ToolkitError, OSError):
        known = efficiency.measure(run, seconds=10)
        texts = [text for is_bad, text in efficiency.advise(known, run.plan) if is_bad]
        if texts:
            console.say("unused", f"{texts[0]}; all of it: toolkit report {run.word}")


def show_state(event: status.Changed, passed: float) -> None:
    """Print a new state of a job, or why it waits."""
    state = event.state
    if state.state == "PENDING":
        reason = "" if state.reason in ("", "None") else f"; waits: {state.reason}"
        start = f"; expected start {event.expected_start}" if event.expected_start else ""
        console.say("queued", f"job {state.job_id}, partition {state.partition}{reason}{start}")
    elif state.state == "RUNNING":
        hosts = expand(state.nodes)
        nodes = " ".join(hosts) if len(hosts) <= _MOST_HOSTS else state.nodes
        console.say("running", f"{nodes:<56} {human_time(passed):>8}")


def leave_results(run: Run) -> None:
    """Leave the result for the instructor if a workshop was joined here, with consent."""
    directory = run.directory.parent.parent
    if not (directory / JOINED).is_file():
        return
    from toolkit.workshops.results import leave  # most runs are of no workshop

    try:
        target = leave(directory)
    except ToolkitError as error:
        console.say("workshop", f"{error.cause}; {error.next_step}")
        return
    if target is not None:
        console.say("workshop", f"results of the exercises left in {target}")


def show_outcome(outcome: Outcome, run: Run) -> None:
    """Print the outcome of a run, where its ranks were, and the next commands."""
    word = "done" if outcome.kind == "ok" else outcome.kind
    message = outcome.message or headline(outcome.results)
    console.say(word, f"{human_time(outcome.seconds)}  exit {outcome.exit_code}  {message}")
    places = [f"rank {','.join(map(str, ranks))} {host}" for host, ranks in outcome.ranks.items()]
    if 0 < len(places) <= _MOST_HOSTS:
        console.say("", "   ".join(places))
    show_attempts(outcome.attempts)
    directory = os.path.relpath(run.directory)
    if outcome.points and outcome.kind != "ok":
        again = f"run the failed points again: toolkit run --failed {directory}"
        console.say("", f"results: toolkit results {run.word}     {again}")
    console.say("", f"logs: toolkit logs {run.word}     again: toolkit run {directory}")


def show_attempts(attempts: Sequence[JobAttempt]) -> None:
    """Print the attempts of a run that was requeued."""
    for index, line in enumerate(logs.describe(attempts) if len(attempts) > 1 else ()):
        console.say("" if index else "attempts", line)


def show_explanation(run: Run) -> None:
    """Print why a run failed, as far as the rules know.

    A rule of the user's that is broken does not hide the outcome.
    """
    try:
        lines = lines_of(explain(gather.of_run(run), gather.rules()))
    except ToolkitError as error:
        lines = [console.subject("explain", f"{error.cause} ({error.place})")]
    console.note("")
    for line in lines:
        console.note(line)


def lines_of(explanation: Explanation) -> list[str]:
    """Format an explanation: the first failure, the cause, the fix, the confidence."""
    if explanation.first == NO_FAILURE:
        rows = [("result", explanation.first)]
    elif explanation.match is None:
        rows = [
            ("first", explanation.first),
            ("failed", explanation.reported),
            ("cause", "not known: no rule matches. The earliest lines that look like errors:"),
            *(("", line) for line in explanation.suspicious or ("none",)),
        ]
        if explanation.every_line:
            rows.append(("next", f"{explanation.every_line} shows everything"))
    else:
        rows = _cause_rows(explanation, explanation.match)
    rows += [("" if number else "stacks", text) for number, text in enumerate(explanation.stacks)]
    rows.append(("searched", explanation.searched))
    return [console.subject(name, text) for name, text in rows if text]


def _cause_rows(explanation: Explanation, match: Match) -> list[tuple[str, str]]:
    line, ranks = match.line, match.ranks
    if line in explanation.first or line in match.cause:
        line = ""
    batch = "batch" if explanation.every_line else ""  # in a pasted log it is unknown
    source = str(match.rank) if match.rank is not None else match.host or batch
    some = (
        f"{', '.join(map(str, ranks[:_MOST_RANKS]))}{', ...' if len(ranks) > _MOST_RANKS else ''}"
    )
    rows = [
        ("first", explanation.first),
        ("failed", explanation.reported),
        ("code", explanation.source),
        ("cause", match.cause),
        ("line", f"{source}| {line}" if source and line else line),
        ("last", explanation.last),
        ("ranks", f"{len(ranks)} printed it: {some}" if len(ranks) > 1 else ""),
        *(("or" if number else "fix", text) for number, text in enumerate(match.fix)),
        ("confidence", f"{match.sure} (rule {match.rule}; {match.source})"),
    ]
    if explanation.suspicious:
        rows.append(("lines", "the earliest that look like errors:"))
    return [*rows, *(("", text) for text in explanation.suspicious)]


@click.command("explain")
@click.argument("what", required=False, metavar="[RUN|LOGFILE]", shell_complete=complete_runs)
@json_option
@runs_option
@cluster_option
def explain_command(what: str | None, as_json: bool, runs: Path) -> None:
    """Explain why a run failed or waits, and what to do.

    RUN is a run's name, directory or job id (default: the newest run). LOGFILE is any log file, and
    "-" is standard input; for these no cluster is queried.

    \b
    Examples:
      toolkit explain
      toolkit explain train-0007
      toolkit explain slurm-4711.out
      toolkit explain - < pasted.log
    """
    evidence, run, state = _evidence(what, runs)
    if run is not None and state is not None and state.state == "PENDING":
        reasons = waiting.explain(run)
        listed = [{"subject": subject, "text": text} for subject, text in reasons]
        pending = {"state": "PENDING", "reason": state.reason, "lines": listed}
        shown = "\n".join(console.subject(*row) for row in reasons)
        console.result(pending, shown, as_json=as_json)
        console.say("docs", "toolkit docs run/pending")
        return
    outcome = run.outcome if run is not None else None
    if outcome is not None and outcome.kind == "ok":
        console.note("this run succeeded; there is nothing to explain")
        show_attempts(outcome.attempts)
        return
    explanation = explain(evidence, gather.rules())
    lines = lines_of(explanation)
    if run is not None and outcome is None:
        silence = status.silence_text(run)
        lines.append(console.subject("", "the run has not ended"))
        lines += [console.subject("silent", silence)] if silence else []
    console.result(msgspec.to_builtins(explanation), "\n".join(lines), as_json=as_json)
    if outcome is not None:
        show_attempts(outcome.attempts)


def _evidence(what: str | None, runs: Path) -> tuple[Evidence, Run | None, JobState | None]:
    """Return the evidence; if it is of a run, also that, and its state in Slurm."""
    if what == "-":
        return gather.of_stream(sys.stdin.buffer), None, None
    if what is not None and Path(what).is_file():
        return gather.of_file(Path(what)), None, None
    run = find(what, runs)
    state = status.query(run)
    return gather.of_run(run), run, state
