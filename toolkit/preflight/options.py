"""Options that no script can be written for: invalid values, and contradictions. Pure.

The rules, which can be overruled by ``--force``, are in ``rules``.
"""

from __future__ import annotations

from collections.abc import Callable

from toolkit.errors import LauncherMismatchError, ToolkitError, UsageError
from toolkit.launchers import LAUNCHERS, offered
from toolkit.launchers.base import Launcher
from toolkit.model.case import Case
from toolkit.model.job import Job
from toolkit.model.slurm_options import OWN
from toolkit.quoting import sbatch
from toolkit.units import minutes


def option(key: str) -> str:
    """Return how users write a key: ``--cpus-per-task``."""
    return f"--{key.replace('_', '-')}"


def value_findings(case: Case) -> list[ToolkitError]:
    """Return the values that an ``#SBATCH`` line or a shell cannot carry."""
    job = case.job
    findings: list[ToolkitError] = []
    if job.time is not None:
        try:
            minutes(str(job.time))
        except ValueError as error:
            findings.append(UsageError(str(error), place="--time", next_step="--time 2:00:00"))
    if job.mem is not None and case.memory is None:
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


def node_findings(case: Case) -> list[ToolkitError]:
    """Return numbers of nodes that run backwards, or contradict the GPUs given for each node."""
    job = case.job
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
                f"{given} is for {named} nodes, and --nodes is {job.nodes}",
                place=option_name,
                next_step=f"leave --nodes out, or --nodes {named}",
            )
        ]
    if job.ntasks_per_node is not None:
        decided = case.origins.get("ntasks_per_node", "--ntasks-per-node")
        return [
            UsageError(
                f"{given} gives each node as many ranks as it has GPUs, "
                f"and {decided} is {job.ntasks_per_node}",
                place=option_name,
                next_step="leave --ntasks-per-node out",
            )
        ]
    return []


def launcher_findings(case: Case) -> list[ToolkitError]:
    """Return the options that the launcher does not support."""
    job, launcher = case.job, case.launcher
    if launcher is None:
        return []
    name = launcher.name
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
            f"the launcher {name} has no {option(key)}",
            place=option(key),
            next_step=f"leave it out, or choose --launcher {_having(key)}",
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


def terminal_findings(case: Case) -> list[ToolkitError]:
    """Return what contradicts a terminal: ``--pty``, and ``--interactive``."""
    return [*_pty(case), *(_interactive(case.job) if case.job.interactive else ())]


def _pty(case: Case) -> list[ToolkitError]:
    job, launcher = case.job, case.launcher
    if not job.pty or launcher is None or launcher.has_pty:
        return []
    others = (name for name in offered() if LAUNCHERS[name].has_pty)
    return [
        LauncherMismatchError(
            f"the launcher {job.launcher} gives no rank a terminal",
            place="--pty",
            next_step=f"one of: {', '.join(others)}",
        )
    ]


def _interactive(job: Job) -> list[ToolkitError]:
    least, most = job.node_range
    given = {
        "--array": job.array is not None,
        "--requeue": bool(job.requeue),
        "--nodes": least < most,
    }
    return [
        UsageError(
            "an interactive run is one job that runs once, on a fixed number of nodes",
            place=option,
            next_step=f"leave out {option}, or --interactive",
        )
        for option, is_given in given.items()
        if is_given
    ]
