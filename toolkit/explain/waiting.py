"""Explain why a job waits in the queue, and what would change that. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_MOST = 6  # jobs that are shown
_UNAVAILABLE = re.compile(r"UnavailableNodes:(?P<nodes>[^,\s)]*(?:\[[^\]]*\])?[^,\s)]*)")
_UNFULFILLED = re.compile(r"\b(?P<kind>[a-z]{1,30}):(?P<job>\d{1,12})")


class Holder(NamedTuple):
    """A running job: its number, user, nodes, and the end of its time limit as Slurm prints it."""

    job: str
    user: str
    nodes: str
    end: str


class Facts(NamedTuple):
    """The facts about a waiting job, from Slurm.

    Attributes:
        job: fields of ``scontrol show job``.
        holders: running jobs of its partition.
        ahead: waiting jobs of its partition with a higher priority.
        nodes: nodes of its partition and their states.
        reservations: names of reservations, and their fields.
        slurm: what is written before Slurm's commands, where they need it.
        start: when Slurm expects the job to start; empty if it does not know.
    """

    job: Mapping[str, str]
    holders: Sequence[Holder] = ()
    ahead: int = 0
    nodes: Mapping[str, tuple[str, str]] = {}
    reservations: Mapping[str, Mapping[str, str]] = {}
    start: str = ""
    slurm: str = ""


class Line(NamedTuple):
    """A line for people: a subject and a text."""

    subject: str
    text: str


# Reason -> why the job waits, and what would change that. From job_reason_codes of Slurm's
# documentation; names that end in * begin so.
_REASONS: dict[str, tuple[str, str]] = {
    "JobHeldUser": (
        "you, or your script, hold it back",
        "{slurm}scontrol release {job} lets it go",
    ),
    "JobHeldAdmin": (
        "an administrator holds it back",
        "ask the administrator; only they can release it",
    ),
    "BeginTime": (
        "it is not to start before {eligible}",
        "nothing: it starts then; or submit it without --begin",
    ),
    "DependencyNeverSatisfied": (
        "it waits for a job that did not end as it had to: {dependency}",
        "it will never start: toolkit cancel {run}, and submit it again when that job is right",
    ),
    "PartitionTimeLimit": (
        "its time limit of {time} is longer than partition {partition} allows",
        "a shorter --time, or another --partition",
    ),
    "PartitionNodeLimit": (
        "its {count} are more than partition {partition} allows, or fewer",
        "other --nodes, or another --partition",
    ),
    "PartitionDown": (
        "partition {partition} is down",
        "another --partition; else it starts when the administrator brings it back",
    ),
    "PartitionInactive": (
        "partition {partition} starts no jobs now",
        "another --partition; else wait",
    ),
    "PartitionConfig": (
        "partition {partition} cannot give what it asks for",
        "compare it with `toolkit cluster show` and change nodes, GPUs or memory",
    ),
    "NodeDown": (
        "a node that it needs is down",
        "leave out --nodelist, or wait until the node is back",
    ),
    "BadConstraints": (
        "no node has what it asks for: {features}",
        "another --constraint, or fewer GPUs or less memory for a node",
    ),
    "Licenses": (
        "all licenses that it needs are in use",
        "nothing: it starts when some are given back",
    ),
    "JobArrayTaskLimit": (
        "as many elements of its array run as it allows itself",
        "a larger number behind the % of --array",
    ),
    "InvalidAccount": (
        "Slurm does not know its account {account}",
        "another --account: {slurm}sacctmgr show associations user=$USER",
    ),
    "InvalidQOS": ("Slurm does not know its QOS {qos}", "another --qos"),
    "ReservationDeleted": (
        "its reservation {reservation} does not exist any more",
        "submit it again without --reservation",
    ),
    "Cleaning": ("Slurm is still clearing up what ran before", "nothing: it takes some seconds"),
    "Prolog": ("its nodes are being prepared", "nothing: it takes some seconds"),
    "AssocGrpGRESMinutes*": (
        "account {account} has used up its GPU time",
        "another --account, or ask for more time",
    ),
    "AssocGrpCPUMinutes*": (
        "account {account} has used up its CPU time",
        "another --account, or ask for more time",
    ),
    "AssocMaxJobs*": (
        "account {account} allows you no more jobs at a time",
        "nothing: it starts when one of yours ends",
    ),
    "AssocGrp*": (
        "account {account} has reached its limit ({reason})",
        "it starts when jobs of the account end; or ask for less",
    ),
    "AssocMax*": (
        "it asks for more than account {account} allows ({reason})",
        "fewer nodes, GPUs or minutes",
    ),
    "QOSMaxJobsPerUser*": (
        "QOS {qos} allows you no more jobs at a time",
        "nothing: it starts when one of yours ends",
    ),
    "QOSMaxWallDuration*": (
        "its time limit of {time} is longer than QOS {qos} allows",
        "a shorter --time, or another --qos",
    ),
    "QOSMax*PerUser*": (
        "your jobs together have reached what QOS {qos} allows ({reason})",
        "it starts when some of yours end; or ask for less",
    ),
    "QOSMax*": (
        "it asks for more than QOS {qos} allows ({reason})",
        "fewer nodes, GPUs or minutes, or another --qos",
    ),
    "QOSGrp*": (
        "all jobs of QOS {qos} together have reached their limit ({reason})",
        "it starts when some of them end",
    ),
    "QOSMin*": (
        "it asks for less than QOS {qos} wants ({reason})",
        "more GPUs or nodes, or another --qos",
    ),
}


def explain(facts: Facts, run: str) -> list[Line]:
    """Return why a job waits, which jobs hold its resources, and what would change that."""
    reason = facts.job.get("Reason", "") or "None"
    words = _words(facts, run)
    if reason == "Dependency":
        why, change = (
            _dependency(facts.job.get("Dependency", "")),
            "it starts after that; to start it without them: "
            "{slurm}scontrol update job={job} dependency=",
        )
    elif reason.startswith("ReqNodeNotAvail") or reason == "Reservation":
        why, change = (
            _unavailable(facts, reason),
            "a time limit (--time) that ends before that, or other nodes (no --nodelist)",
        )
    elif reason in ("Resources", "Priority"):
        return _busy(facts, reason, words)
    elif reason == "None":
        why, change = "Slurm has not considered it yet", "nothing: it takes some seconds"
    else:
        why, change = _known(reason) or (
            "Slurm's reason is {reason}",
            "squeue's manual explains it: man squeue, JOB REASON CODES",
        )
    lines = [Line("waits", why.format_map(words)), Line("change", change.format_map(words))]
    return (
        lines if reason.startswith(("JobHeld", "DependencyNever")) else [*lines, *_expected(facts)]
    )


def _known(reason: str) -> tuple[str, str] | None:
    for name, explanation in _REASONS.items():
        if re.fullmatch(name.replace("*", ".{0,60}"), reason):
            return explanation
    return None


def _words(facts: Facts, run: str) -> dict[str, str]:
    job = facts.job
    number = job.get("NumNodes", "?").partition("-")[0]
    return {
        "run": run,
        "slurm": facts.slurm,
        "job": job.get("JobId", "?"),
        "reason": job.get("Reason", ""),
        "partition": job.get("Partition", "?"),
        "count": f"{number} node{'' if number == '1' else 's'}",
        "time": job.get("TimeLimit", "?"),
        "eligible": job.get("EligibleTime", "?"),
        "dependency": job.get("Dependency", ""),
        "features": job.get("Features", "?"),
        "account": job.get("Account", "?"),
        "qos": job.get("QOS", "?"),
        "reservation": job.get("Reservation", "?"),
    }


_AFTER = {
    "after": "to start",
    "afterok": "to end with 0",
    "afterany": "to end",
    "afternotok": "to fail",
    "aftercorr": "to end with 0, element by element",
    "afterburstbuffer": "to end",
}


def _dependency(text: str) -> str:
    jobs = [
        f"job {match['job']} {_AFTER.get(match['kind'], 'to end')}"
        for match in _UNFULFILLED.finditer(text)
    ]
    return _braceless(
        f"it waits for {' and '.join(jobs)}"
        if jobs
        else f"it waits for other jobs: {text or 'Slurm does not tell which'}"
    )


def _unavailable(facts: Facts, reason: str) -> str:
    match = _UNAVAILABLE.search(reason)
    which = (
        f"nodes that it needs are not available: {match['nodes']}"
        if match and match["nodes"]
        else "nodes that it needs are not available"
    )
    planned = [
        f"{'maintenance' if 'MAINT' in fields.get('Flags', '') else 'reservation'} {name} "
        f"of {fields.get('Nodes', '?')} "
        f"from {fields.get('StartTime', '?')} to {fields.get('EndTime', '?')}"
        for name, fields in facts.reservations.items()
    ]
    down = [
        f"{name} is {state}" + (f" ({why})" if why not in ("", "none") else "")
        for name, (state, why) in facts.nodes.items()
        if _is_out(state)
    ]
    return _braceless("; ".join((which, *planned[:_MOST], *down[:_MOST])))


def _braceless(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _is_out(state: str) -> bool:
    return bool(re.search(r"down|drain|fail|maint|reserved|not_responding", state, re.IGNORECASE))


def _busy(facts: Facts, reason: str, words: Mapping[str, str]) -> list[Line]:
    idle = sum(state.rstrip("*~#") == "idle" for state, _ in facts.nodes.values())
    out = sum(_is_out(state) for state, _ in facts.nodes.values())
    of = (
        f"{idle} of the {len(facts.nodes)} nodes of {words['partition']} "
        f"{'is' if idle == 1 else 'are'} idle"
        if facts.nodes
        else ""
    )
    more = f", {out} {'is' if out == 1 else 'are'} down or drained" if out else ""
    why = (
        f"it needs {words['count']}; {of}{more}"
        if of
        else f"it needs {words['count']} of {words['partition']} that are free"
    )
    lines = [Line("waits", why)]
    if reason == "Priority" or facts.ahead:
        lines.append(
            Line(
                "before it",
                f"{facts.ahead or 'other'} waiting job{'' if facts.ahead == 1 else 's'} "
                "with a higher priority",
            )
        )
    shown = facts.holders[:_MOST]
    lines += [
        Line("" if index else "held by", _holder(holder)) for index, holder in enumerate(shown)
    ]
    if len(facts.holders) > _MOST:
        lines.append(Line("", f"and {len(facts.holders) - _MOST} more jobs"))
    lines.append(
        Line(
            "change",
            "fewer --nodes or GPUs, a shorter --time (it may fit in a gap), "
            "or another --partition: toolkit cluster show",
        )
    )
    return [*lines, *_expected(facts)]


def _holder(holder: Holder) -> str:
    until = (
        ""
        if holder.end in ("", "N/A", "NONE", "Unknown")
        else f", until {holder.end} at the latest"
    )
    return f"job {holder.job} of {holder.user} on {holder.nodes}{until}"


def _expected(facts: Facts) -> list[Line]:
    return [Line("expected", f"Slurm expects it to start at {facts.start}")] if facts.start else []
