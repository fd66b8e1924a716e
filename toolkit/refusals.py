"""What is wrong with a job before it queues: values that no Slurm reads, and shapes that a partition does not have. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from toolkit.errors import LauncherMismatchError, ShapeError, ToolkitError, UsageError
from toolkit.launchers import LAUNCHERS, Entry
from toolkit.model.job import Job
from toolkit.model.site import Partition, Site
from toolkit.quoting import sbatch
from toolkit.slurm.parse import minutes

# Options of a job whose values Slurm reads as they are.
WORDS = ("partition", "comment", "job_name", "account", "qos", "constraint", "nodelist", "exclude", "reservation", "signal", "dependency")


def option(key: str) -> str:
    """How people write a key: ``--cpus-per-task``."""
    return f"--{key.replace('_', '-')}"


def shape_findings(job: Job, partition: Partition) -> list[ToolkitError]:
    """What is asked for beyond what the nodes of the partition have."""
    where = f"partition {partition.name}"
    least, _ = job.node_range
    cpus = (job.cpus_per_task or 1) * (job.ntasks_per_node or job.most_gpus or 1)
    checks = (
        ("--nodes", "node(s) that are up", partition.nodes, least, partition.nodes),
        ("--nodes", "node(s) at most for one job", partition.max_nodes, least, partition.max_nodes),
        ("--gpus", f"GPU(s) per node{_type(partition)}", partition.gpus, job.most_gpus, partition.gpus),
        ("--cpus-per-task", "CPU(s) per node", partition.cpus, cpus, partition.cpus),
    )
    findings: list[ToolkitError] = [
        ShapeError(
            f"{where} has {has} {what}, {asked} {'were' if asked != 1 else 'was'} asked for", place=place, next_step=_fit(place, limit)
        )
        for place, what, has, asked, limit in checks
        if limit is not None and asked > limit
    ]
    asked_minutes = _minutes(job.time) if job.time is not None else None
    if asked_minutes is not None and partition.max_minutes is not None and asked_minutes > partition.max_minutes:
        findings.append(
            ShapeError(
                f"{where} gives {partition.max_minutes} minutes at most, {asked_minutes} were asked for",
                place="--time",
                next_step=f"--time {partition.max_minutes}",
            )
        )
    return findings


def _type(partition: Partition) -> str:
    return f" ({partition.gpu_type})" if partition.gpu_type else ""


def _fit(place: str, limit: int) -> str:
    if place == "--cpus-per-task":
        return f"at most {limit} for all ranks of a node together"
    return f"{place} {limit}" if limit else "toolkit cluster status"


def _minutes(time: str | int) -> int | None:
    try:
        return minutes(str(time))
    except ValueError:
        return None


def value_findings(job: Job) -> list[ToolkitError]:
    """Values that an ``#SBATCH`` line or a shell cannot carry, and such as contradict each other."""
    findings: list[ToolkitError] = []
    if job.time is not None:
        try:
            minutes(str(job.time))
        except ValueError as error:
            findings.append(UsageError(str(error), place="--time", next_step="--time 2:00:00"))
    for key in WORDS:
        value = getattr(job, key)
        try:
            sbatch(value or "")
        except UsageError as error:
            findings.append(UsageError(error.cause, place=option(key), next_step=error.next_step))
        if value == "":
            findings.append(UsageError("the value is empty", place=option(key), next_step=f"leave {option(key)} out, or give it a value"))
    findings += [
        UsageError(f"{name!r} cannot be the name of a variable", place="--env", next_step="--env NAME=VALUE")
        for name in job.env
        if not (name.isidentifier() and name.isascii())
    ]
    return findings


def site_findings(job: Job, site: Site) -> list[ToolkitError]:
    """Options that the site forbids, or requires."""
    given = {name for name in (*site.forbidden, *site.required) if getattr(job, name.replace("-", "_"), None) is not None}
    forbidden = [
        UsageError(
            f"site {site.name} does not take it: {rule.why}", place=option(name), next_step=rule.instead or f"leave {option(name)} out"
        )
        for name, rule in site.forbidden.items()
        if name in given
    ]
    missing = [
        UsageError(f"site {site.name} wants it: {rule.why}", place=option(name), next_step=rule.instead or None)
        for name, rule in site.required.items()
        if name not in given and hasattr(job, name.replace("-", "_"))
    ]
    return [*forbidden, *missing]


def node_findings(job: Job, origins: Mapping[str, str]) -> list[ToolkitError]:
    """Numbers of nodes that run backwards, or do not fit the GPUs that were given for each."""
    least, most = job.node_range
    if least > most:
        return [UsageError(f"{job.nodes} runs backwards", place="--nodes", next_step=f"--nodes {most}:{least}")]
    named = len(job.gpus_by_node)
    if not named:
        return []
    if 0 in job.gpus_by_node:
        return [UsageError(f"a node of --gpus {job.gpus} has no GPU", place="--gpus", next_step="leave that node out")]
    if (least, most) != (named, named):
        return [UsageError(f"--gpus {job.gpus} is of {named} nodes, --nodes {job.nodes} says another number", place="--gpus")]
    if job.ntasks_per_node is not None:
        decided = origins.get("ntasks_per_node", "--ntasks-per-node")
        return [
            UsageError(
                f"--gpus {job.gpus} gives each node as many ranks as it has GPUs, {decided} says {job.ntasks_per_node} for all",
                place="--gpus",
                next_step="leave --ntasks-per-node out",
            )
        ]
    return []


def launcher_findings(job: Job, name: str) -> list[ToolkitError]:
    """What was asked for that the launcher cannot do."""
    entry = LAUNCHERS[name]
    least, most = job.node_range
    findings: list[ToolkitError] = []
    if least != most and not entry.elastic:
        findings.append(_cannot(name, "--nodes", "start with a number of nodes that may change", lambda other: other.elastic, str(most)))
    if job.gpus_by_node and not entry.unequal:
        findings.append(
            _cannot(name, "--gpus", "start ranks on nodes that differ", lambda other: other.unequal, str(min(job.gpus_by_node)))
        )
    findings += [
        LauncherMismatchError(
            f"{option(key)} means nothing to the launcher {name}", place=option(key), next_step=f"for the launchers {_having(key)}"
        )
        for key in ("max_restarts", "init")
        if getattr(job, key) is not None and key not in entry.options
    ]
    return findings


def _cannot(name: str, place: str, what: str, can: Callable[[Entry], bool], instead: str) -> LauncherMismatchError:
    others = ", ".join(other for other, entry in LAUNCHERS.items() if can(entry))
    return LauncherMismatchError(f"the launcher {name} cannot {what}", place=place, next_step=f"{place} {instead}, or one of: {others}")


def _having(key: str) -> str:
    return ", ".join(name for name, entry in LAUNCHERS.items() if key in entry.options)
