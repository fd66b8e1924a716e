"""Derive the outcome of a run from Slurm's final state, its logs and the node states. Pure.

Only what happened while the job ran counts: Slurm's state, the job's logs, and nodes that went down
in that time. A node that is down later is not evidence about the job.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from toolkit import launchers
from toolkit.errors import JobLostError
from toolkit.launchers.failures import rank_failure
from toolkit.model.plan import Plan
from toolkit.model.run import Failure, JobState, Outcome, Process
from toolkit.runs import blame
from toolkit.runs.logs import Line
from toolkit.runs.run import Log
from toolkit.slurm.hostlist import expand
from toolkit.units import signal_of

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


def headline(results: Mapping[str, Any], *, most: int = 3) -> str:
    """Format the first results: ``accuracy 0.961  loss 0.029``; outcome.json has all of them."""
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
        for failure in launchers.get(launcher).failures([*by_host.items()])
    ]
    failure = blame.first(launcher, processes, reported) or next(iter(reported), None)
    if failure is None or failure.words or not signal_of(failure.exit_code):
        return failure
    # A rank that was killed: faulthandler may have printed where.
    place = blame.place_of_crash(line.text for line in lines if line.rank == failure.rank)
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
    if state.state == "CANCELLED" and state.reason == "DependencyNeverSatisfied":
        return (
            CANCELLED,
            "cancelled",
            "it never started: a job that it depends on did not end as required",
        )
    if state.state == "CANCELLED":
        return CANCELLED, "cancelled", "the job was cancelled"
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
    return (
        state.exit_code or 1,
        "failed",
        f"the batch script ended with exit code {state.exit_code}",
    )
