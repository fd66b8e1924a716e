"""Explain why a job waits in the queue, and what would change that. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from toolkit.units import counted

_MOST = 6  # jobs that are shown
_UNAVAILABLE = re.compile(r"UnavailableNodes:(?P<nodes>[^,\s)\[]+(?:\[[^\]]*\])?[^,\s)]*)")
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


_OTHER_NODES = "a time limit (--time) that ends before that, or other nodes (no --nodelist)"
# Reason -> why the job waits, and what would change that. From job_reason_codes of Slurm's
# documentation; * stands for any letters.
_REASONS: dict[str, tuple[str, str]] = {
    "None": ("Slurm has not considered it yet", "nothing: it takes some seconds"),
    "Dependency": (
        "it waits for {jobs}",
        "it starts after that; to start it without them: "
        "{slurm}scontrol update job={job} dependency=",
    ),
    "Reservation": ("{unavailable}", _OTHER_NODES),
    "ReqNodeNotAvail*": ("{unavailable}", _OTHER_NODES),
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


_AFTER = {
    "after": "to start",
    "afterok": "to end with 0",
    "afternotok": "to fail",
    "aftercorr": "to end with 0, element by element",
}
_UNKNOWN = (
    "Slurm's reason is {reason}",
    "squeue's manual explains it: man squeue, JOB REASON CODES",
)


def explain(facts: Facts, run: str) -> list[Line]:
    """Return why a job waits, which jobs hold its resources, and what would change that."""
    reason = facts.job.get("Reason", "") or "None"
    names = _names(facts, run)
    if reason in ("Resources", "Priority"):
        lines = list(_busy(facts, reason, names))
    else:
        known = (text for name, text in _REASONS.items() if fnmatchcase(reason, name))
        why, change = next(known, _UNKNOWN)
        lines = [Line("waits", why.format_map(names)), Line("change", change.format_map(names))]
    is_expected = facts.start and not reason.startswith(("JobHeld", "DependencyNever"))
    expected = Line("expected", f"Slurm expects it to start at {facts.start}")
    return [*lines, expected] if is_expected else lines


def _names(facts: Facts, run: str) -> dict[str, str]:
    """Return the values of the placeholders in the table of reasons."""
    job = facts.job
    number = job.get("NumNodes", "?").partition("-")[0]
    return {
        "run": run,
        "slurm": facts.slurm,
        "job": job.get("JobId", "?"),
        "reason": job.get("Reason", ""),
        "partition": job.get("Partition", "?"),
        "count": counted(int(number), "node") if number.isdecimal() else f"{number} nodes",
        "time": job.get("TimeLimit", "?"),
        "eligible": job.get("EligibleTime", "?"),
        "dependency": job.get("Dependency", ""),
        "jobs": _dependency(job.get("Dependency", "")),
        "unavailable": _unavailable(facts),
        "features": job.get("Features", "?"),
        "account": job.get("Account", "?"),
        "qos": job.get("QOS", "?"),
        "reservation": job.get("Reservation", "?"),
    }


def _dependency(text: str) -> str:
    jobs = [
        f"job {match['job']} {_AFTER.get(match['kind'], 'to end')}"
        for match in _UNFULFILLED.finditer(text)
    ]
    return " and ".join(jobs) or f"other jobs: {text or 'Slurm does not tell which'}"


def _unavailable(facts: Facts) -> str:
    """Return the nodes that Slurm calls unavailable, planned reservations, and nodes down."""
    match = _UNAVAILABLE.search(facts.job.get("Reason", ""))
    which = "nodes that it needs are not available" + (f": {match['nodes']}" if match else "")
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
    return "; ".join((which, *planned[:_MOST], *down[:_MOST]))


def _is_out(state: str) -> bool:
    return bool(re.search(r"down|drain|fail|maint|reserved|not_responding", state, re.IGNORECASE))


def _busy(facts: Facts, reason: str, names: Mapping[str, str]) -> Iterator[Line]:
    """Yield what the job needs, which jobs come before it, and which hold its resources."""
    idle = sum(state.rstrip("*~#") == "idle" for state, _ in facts.nodes.values())
    out = sum(_is_out(state) for state, _ in facts.nodes.values())
    free = f"{names['count']} of {names['partition']} that are free"
    if facts.nodes:
        of = f"{idle} of the {len(facts.nodes)} nodes of {names['partition']}"
        free = f"{names['count']}; {of} {'is' if idle == 1 else 'are'} idle"
        free += f", {out} {'is' if out == 1 else 'are'} down or drained" if out else ""
    yield Line("waits", f"it needs {free}")
    if reason == "Priority" or facts.ahead:
        ahead = counted(facts.ahead, "waiting job") if facts.ahead else "other waiting jobs"
        yield Line("before it", f"{ahead} with a higher priority")
    for number, holder in enumerate(facts.holders[:_MOST]):
        is_known = holder.end not in ("", "N/A", "NONE", "Unknown")
        until = f", until {holder.end} at the latest" if is_known else ""
        text = f"job {holder.job} of {holder.user} on {holder.nodes}{until}"
        yield Line("" if number else "held by", text)
    if len(facts.holders) > _MOST:
        yield Line("", f"and {len(facts.holders) - _MOST} more jobs")
    yield Line(
        "change",
        "fewer --nodes or GPUs, a shorter --time (it may fit in a gap), "
        "or another --partition: toolkit cluster show",
    )
