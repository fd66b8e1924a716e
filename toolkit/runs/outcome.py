"""How a run came out: from Slurm's last word, the logs and the launcher to an exit code and a sentence. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toolkit import launchers
from toolkit.errors import JobLostError
from toolkit.launchers.common import failed
from toolkit.model.plan import Plan
from toolkit.model.run import Failure, JobState, Outcome
from toolkit.runs.logs import Line, ranks

# What slurmstepd says of a step that took more than was asked for; without cgroups the job itself is only FAILED then.
_OVER_MEMORY = re.compile(r"slurmstepd.*(?:exceeded memory limit|oom[-_]kill)", re.IGNORECASE)
# As the shell's `timeout` and a shell's report of Ctrl-C have it.
TIMED_OUT, CANCELLED, KILLED = 124, 130, 137


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
    return "  ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in shown)


def outcome(plan: Plan, state: JobState, lines: Sequence[Line], unwell: Mapping[str, str]) -> Outcome:
    """Put together what is known.

    Args:
        plan: of the run.
        state: Slurm's last word.
        lines: every line of every log.
        unwell: nodes of the job that are down or do not answer, and what Slurm says of them.
    """
    failure = None if state.state == "COMPLETED" else launchers.get(plan.launch.launcher).first_failure(_by_host(lines))
    failure = _located(failure, ranks(lines)) if failure else None
    code, kind, message = _verdict(state, failure, unwell, _over_memory(lines))
    return Outcome(
        state=state.state,
        exit_code=code,
        seconds=float(max(0, state.end - state.start)) if state.end and state.start else 0.0,
        nodes=state.nodes,
        ranks=ranks(lines),
        results=results(lines),
        failure=failure,
        message=message,
        unwell=dict(unwell),
        kind=kind,
    )


def _located(failure: Failure, hosts: Mapping[str, Sequence[int]]) -> Failure:
    """A rank of which only its number was told ran where its log comes from."""
    host = next((name for name, numbers in hosts.items() if failure.rank in numbers), None)
    return failure if failure.host or host is None else failed(failure.exit_code, failure.rank, host)


def _by_host(lines: Iterable[Line]) -> list[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for entry in lines:
        found.setdefault(entry.host, []).append(entry.text)
    return list(found.items())


def _over_memory(lines: Iterable[Line]) -> str:
    hosts = sorted({entry.host for entry in lines if entry.host and _OVER_MEMORY.search(entry.text)})
    return ", ".join(hosts)


def _verdict(state: JobState, failure: Failure | None, unwell: Mapping[str, str], over_memory: str) -> tuple[int, Any, str]:
    down = "; ".join(f"node {name} is {text}" for name, text in sorted(unwell.items()))
    if state.state == "COMPLETED":
        return 0, "ok", ""
    if state.state == "NODE_FAIL" or (down and state.state != "TIMEOUT"):
        return JobLostError.exit_code, "lost", down or f"a node of {state.nodes} failed"
    if state.state == "TIMEOUT":
        return TIMED_OUT, "timeout", "the time limit was reached"
    if state.state == "CANCELLED" and state.reason == "DependencyNeverSatisfied":
        return CANCELLED, "cancelled", "it never started: what it was to run after did not end as it had to"
    if state.state == "CANCELLED":
        return CANCELLED, "cancelled", "the job was cancelled"
    if state.state == "OUT_OF_MEMORY" or over_memory:
        where = f" on {over_memory}" if over_memory else ""
        return KILLED, "failed", f"the job used more memory{where} than it was given; more --cpus-per-task brings more memory"
    if failure is not None:
        return failure.exit_code, "failed", failure.text
    if state.signal:
        return 128 + state.signal, "failed", f"the batch script was ended by signal {state.signal}"
    return state.exit_code or 1, "failed", f"the batch script ended with exit code {state.exit_code}"
