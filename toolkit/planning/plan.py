"""Decide all values of a run. Pure: the same case gives the same plan.

All errors are collected before one is raised, so that the user can fix them at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from msgspec.structs import replace

from toolkit import __version__, launchers, runtimes
from toolkit.errors import PlanError, ToolkitError, UnknownPartitionError, UsageError
from toolkit.launchers.torch import flight_recorder
from toolkit.model.case import Case
from toolkit.model.job import Job
from toolkit.model.plan import Bind, Forced, Launch, Plan
from toolkit.model.site import Partition, Site
from toolkit.planning import binds, options, sweep
from toolkit.rules import judge
from toolkit.rules.options import contradictions
from toolkit.text import is_secret, shows
from toolkit.units import counted


def decide(case: Case) -> Plan:
    """Decide all values of a job.

    Raises:
        PlanError: with all errors, if there is one; nothing has been written or submitted.
    """
    case, gpu_notes = _resolved(case.in_snapshot)
    job, launcher, runtime = case.job, case.launcher, case.runtime
    findings, forced = _findings(case)
    errors = [finding for finding in findings if not finding.is_warning]
    if errors or launcher is None or runtime is None:
        cause = f"this job could not run on site {case.site.name}; nothing was submitted"
        raise PlanError(cause, errors)
    launch = launcher.launch(case)
    container = runtime.container(case)
    requeue = options.requeueing(job, case.minutes)
    reports = _writes_reports(case)
    origins = _origins(case)
    if runtime.image:
        container = replace(container, binds=_binds(case, origins))
    fresh = Plan(
        toolkit=__version__,
        name=case.name,
        site=case.site.name,
        nodes=case.nodes,
        ranks_per_node=case.ranks_per_node,
        gpus_per_node=job.most_gpus,
        cpus_per_rank=case.cpus_per_rank,
        directives=options.directives(
            case, launch, requeue, reports=reports and runtime.image != "docker"
        ),
        slurm=options.passed(job),
        gpu_type=job.gpu_type,
        directory=case.target.cwd,
        run_directory=case.run,
        container=container,
        launch=launch,
        environment=_environment(case, launch, origins),
        secrets=_secret_names(job),
        modules=(*case.site.modules, *job.modules),
        origins=dict(sorted(origins.items())),
        least_nodes=job.node_range[0] if job.node_range[0] != case.nodes else None,
        gpus_by_node=job.gpus_by_node,
        array=job.array is not None,
        requeue=requeue,
        interactive=bool(job.interactive),
        pty=bool(job.pty),
        points=sweep.points(job),
        notes=(*case.notes, *gpu_notes, *options.notes(job, case.facts.sbatch_options)),
        warnings=(
            *(f"forced: {text}" for text in (forced.findings if forced else ())),
            *(finding.summary for finding in findings),
        ),
        forced=forced,
        script_file=None if job.interactive else case.script_file,
        ports=case.site.ports,
        reports=reports,
    )
    if case.repeats is None:
        return fresh
    from toolkit.planning.repeat import as_recorded

    return as_recorded(case.repeats, fresh)


def _resolved(case: Case) -> tuple[Case, tuple[str, ...]]:
    """Return the case with all that its job leaves to be decided, and notes for the user."""
    job, partition = case.job, case.partition
    has = _gpus_on_a_node(case.site, partition, job.partition, job.gpu_type)
    job, notes = with_gpus(job, has)
    origins = {key: value for key, value in case.origins.items() if key != "gpus"}
    if "gpus" in case.origins:
        origins["gpus_per_node"] = case.origins["gpus"]
    if case.after:
        dependencies = (*((job.dependency,) if job.dependency else ()), *case.after)
        job = replace(job, dependency=",".join(dependencies))
    wrong = _gpu_findings(case.job)
    job = replace(job, array=sweep.array(job))
    return case.with_findings(*wrong)._replace(job=job, origins=origins), notes


def _findings(case: Case) -> tuple[list[ToolkitError], Forced | None]:
    """Return all findings of a case, without the errors that the user overrules, and those."""
    job, judged = case.job, judge(case)
    overruled = [error for error in judged if case.force is not None and not error.is_warning]
    findings = [
        *case.findings,
        *_partition_findings(case),
        *options.findings(job, case.facts.sbatch_options),
        *(finding for finding in judged if finding not in overruled),
        *contradictions(case),
        *options.requeue_findings(case),
        *sweep.findings(job, case.source),
        *_secret_findings(job),
        *launchers.check(case),
        *(binds.findings(case) if case.noun == "image" else ()),
        *runtimes.check(case),
    ]
    texts = tuple(error.summary for error in overruled)
    forced = Forced(reason=case.force or "", findings=texts) if overruled else None
    return findings, forced


def _partition_findings(case: Case) -> Iterator[ToolkitError]:
    known = {partition.name for partition in case.facts.partitions} or set(case.site.partitions)
    name = case.job.partition
    if name is not None and known and name not in known:
        yield UnknownPartitionError(
            f"site {case.site.name} has no partition {name!r}",
            place="--partition",
            choices=known,
            value=name,
            next_step=f"one of {', '.join(sorted(known))}",
        )


def _secret_findings(job: Job) -> Iterator[ToolkitError]:
    if shows(job.arguments):
        yield UsageError(
            "an argument of the script looks like a secret: all users of a node can read it in "
            "the list of processes",
            next_step="pass it with --secret NAME",
            is_warning=True,
        )


def _writes_reports(case: Case) -> bool:
    """Return whether the ranks may be Python programs that can write reports.

    A directory with a colon in its path cannot be an entry of PYTHONPATH.
    """
    launcher, target = case.launcher, case.target
    if launcher is None or not launcher.writes_reports or ":" in case.run:
        return False
    is_program = target.is_program and not launcher.starts_python
    return not is_program or PurePosixPath(target.script).name.startswith("python")


def _origins(case: Case) -> dict[str, str]:
    """Return the source of each setting, and of what is decided in place of one that is unset."""
    job, partition = case.job, case.partition
    each = f"one for each of {job.gpu_option}"
    is_shared = job.most_gpus and partition and partition.gpus
    decided = {
        "nodes": each if job.gpus_by_node else "default",
        "ntasks_per_node": "one per GPU" if case.ranks_per_node == job.most_gpus else "default",
        "cpus_per_task": "the GPUs' share of the node's CPUs" if is_shared else "site",
        "partition": f"Slurm's default ({partition.name})" if partition else "Slurm's default",
        "time": "Slurm's default of the partition",
        "job_name": "the script's name",
    }
    unset = {key: value for key, value in decided.items() if getattr(job, key) is None}
    given = case.origins.items()
    return {key: value for key, value in given if key not in ("summary", "env", "bind")} | unset


def _binds(case: Case, origins: dict[str, str]) -> tuple[Bind, ...]:
    """Return the binds of a job, and note the source of each."""
    reasons = {directory.path: directory.reason for directory in case.shown}
    mounts = binds.binds(case)
    for bind in mounts:
        reason = reasons.get(bind.target, "the run needs it")
        is_named = bind in case.binds
        origins[f"bind {bind.target}"] = case.origins.get("bind", "job") if is_named else reason
    return mounts


def _environment(case: Case, launch: Launch, origins: dict[str, str]) -> dict[str, str]:
    """Return the variables of the ranks whose values may be shown, and note the source of all."""
    job, launcher, runtime = case.job, case.launcher, case.runtime
    # Ranks write to files, where Python would hold lines back until its buffer is full.
    defaults = {"PYTHONUNBUFFERED": "1"}
    if runtime is not None and not runtime.has_user_site:
        # The user's ~/.local would shadow the packages of an image; it belongs to a Python of the
        # host.
        defaults["PYTHONNOUSERSITE"] = "1"
    if launcher and launcher.framework == "torch.distributed" and _writes_reports(case):
        defaults |= flight_recorder(case)
    variables: dict[str, str] = {}
    for origin, values in (
        ("default", defaults),
        (f"launcher {launch.launcher}", launch.environment),
        (f"site {case.site.name}", case.site.environment),
        (case.origins.get("env", "job"), job.env),
    ):
        variables |= values
        origins |= {f"env {name}": origin for name in values}
    origins |= {f"env {name}": "this shell" for name in job.pass_env if name in variables}
    secrets = _secret_names(job)
    return {name: value for name, value in variables.items() if name not in secrets}


def _secret_names(job: Job) -> tuple[str, ...]:
    """Return the user's variables that are declared secret or look like secrets, sorted."""
    return tuple(
        sorted(
            name for name, value in job.env.items() if name in job.secret or is_secret(name, value)
        )
    )


def _gpus_on_a_node(
    site: Site, partition: Partition | None, name: str | None, gpu_type: str = ""
) -> int | None:
    """Return how many GPUs a node of a partition has, at most; None: not known.

    Args:
        site: whose file is read if Slurm was not called.
        partition: as Slurm describes it; None: Slurm was not called.
        name: of the partition; None: unset, and then the site's largest node counts.
        gpu_type: the type that is asked for; empty: any.
    """
    if partition is not None:
        by_type = {key.lower(): count for key, count in partition.gpus_by_type.items()}
        return by_type.get(gpu_type.lower(), partition.gpus)
    if name is not None:
        return site.partitions[name].gpus if name in site.partitions else None
    return max((entry.gpus for entry in site.partitions.values() if entry.batch), default=None)


def with_gpus(job: Job, has: int | None) -> tuple[Job, tuple[str, ...]]:
    """Return the job with its GPUs on each node, and a note for the user on what `--gpus` means.

    If no node has as many GPUs as `--gpus` says and the nodes can share them evenly, it is the
    number for the job, as in Slurm. Otherwise it is the number for each node.

    Args:
        job: the merged settings.
        has: how many GPUs a node has; None: not known.
    """
    if job.gpus is None or job.gpus_per_node is not None or job.gpus_by_node:
        return job, ()
    total, (least, nodes) = job.most_gpus, job.node_range
    share, rest = divmod(total, nodes)
    if has is not None and total > has >= share and rest == 0 and least == nodes > 1:
        per_node = f"{job.gpu_type}:{share}" if job.gpu_type else share
        note = (
            f"--gpus {job.gpus} is the number for the job, as in Slurm: "
            f"{share} on each of {nodes} nodes (--gpus-per-node {per_node})"
        )
        return replace(job, gpus_per_node=per_node), (note,)
    if nodes == 1 or not total:
        return replace(job, gpus_per_node=job.gpus), ()
    where = f"each of {nodes} nodes, {total * nodes} in all" if least == nodes else "each node"
    note = (
        f"--gpus {job.gpus} gives {total} on {where}; "
        f"Slurm's --gpus counts per job, --gpus-per-node {job.gpus} has one meaning in both"
    )
    return replace(job, gpus_per_node=job.gpus), (note,)


def _gpu_findings(job: Job) -> Iterator[ToolkitError]:
    """Yield an error if `--gpus` and `--gpus-per-node` contradict each other."""
    if job.gpus is None or job.gpus_per_node is None:
        return
    _, nodes = job.node_range
    total = sum(job.gpus_by_node) or job.most_gpus * nodes
    per_node, all_gpus = str(job.gpus_per_node), str(job.gpus)
    types = {text.rpartition(":")[0] for text in (all_gpus, per_node) if ":" in text}
    if len(types) > 1:
        cause = f"--gpus-per-node {per_node} and --gpus {all_gpus} name two types of GPU"
        yield UsageError(cause, place="--gpus", next_step="leave --gpus out")
    elif all_gpus.rpartition(":")[2] != str(total):
        cause = (
            f"--gpus-per-node {per_node} on {counted(nodes, 'node')} gives {total} GPUs, "
            f"--gpus asks for {all_gpus}"
        )
        yield UsageError(cause, place="--gpus", next_step="leave --gpus out")
