"""What no script can be written for: values that no Slurm reads, and such as contradict each other. Pure; ``rules`` has all else."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from toolkit.errors import LauncherMismatchError, ToolkitError, UsageError
from toolkit.launchers import LAUNCHERS
from toolkit.launchers.shared.base import Launcher
from toolkit.model.job import Job
from toolkit.model.slurm_options import OWN
from toolkit.quoting import sbatch
from toolkit.slurm.parse import megabytes, minutes


def option(key: str) -> str:
    """How people write a key: ``--cpus-per-task``."""
    return f"--{key.replace('_', '-')}"


def asked_minutes(job: Job) -> int | None:
    """The time that is asked for; None: nobody did, it is no time (which ``value_findings`` says), or without a limit."""
    try:
        return minutes(str(job.time)) if job.time is not None else None
    except ValueError:
        return None


def asked_memory(job: Job) -> int | None:
    """Return the memory asked for on each node, in MB; None: unset, or no size (which ``value_findings`` says)."""
    try:
        return megabytes(str(job.mem)) if job.mem is not None else None
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
    if job.mem is not None and asked_memory(job) is None:
        cause = f"{str(job.mem)!r} is not a size; Slurm's are 16G, 500M, or a number of megabytes"
        findings.append(UsageError(cause, place="--mem", next_step="--mem 16G"))
    for own in OWN:
        value, flag = getattr(job, own.field), f"--{own.name}"
        if own.name in ("mem", "time") or not isinstance(value, str):
            continue
        try:
            sbatch(value)
        except UsageError as error:
            findings.append(UsageError(error.cause, place=flag, next_step=error.next_step))
        if value == "":
            step = f"leave {flag} out, or give it a value"
            findings.append(UsageError("the value is empty", place=flag, next_step=step))
    findings += [
        UsageError(
            f"{name!r} cannot be the name of a variable",
            place="--env",
            next_step="--env NAME=VALUE",
        )
        for name in job.env
        if not (name.isidentifier() and name.isascii())
    ]
    return findings


def node_findings(job: Job, origins: Mapping[str, str]) -> list[ToolkitError]:
    """Numbers of nodes that run backwards, or do not fit the GPUs that were given for each."""
    least, most = job.node_range
    if least > most:
        return [
            UsageError(
                f"{job.nodes} runs backwards", place="--nodes", next_step=f"--nodes {most}:{least}"
            )
        ]
    named, option_name = len(job.gpus_by_node), job.gpu_option
    if not named:
        return []
    given = f"{option_name} {','.join(map(str, job.gpus_by_node))}"
    if 0 in job.gpus_by_node:
        return [
            UsageError(
                f"a node of {given} has no GPU", place=option_name, next_step="leave that node out"
            )
        ]
    if (least, most) != (named, named):
        return [
            UsageError(
                f"{given} is of {named} nodes, --nodes {job.nodes} says another number",
                place=option_name,
            )
        ]
    if job.ntasks_per_node is not None:
        decided = origins.get("ntasks_per_node", "--ntasks-per-node")
        return [
            UsageError(
                f"{given} gives each node as many ranks as it has GPUs, {decided} says {job.ntasks_per_node} for all",
                place=option_name,
                next_step="leave --ntasks-per-node out",
            )
        ]
    return []


def launcher_findings(job: Job, name: str) -> list[ToolkitError]:
    """What was asked for that the launcher cannot do."""
    launcher = LAUNCHERS[name]
    least, most = job.node_range
    findings: list[ToolkitError] = []
    if least != most and not launcher.is_elastic:
        findings.append(
            _cannot(
                name,
                "--nodes",
                "start with a number of nodes that may change",
                lambda other: other.is_elastic,
                str(most),
            )
        )
    if job.gpus_by_node and not launcher.is_unequal:
        findings.append(
            _cannot(
                name,
                job.gpu_option,
                "start ranks on nodes that differ",
                lambda other: other.is_unequal,
                str(min(job.gpus_by_node)),
            )
        )
    findings += [
        LauncherMismatchError(
            f"{option(key)} means nothing to the launcher {name}",
            place=option(key),
            next_step=f"for the launchers {_having(key)}",
        )
        for key in ("max_restarts", "init")
        if getattr(job, key) is not None and key not in launcher.options
    ]
    return findings


def _cannot(
    name: str, place: str, what: str, can: Callable[[Launcher], bool], instead: str
) -> LauncherMismatchError:
    others = ", ".join(other.name for other in LAUNCHERS.values() if can(other))
    return LauncherMismatchError(
        f"the launcher {name} cannot {what}",
        place=place,
        next_step=f"{place} {instead}, or one of: {others}",
    )


def _having(key: str) -> str:
    return ", ".join(other.name for other in LAUNCHERS.values() if key in other.options)
