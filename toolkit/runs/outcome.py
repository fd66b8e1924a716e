"""Derive how a job came out from Slurm's final state, its logs and its ranks' records; record it.

Only what happened while the job ran counts: Slurm's state, the job's logs, and nodes that went down
in that time. A node that is down later is not evidence about the job.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from toolkit import launchers
from toolkit.errors import ConfigError, JobLostError
from toolkit.files import write_atomically
from toolkit.launchers.failures import rank_failure, reader
from toolkit.launchers.torch import SPAWN
from toolkit.model.base import to_json
from toolkit.model.run import Failure, JobState, Outcome, Plan, PointOutcome, Process
from toolkit.runs import records
from toolkit.runs.logs import History, Line, excerpt, history
from toolkit.runs.run import Log, Run
from toolkit.slurm.hostlist import expand, task_ids
from toolkit.units import counted, signal_of

OVER_MEMORY = "the job used more memory"  # the beginning of the message of such an outcome
# slurmstepd's message about a step that took more memory than it has, or about a process of it,
# such as a worker of a data loader; without cgroups the job itself is only FAILED then.
_OVER_MEMORY = re.compile(
    r"slurmstepd.{0,300}(?:exceeded memory limit|oom[-_ ]kill)", re.IGNORECASE
)
# slurmstepd's message on every node when slurmd ends a whole job, also on nodes that took less.
_JOB_OVER_MEMORY = re.compile(r"slurmstepd.{0,300}: Exceeded job memory limit\s*$")
# Messages of srun and slurmstepd in the batch shell's log when the controller reports a lost node.
_NODE_FAILURE = re.compile(
    r"srun: error: Node failure on (?P<nodes>\S+)|CANCELLED AT \S+ DUE TO NODE FAILURE"
)
# As the program `timeout`, and a shell after Ctrl-C, report it.
TIMED_OUT, CANCELLED, KILLED = 124, 130, 137
_MOST_ELEMENTS = 100_000  # of an array
_AT_LIMIT = ("TIMEOUT", "DEADLINE")
_UNKNOWN = 1 << 30  # after every rank that is known


def results(lines: Iterable[Line]) -> dict[str, Any]:
    """Return the last JSON object that the lowest rank printed on its own line; empty without one.

    If lines do not tell their ranks, because a script forks them, the last line with one counts.
    """
    by_rank: dict[int, dict[str, Any]] = {}
    for entry in lines:
        text = entry.text.strip()
        if entry.host and text.startswith("{") and text.endswith("}"):
            try:
                data = json.loads(text)
            except ValueError:
                continue
            if isinstance(data, dict):
                by_rank[_UNKNOWN if entry.rank is None else entry.rank] = data
    return by_rank[min(by_rank)] if by_rank else {}


def headline(results: Mapping[str, Any]) -> str:
    """Format the first results: ``accuracy 0.961  loss 0.029``; outcome.json has all of them."""
    shown = list(results.items())[:3]
    return "  ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in shown
    )


def outcome(
    plan: Plan,
    state: JobState,
    lines: Sequence[Line],
    unhealthy: Mapping[str, str],
    processes: Sequence[Process] = (),
    logs: Sequence[Log] = (),
) -> Outcome:
    """Derive a run's outcome.

    Args:
        plan: of the run.
        state: Slurm's final state of the job.
        lines: of the job's logs.
        unhealthy: nodes of the job that went down while it ran, and Slurm's states of them.
        processes: of the job's last attempt, with their failures.
        logs: of the job.
    """
    has_failed = state.state != "COMPLETED"
    tasks = logs if plan.launch.task_is_rank else ()
    ranks = _ranks([*lines, *processes], tasks)
    failure = first_failure(plan.launch.launcher, lines, processes, ranks) if has_failed else None
    if failure and not failure.words and state.state in (*_AT_LIMIT, "CANCELLED"):
        failure = None  # Slurm has ended it
    # The cause of an elastic job's failure is a failed rank, not a node whose loss it survived.
    survives = "no-kill" in dict(plan.directives)
    lost = {} if survives and failure else lost_nodes(state, lines, unhealthy)
    code, kind, message = _verdict(state, failure, lost, _over_memory(state, lines))
    return Outcome(
        state=state.state,
        exit_code=code,
        seconds=float(max(0, state.end - state.start)) if state.end and state.start else 0.0,
        nodes=state.nodes,
        ranks=ranks,
        results=results(lines),
        failure=failure,
        message=message,
        unhealthy=lost if kind == "lost" else {},
        kind=kind,
    )


def _ranks(known: Iterable[Line | Process], logs: Iterable[Log]) -> dict[str, tuple[int, ...]]:
    """Return the ranks by host, both in order: those that printed, wrote a file, or have a log."""
    by_host = defaultdict[str, set[int]](set)
    pairs = [*((each.host, each.rank) for each in known), *((log.host, log.task) for log in logs)]
    for host, rank in pairs:
        if rank is not None and host:
            by_host[host].add(rank)
    return {
        host: tuple(sorted(numbers))
        for host, numbers in sorted(by_host.items(), key=lambda item: min(item[1]))
    }


def first_failure(
    launcher: str,
    lines: Sequence[Line],
    processes: Sequence[Process],
    hosts: Mapping[str, Sequence[int]],
) -> Failure | None:
    """Return the first failure of a run, from its processes' records or its launcher.

    Args:
        launcher: name of the run's launcher.
        lines: of the job's logs.
        processes: of the job, with their failures.
        hosts: the ranks on each host.
    """
    by_host = defaultdict[str, list[str]](list)
    for line in lines:
        by_host[line.host].append(line.text)
    host_of = {rank: host for host, ranks in hosts.items() for rank in ranks}
    reported = [
        rank_failure(failure.exit_code, failure.rank, host_of[failure.rank])
        if failure.rank in host_of and not failure.host
        else failure
        for failure in reader(launchers.get(launcher)).of_logs([*by_host.items()])
    ]
    failure = records.first(launcher, processes, reported) or next(iter(reported), None)
    if failure is None or failure.words or not signal_of(failure.exit_code):
        return failure
    # A rank that was killed: faulthandler may have printed where.
    place = records.place_of_crash(line.text for line in lines if line.rank == failure.rank)
    return replace(failure, text=f"{failure.text}, {place}", place=place) if place else failure


def lost_nodes(
    state: JobState, lines: Iterable[Line], unhealthy: Mapping[str, str]
) -> dict[str, str]:
    """Return the nodes that ended the job, with Slurm's state of each; "" for an unknown name."""
    matches = [
        match for line in lines if not line.host and (match := _NODE_FAILURE.search(line.text))
    ]
    if state.state != "NODE_FAIL" and not (matches and state.state == "FAILED"):
        return {}
    nodes = dict[str, str]()
    for match in matches:
        with suppress(ValueError):  # it is no list of hosts
            nodes |= dict.fromkeys(expand(match["nodes"] or ""), "failed while the job ran")
    return {**nodes, **unhealthy} or {"": f"a node of {state.nodes} failed"}


def is_over_memory(text: str) -> bool:
    """Return whether slurmstepd reports in a line that a step took too much memory."""
    return bool(_OVER_MEMORY.search(text))


def _over_memory(state: JobState, lines: Sequence[Line]) -> str | None:
    """Return the hosts on which the job took too much memory, or None; empty if not known."""
    hosts = sorted({line.host for line in lines if line.host and is_over_memory(line.text)})
    is_over = (
        hosts
        or state.state == "OUT_OF_MEMORY"
        or any(_JOB_OVER_MEMORY.search(entry.text) for entry in lines)
    )
    return ", ".join(hosts) if is_over else None


def _verdict(
    state: JobState, failure: Failure | None, lost: Mapping[str, str], over_memory: str | None
) -> tuple[int, Any, str]:
    if state.state == "COMPLETED":
        return 0, "ok", ""
    if state.state in _AT_LIMIT:
        before = f"; before that, {failure.text}" if failure else ""
        return TIMED_OUT, "timeout", f"the time limit was reached{before}"
    if state.state == "CANCELLED":
        is_late = state.reason == "DependencyNeverSatisfied"
        text = "it never started: a job that it depends on did not end as required"
        return CANCELLED, "cancelled", text if is_late else "the job was cancelled"
    if lost:
        texts = [
            f"node {name} {'' if text.startswith('failed') else 'is '}{text}" if name else text
            for name, text in sorted(lost.items())
        ]
        return JobLostError.exit_code, "lost", "; ".join(texts)
    if over_memory is not None:
        where = f" on {over_memory}" if over_memory else ""
        step = "more --cpus-per-task brings more memory"
        return KILLED, "failed", f"{OVER_MEMORY}{where} than it was given; {step}"
    if failure is not None:
        return failure.exit_code, "failed", failure.text
    if state.signal:
        return 128 + state.signal, "failed", f"the batch script was ended by signal {state.signal}"
    text = f"the batch script ended with exit code {state.exit_code}"
    return state.exit_code or 1, "failed", text


def finish(run: Run, state: JobState) -> Outcome:
    """Derive the outcome of a job that has ended, and write it into a run of the caller.

    Where it cannot be written, the next command derives it again.
    """
    plan, past = run.plan, history(run)
    processes = records.read(run) if plan.reports else []
    if plan.array:
        came_out = _of_array(run, state, past, processes)
    else:
        last = records.latest(processes, plan, past.last.get(None))
        came_out = _of_job(run, state, run.logs_of(run.job_id), past, last)
        if came_out.kind == "ok":
            text = records.apart_text(last, plan)
            came_out = replace(came_out, message=text, kind="apart") if text else came_out
            came_out = _with_children(came_out, plan, last)
    run.outcome = replace(came_out, attempts=past.attempts)
    with suppress(OSError):  # a full disk must not hide how a run came out
        if run.is_own:
            write_atomically(run.directory / "outcome.json", to_json(run.outcome, sort=False))
    return run.outcome


def _with_children(came_out: Outcome, plan: Plan, processes: Sequence[Process]) -> Outcome:
    """Return the outcome of a script that exits with 0 although ranks failed that it forked."""
    failed = [each for each in processes if any(record.kind == "child" for record in each.records)]
    failure = records.first(plan.launch.launcher, failed, ())
    if failure is None or plan.launch.launcher != SPAWN.name:
        return came_out
    text = f"{failure.text}; it exited with 0 all the same"
    return replace(came_out, kind="failed", failure=failure, message=text)


def _of_job(
    run: Run,
    state: JobState,
    given: Sequence[Log],
    past: History,
    processes: Sequence[Process],
) -> Outcome:
    lines = excerpt(run, given, past)
    may_be_lost = state.nodes and state.state in ("NODE_FAIL", "FAILED")
    unhealthy = run.client.unhealthy_nodes(state.nodes, state.start) if may_be_lost else {}
    own = [log for log in given if log.attempt == past.last.get(log.element, log.attempt)]
    return outcome(run.plan, state, lines, unhealthy, processes, () if run.plan.array else own)


def _of_array(run: Run, state: JobState, past: History, processes: Sequence[Process]) -> Outcome:
    """Derive the outcome of each element of an array, and of the array from the first failure."""
    states = run.client.elements(state.job_id)
    points = read_elements(run, states, past, processes, ended=True)
    first = next(
        (point.number for point in points if point.exit_code != 0),
        points[0].number if points else None,
    )
    own = records.by_element(processes).get(first, [])
    last = records.latest(own, run.plan, past.last.get(first))
    given = [log for log in run.logs_of(run.job_id) if log.element == first]
    came_out = _of_job(run, state, given, past, last)
    counts = summary(points, "point" if run.plan.points else "element")
    message = counts if came_out.kind in ("ok", "failed") else f"{came_out.message}; {counts}"
    return replace(came_out, points=points, results={}, message=message)


def read_elements(
    run: Run,
    states: Mapping[int, JobState],
    past: History,
    processes: Sequence[Process],
    *,
    ended: bool,
) -> tuple[PointOutcome, ...]:
    """Read the outcome of each element; only one element's logs are in memory at a time.

    Args:
        run: the array.
        states: Slurm's states by element, as far as they are known.
        past: the attempts of each element.
        processes: of the job, with their failures.
        ended: the array has ended: an element without a state never started, or is forgotten.
    """
    grouped = groupby(run.logs_of(run.job_id), lambda log: log.element)
    logs_of = {element: [*logs] for element, logs in grouped}
    processes_of = records.by_element(processes)
    numbers = sorted({*states, *task_ids(dict(run.plan.directives).get("array", ""))})
    if len(numbers) > _MOST_ELEMENTS:
        raise ConfigError(
            f"the array has {len(numbers)} elements; at most {_MOST_ELEMENTS} are read",
            place=str(run.directory / "plan.json"),
            next_step="ask Slurm: sacct",
        )
    return tuple(
        _point(
            run,
            number,
            states.get(number),
            logs_of.get(number, ()),
            past,
            processes_of.get(number, ()),
            ended=ended,
        )
        for number in numbers
    )


def _point(
    run: Run,
    number: int,
    state: JobState | None,
    given: Sequence[Log],
    past: History,
    processes: Sequence[Process],
    *,
    ended: bool,
) -> PointOutcome:
    has_ended = state is not None and state.ended
    if not has_ended and not ended:
        return PointOutcome(number=number, state=state.state if state else "PENDING")
    if not has_ended and not given:
        return PointOutcome(
            number=number, state="CANCELLED", exit_code=CANCELLED, message="it never started"
        )
    lines = excerpt(run, given, past)
    if state is None or not state.ended:
        return PointOutcome(
            number=number,
            state="UNKNOWN",
            results=results(lines),
            message="Slurm no longer knows how it ended",
        )
    last = records.latest(processes, run.plan, past.last.get(number))
    came_out = outcome(run.plan, state, lines, {}, last)
    return PointOutcome(
        number=number,
        state=came_out.state,
        exit_code=came_out.exit_code,
        seconds=came_out.seconds,
        results=came_out.results,
        message=came_out.message,
    )


def failed_points(outcomes: Sequence[PointOutcome]) -> list[int]:
    """Return the numbers of the points that have ended and did not succeed."""
    return [point.number for point in outcomes if point.exit_code not in (0, None)]


def summary(outcomes: Sequence[PointOutcome], noun: str) -> str:
    """Return a line such as ``4 points: 3 done, 1 failed (2)``.

    Args:
        outcomes: of all elements.
        noun: ``point``, or ``element`` for an array that is not a sweep.
    """
    failed = failed_points(outcomes)
    unknown = [point.number for point in outcomes if point.state == "UNKNOWN"]
    waiting = sum(point.exit_code is None for point in outcomes) - len(unknown)
    parts = [f"{len(outcomes) - len(failed) - waiting - len(unknown)} done"]
    parts += [f"{waiting} to come"] if waiting else []
    parts += [f"{len(unknown)} unknown ({','.join(map(str, unknown))})"] if unknown else []
    parts += [f"{len(failed)} failed ({','.join(map(str, failed))})"] if failed else []
    return f"{counted(len(outcomes), noun)}: {', '.join(parts)}"
