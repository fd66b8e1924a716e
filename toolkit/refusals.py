"""What is wrong with a job before it queues: values that no Slurm reads, and shapes that a partition does not have. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from toolkit.errors import LauncherMismatchError, ShapeError, ToolkitError, UsageError
from toolkit.launchers import LAUNCHERS, Entry
from toolkit.model.job import Job
from toolkit.model.site import Partition, Site
from toolkit.quoting import sbatch
from toolkit.sites.comment import form, problem
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
    """What the site itself writes down: options that it forbids or requires, its comments, limits, and partitions."""
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
    return [*forbidden, *missing, *_comment_findings(job, site), *_limit_findings(job, site)]


def _comment_findings(job: Job, site: Site) -> list[ToolkitError]:
    rule = site.comment
    wrong = problem(rule, job.comment) if rule else None
    if rule is None or wrong is None:
        return []
    example = f'--comment "{rule.example or form(rule)}"'
    return [UsageError(f"{wrong} ({rule.source or site.name})", place="--comment", next_step=example)]


def _limit_findings(job: Job, site: Site) -> list[ToolkitError]:
    """Beyond what the site's documents say; what the cluster itself answers is looked at apart from this."""
    findings: list[ToolkitError] = []
    asked = _minutes(job.time) if job.time is not None else None
    if site.max_minutes is not None and asked is not None and asked > site.max_minutes:
        cause = f"site {site.name} gives {site.max_minutes} minutes at most, {asked} were asked for"
        findings.append(ShapeError(cause, place="--time", next_step=f"--time {site.max_minutes}"))
    partition = site.partitions.get(job.partition or "")
    if partition is None:
        return findings
    where = f"partition {job.partition} of {site.name}"
    gpus = job.most_gpus * job.node_range[0]
    if not partition.batch:
        findings.append(UsageError(f"{where} takes no batch jobs", place="--partition", next_step="another one: toolkit site show"))
    if job.most_gpus > partition.gpus:
        near = ", ".join(name for name, other in site.partitions.items() if other.gpus >= job.most_gpus)
        step = f"with as many: {near}" if near else None
        findings.append(
            ShapeError(f"a node of {where} has {partition.gpus} GPU(s), {job.most_gpus} were asked for", place="--gpus", next_step=step)
        )
    if partition.gpus_per_user is not None and gpus > partition.gpus_per_user:
        cause = f"one user may have {partition.gpus_per_user} GPUs in {where}, {gpus} were asked for"
        findings.append(ShapeError(cause, place="--nodes", next_step="fewer nodes, or another partition"))
    return findings


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
