"""Explain why a job waits in the queue, and what would change that, from Slurm's answers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from toolkit.localcluster.paths import default_name
from toolkit.runs.run import Run
from toolkit.slurm.client import Client
from toolkit.slurm.cluster import fields_of
from toolkit.units import counted, whole

_MOST = 6  # jobs that are shown
_UNAVAILABLE = re.compile(r"UnavailableNodes:(?P<nodes>[^,\s)\[]+(?:\[[^\]]*\])?[^,\s)]*)")
_UNFULFILLED = re.compile(r"\b(?P<kind>[a-z]{1,30}):(?P<job>\d{1,12})")
_OUT = re.compile(r"down|drain|fail|maint|reserved|not_responding", re.IGNORECASE)

_OTHER_NODES = "a time limit (--time) that ends before that, or other nodes (no --nodelist)"
# Reason -> why the job waits, and what would change that, with the fields of `scontrol show job`.
# From job_reason_codes of Slurm's documentation; * stands for any letters.
_REASONS: dict[str, tuple[str, str]] = {
    "None": ("Slurm has not considered it yet", "nothing: it takes some seconds"),
    "Dependency": (
        "it waits for {jobs}",
        "it starts after that; to start it without them: "
        "{slurm}scontrol update job={JobId} dependency=",
    ),
    "Reservation": ("{unavailable}", _OTHER_NODES),
    "ReqNodeNotAvail*": ("{unavailable}", _OTHER_NODES),
    "JobHeldUser": (
        "you, or your script, hold it back",
        "{slurm}scontrol release {JobId} lets it go",
    ),
    "JobHeldAdmin": (
        "an administrator holds it back",
        "ask the administrator; only they can release it",
    ),
    "BeginTime": (
        "it is not to start before {EligibleTime}",
        "nothing: it starts then; or submit it without --begin",
    ),
    "DependencyNeverSatisfied": (
        "it waits for a job that did not end as it had to: {Dependency}",
        "it will never start: toolkit cancel {run}, and submit it again when that job is right",
    ),
    "PartitionTimeLimit": (
        "its time limit of {TimeLimit} is longer than partition {Partition} allows",
        "a shorter --time, or another --partition",
    ),
    "PartitionNodeLimit": (
        "its {count} are more than partition {Partition} allows, or fewer",
        "other --nodes, or another --partition",
    ),
    "PartitionDown": (
        "partition {Partition} is down",
        "another --partition; else it starts when the administrator brings it back",
    ),
    "PartitionInactive": (
        "partition {Partition} starts no jobs now",
        "another --partition; else wait",
    ),
    "PartitionConfig": (
        "partition {Partition} cannot give what it asks for",
        "compare it with `toolkit cluster show` and change nodes, GPUs or memory",
    ),
    "NodeDown": (
        "a node that it needs is down",
        "leave out --nodelist, or wait until the node is back",
    ),
    "BadConstraints": (
        "no node has what it asks for: {Features}",
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
        "Slurm does not know its account {Account}",
        "another --account: {slurm}sacctmgr show associations user=$USER",
    ),
    "InvalidQOS": ("Slurm does not know its QOS {QOS}", "another --qos"),
    "ReservationDeleted": (
        "its reservation {Reservation} does not exist any more",
        "submit it again without --reservation",
    ),
    "Cleaning": ("Slurm is still clearing up what ran before", "nothing: it takes some seconds"),
    "Prolog": ("its nodes are being prepared", "nothing: it takes some seconds"),
    "AssocGrpGRESMinutes*": (
        "account {Account} has used up its GPU time",
        "another --account, or ask for more time",
    ),
    "AssocGrpCPUMinutes*": (
        "account {Account} has used up its CPU time",
        "another --account, or ask for more time",
    ),
    "AssocMaxJobs*": (
        "account {Account} allows you no more jobs at a time",
        "nothing: it starts when one of yours ends",
    ),
    "AssocGrp*": (
        "account {Account} has reached its limit ({Reason})",
        "it starts when jobs of the account end; or ask for less",
    ),
    "AssocMax*": (
        "it asks for more than account {Account} allows ({Reason})",
        "fewer nodes, GPUs or minutes",
    ),
    "QOSMaxJobsPerUser*": (
        "QOS {QOS} allows you no more jobs at a time",
        "nothing: it starts when one of yours ends",
    ),
    "QOSMaxWallDuration*": (
        "its time limit of {TimeLimit} is longer than QOS {QOS} allows",
        "a shorter --time, or another --qos",
    ),
    "QOSMax*PerUser*": (
        "your jobs together have reached what QOS {QOS} allows ({Reason})",
        "it starts when some of yours end; or ask for less",
    ),
    "QOSMax*": (
        "it asks for more than QOS {QOS} allows ({Reason})",
        "fewer nodes, GPUs or minutes, or another --qos",
    ),
    "QOSGrp*": (
        "all jobs of QOS {QOS} together have reached their limit ({Reason})",
        "it starts when some of them end",
    ),
    "QOSMin*": (
        "it asks for less than QOS {QOS} wants ({Reason})",
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
    "Slurm's reason is {Reason}",
    "squeue's manual explains it: man squeue, JOB REASON CODES",
)


def explain(run: Run) -> list[tuple[str, str]]:
    """Return why a job waits, and what would change that, as rows of a subject and a text.

    Raises:
        SlurmUnreachableError: Slurm does not answer.
    """
    client, cluster = run.client, run.job.cluster if run.job else None
    shown = client.ask("scontrol", "--oneliner", "show", "job", str(run.job_id)).stdout
    job = fields_of(next(iter(shown.splitlines()), ""))
    partition = job.get("Partition", "").partition(",")[0]
    nodes = client.node_states(partition or None)
    reason = job.get("Reason", "") or "None"
    if reason in ("Resources", "Priority"):
        rows = list(_busy(client, job, nodes))
    else:
        named = "" if cluster == default_name() else f" --cluster {cluster}"
        names = defaultdict(
            lambda: "?",
            job,
            run=run.name,
            slurm=f"toolkit cluster exec{named} -- " if cluster else "",
            count=_count(job),
            jobs=_jobs(job.get("Dependency", "")),
            unavailable=_unavailable(client, reason, nodes),
        )
        known = (text for name, text in _REASONS.items() if fnmatchcase(reason, name))
        why, change = next(known, _UNKNOWN)
        rows = [("waits", why.format_map(names)), ("change", change.format_map(names))]
    start = client.expected_start(run.job_id)
    if start and not reason.startswith(("JobHeld", "DependencyNever")):
        rows.append(("expected", f"Slurm expects it to start at {start}"))
    return rows


def _jobs(dependency: str) -> str:
    """Return the jobs that a job waits for."""
    jobs = [
        f"job {match['job']} {_AFTER.get(match['kind'], 'to end')}"
        for match in _UNFULFILLED.finditer(dependency)
    ]
    return " and ".join(jobs) or f"other jobs: {dependency or 'Slurm does not tell which'}"


def _count(job: Mapping[str, str]) -> str:
    return counted(whole(job.get("NumNodes", "").partition("-")[0]) or 1, "node")


def _unavailable(client: Client, reason: str, nodes: Mapping[str, tuple[str, str]]) -> str:
    """Return the nodes that Slurm calls unavailable, planned reservations, and nodes down."""
    match = _UNAVAILABLE.search(reason)
    which = "nodes that it needs are not available" + (f": {match['nodes']}" if match else "")
    reserved = client.ask("scontrol", "--oneliner", "show", "reservation").stdout.splitlines()
    planned = [
        f"{'maintenance' if 'MAINT' in fields.get('Flags', '') else 'reservation'} "
        f"{fields['ReservationName']} of {fields.get('Nodes', '?')} "
        f"from {fields.get('StartTime', '?')} to {fields.get('EndTime', '?')}"
        for fields in map(fields_of, reserved)
        if "ReservationName" in fields
    ]
    down = [
        f"{name} is {state}" + (f" ({why})" if why not in ("", "none") else "")
        for name, (state, why) in nodes.items()
        if _OUT.search(state)
    ]
    return "; ".join((which, *planned[:_MOST], *down[:_MOST]))


def _busy(
    client: Client, job: Mapping[str, str], nodes: Mapping[str, tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield what the job needs, and which jobs hold its resources."""
    partition = job.get("Partition", "").partition(",")[0]
    idle = sum(state.rstrip("*~#") == "idle" for state, _ in nodes.values())
    of = f"{idle} of the {len(nodes)} nodes of {partition} {'is' if idle == 1 else 'are'} idle"
    yield "waits", f"it needs {_count(job)}; {of}"
    of_it = (f"--partition={partition}",) if partition else ()
    words = ("squeue", "--noheader", *of_it, "--states=RUNNING,COMPLETING", "--sort=e")
    running = client.ask(*words, "--format=%i|%u|%N|%e").stdout.splitlines()
    holders = [row.strip().split("|") for row in running if row.count("|") == 3]
    for number, (holder, user, where, end) in enumerate(holders[:_MOST]):
        until = f", until {end} at the latest" if end[:1].isdigit() else ""
        yield "" if number else "held by", f"job {holder} of {user} on {where}{until}"
    if len(holders) > _MOST:
        yield "", f"and {len(holders) - _MOST} more jobs"
    yield (
        "change",
        "fewer --nodes or GPUs, a shorter --time (it may fit in a gap), "
        "or another --partition: toolkit cluster show",
    )
