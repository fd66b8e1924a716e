"""How a run came out: from Slurm's final state, the logs and the launcher to an exit code and a message. Pure.

Only what happened while the job ran counts: Slurm's state, the job's logs, and nodes that went down
in that time. A node that is down when somebody looks later says nothing about the job.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from toolkit import launchers
from toolkit.errors import JobLostError
from toolkit.launchers.shared.step_log import rank_failure
from toolkit.model.plan import Plan
from toolkit.model.report import Report
from toolkit.model.run import Failure, JobState, Outcome
from toolkit.runs import blame
from toolkit.runs.logs import Line, ranks
from toolkit.slurm.hostlist import expand

OVER_MEMORY = "the job used more memory"  # how the message of such an outcome begins
# What slurmstepd says of a step that took more than was asked for; without cgroups the job itself
# is only FAILED then.
_OVER_MEMORY = re.compile(r"slurmstepd.{0,300}(?:exceeded memory limit|oom[-_]kill)", re.IGNORECASE)
# What slurmstepd says on every node when slurmd ends a whole job: the node that says it need not be
# the one with too much.
_JOB_OVER_MEMORY = re.compile(r"slurmstepd.{0,300}: Exceeded job memory limit\s*$")
# What srun and slurmstepd write into the batch shell's log when the controller tells them that a
# node of the job is gone.
_NODE_FAILURE = re.compile(
    r"srun: error: Node failure on (?P<nodes>\S+)|CANCELLED AT \S+ DUE TO NODE FAILURE"
)
# As the shell's `timeout` and a shell's report of Ctrl-C have it.
TIMED_OUT, CANCELLED, KILLED = 124, 130, 137
_SIGNALS = 128  # exit codes above are signals


_UNKNOWN = 1 << 30  # after every rank that is known


def results(lines: Iterable[Line]) -> dict[str, Any]:
    """The last JSON object that a rank printed on a line of its own, the lowest rank's first; empty if there is none.

    Where ranks are not known by their lines, because a script forks them, the first node's.
    """
    found: dict[int, dict[str, Any]] = {}
    for entry in lines:
        text = entry.text.strip()
        if entry.host and text.startswith("{") and text.endswith("}"):
            try:
                data = json.loads(text)
            except ValueError:
                continue
            if isinstance(data, dict):
                found[_UNKNOWN if entry.rank is None else entry.rank] = data
    return found[min(found)] if found else {}


def headline(results: Mapping[str, Any], *, most: int = 3) -> str:
    """The first few results for one line: ``accuracy 0.961  loss 0.029``; all are in outcome.json."""
    shown = list(results.items())[:most]
    return "  ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in shown
    )


def outcome(
    plan: Plan,
    state: JobState,
    lines: Sequence[Line],
    unhealthy: Mapping[str, str],
    reports: Sequence[Report] = (),
) -> Outcome:
    """Derive a run's outcome.

    Args:
        plan: of the run.
        state: Slurm's final state of the job.
        lines: of the job's logs.
        unhealthy: nodes of the job that went down while it ran, and what Slurm says of them.
        reports: records that failing processes of the job have written.
    """
    failure = (
        None if state.state == "COMPLETED" else first_failure(plan.launch.launcher, lines, reports)
    )
    survives = "no-kill" in dict(
        plan.directives
    )  # of an elastic job a failed rank is the cause, not a node that it survived
    lost = {} if survives and failure else lost_nodes(state, lines, unhealthy)
    code, kind, message = _verdict(state, failure, lost, _over_memory(state, lines))
    return Outcome(
        state=state.state,
        exit_code=code,
        seconds=float(max(0, state.end - state.start)) if state.end and state.start else 0.0,
        nodes=state.nodes,
        ranks=ranks(lines),
        results=results(lines),
        failure=failure,
        message=message,
        unwell=lost if kind == "lost" else {},
        kind=kind,
    )


def first_failure(
    launcher: str, lines: Sequence[Line], reports: Sequence[Report]
) -> Failure | None:
    """Return the first failure of a run, from the records of its processes where they tell, else from its launcher's words."""
    hosts = ranks(lines)
    reported = [
        _located(failure, hosts) for failure in launchers.get(launcher).failures(_by_host(lines))
    ]
    found = blame.first(launcher, reports, reported) or next(iter(reported), None)
    return (
        found
        if found is None or found.words or found.exit_code <= _SIGNALS
        else _crashed(found, lines)
    )


def _crashed(failure: Failure, lines: Iterable[Line]) -> Failure:
    """Add where in the user's code a rank was killed, if Python's faulthandler has printed it."""
    place = blame.place_of_crash(line.text for line in lines if line.rank == failure.rank)
    name = blame.signal_name(failure.exit_code - _SIGNALS)
    text = failure.text + (f" ({name})" if name else "") + (f", {place}" if place else "")
    return replace(failure, text=text, place=place)


def mentions_node_failure(lines: Iterable[Line]) -> bool:
    """Return whether Slurm wrote into the batch shell's log that a node of the job failed."""
    return any(not line.host and _NODE_FAILURE.search(line.text) for line in lines)


def lost_nodes(
    state: JobState, lines: Iterable[Line], unhealthy: Mapping[str, str]
) -> dict[str, str]:
    """Return the nodes that ended the job, with what Slurm says of each; "" for a name where only the fact is known."""
    matches = [
        match for line in lines if not line.host and (match := _NODE_FAILURE.search(line.text))
    ]
    if state.state != "NODE_FAIL" and not (matches and state.state == "FAILED"):
        return {}
    named = {
        name: "failed while the job ran"
        for match in matches
        for name in _expanded(match["nodes"] or "")
    }
    return {**named, **unhealthy} or {"": f"a node of {state.nodes} failed"}


def _expanded(hosts: str) -> tuple[str, ...]:
    try:
        return expand(hosts)
    except ValueError:
        return ()


def _located(failure: Failure, hosts: Mapping[str, Sequence[int]]) -> Failure:
    """A rank of which only its number was told ran where its log comes from."""
    host = next((name for name, numbers in hosts.items() if failure.rank in numbers), None)
    return (
        failure
        if failure.host or host is None
        else rank_failure(failure.exit_code, failure.rank, host)
    )


def _by_host(lines: Iterable[Line]) -> list[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for entry in lines:
        found.setdefault(entry.host, []).append(entry.text)
    return list(found.items())


def _over_memory(state: JobState, lines: Sequence[Line]) -> str | None:
    """Return the hosts on which the job took too much memory, empty if they are not known; None if it did not."""
    hosts = sorted(
        {entry.host for entry in lines if entry.host and _OVER_MEMORY.search(entry.text)}
    )
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
    if state.state in ("TIMEOUT", "DEADLINE"):
        before = f"; before that, {failure.text}" if failure and failure.words else ""
        return TIMED_OUT, "timeout", f"the time limit was reached{before}"
    if state.state == "CANCELLED" and state.reason == "DependencyNeverSatisfied":
        return (
            CANCELLED,
            "cancelled",
            "it never started: what it was to run after did not end as it had to",
        )
    if state.state == "CANCELLED":
        return CANCELLED, "cancelled", "the job was cancelled"
    if lost:
        return (
            JobLostError.exit_code,
            "lost",
            "; ".join(_node_words(name, text) for name, text in sorted(lost.items())),
        )
    if over_memory is not None:
        where = f" on {over_memory}" if over_memory else ""
        step = "more --cpus-per-task brings more memory"
        return KILLED, "failed", f"{OVER_MEMORY}{where} than it was given; {step}"
    if failure is not None:
        return failure.exit_code, "failed", failure.text
    if state.signal:
        return 128 + state.signal, "failed", f"the batch script was ended by signal {state.signal}"
    return (
        state.exit_code or 1,
        "failed",
        f"the batch script ended with exit code {state.exit_code}",
    )


def _node_words(name: str, text: str) -> str:
    if not name:
        return text
    return f"node {name} {text}" if text.startswith("failed") else f"node {name} is {text}"
