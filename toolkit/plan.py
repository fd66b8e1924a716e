"""A job, a site and an image become a plan. Pure: what had to be looked up is in ``Inputs``; the same inputs give the same plan.

Everything that is wrong is found before anything is raised, so that a user mends all of it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple, TypeVar

from toolkit import __version__, launchers
from toolkit.errors import PlanError, ShapeError, SlurmUnreachableError, ToolkitError, UnknownPartitionError, UsageError
from toolkit.launchers import Request
from toolkit.model.image import Manifest
from toolkit.model.job import Job
from toolkit.model.plan import Bind, Container, Plan
from toolkit.model.site import Facts, Partition, Site
from toolkit.quoting import sbatch
from toolkit.runtimes import apptainer
from toolkit.slurm.parse import minutes

_Decided = TypeVar("_Decided")


class Inputs(NamedTuple):
    """All that a plan is made from.

    Attributes:
        job: the merged settings.
        origins: where each of them came from.
        site, facts: the cluster, as written and as it answered.
        image: absolute path of the SIF; empty where it was not found.
        manifest: of the image; None: nobody knows what is in it.
        script: the script as the rank will be given it.
        folder: directory of the script, absolute.
        directory: where the user stands, absolute; the ranks run there.
        run_directory: where the run's files will be, absolute.
        findings: what was found wrong while looking things up.
    """

    job: Job
    origins: dict[str, str]
    site: Site
    facts: Facts
    image: str
    manifest: Manifest | None
    script: str
    folder: str
    directory: str
    run_directory: str
    findings: Sequence[ToolkitError] = ()


def plan(inputs: Inputs) -> Plan:
    """Decide everything.

    Raises:
        PlanError: with all findings, if there is one; nothing has been written or submitted.
    """
    job, findings = inputs.job, list(inputs.findings)
    partition = _collect(findings, lambda: _partition(inputs))
    if partition is not None:
        findings += shape_findings(job, partition)
    findings += _value_findings(job)
    launcher = _collect(findings, lambda: launchers.get(job.launcher or ""))
    request = _request(inputs, partition)
    if launcher is not None:
        findings += launcher.check(request)
    container = _collect(findings, lambda: _container(inputs))
    if findings or launcher is None or container is None:
        raise PlanError(f"this job could not run on site {inputs.site.name}; nothing was submitted", findings)
    launch = launcher.launch(request)
    name = job.job_name or PurePosixPath(inputs.script).stem
    draft = Plan(
        toolkit=__version__,
        name=name,
        site=inputs.site.name,
        nodes=request.nodes,
        ranks_per_node=request.ranks_per_node,
        gpus_per_node=job.gpus or 0,
        cpus_per_rank=request.cpus_per_rank,
        directives=directives(job, name, launch.ntasks_per_node, launch.cpus_per_task),
        directory=inputs.directory,
        run_directory=inputs.run_directory,
        container=container,
        launch=launch,
        environment={**_always(), **launch.environment, **inputs.site.environment, **job.env},
        modules=inputs.site.modules,
    )
    return _with_origins(draft, inputs, partition)


def _collect(findings: list[ToolkitError], decide: Callable[[], _Decided]) -> _Decided | None:
    try:
        return decide()
    except ToolkitError as error:
        findings.append(error)
        return None


def _partition(inputs: Inputs) -> Partition | None:
    known = {partition.name: partition for partition in inputs.facts.partitions}
    asked = inputs.job.partition
    if asked is None:
        return inputs.facts.default_partition
    if asked not in known and known:
        raise UnknownPartitionError(
            f"site {inputs.site.name} has no partition {asked!r}",
            place="--partition",
            choices=known,
            value=asked,
            next_step=f"one of {', '.join(sorted(known))}",
        )
    return known.get(asked)


def shape_findings(job: Job, partition: Partition) -> list[ToolkitError]:
    """What is asked for beyond what the nodes of the partition have."""
    where = f"partition {partition.name}"
    cpus = (job.cpus_per_task or 1) * (job.ntasks_per_node or job.gpus or 1)
    checks = (
        ("--nodes", "node(s) that are up", partition.nodes, job.nodes or 1, partition.nodes),
        ("--nodes", "node(s) at most for one job", partition.max_nodes, job.nodes or 1, partition.max_nodes),
        ("--gpus", f"GPU(s) per node{_type(partition)}", partition.gpus, job.gpus or 0, partition.gpus),
        ("--cpus-per-task", "CPU(s) per node", partition.cpus, cpus, partition.cpus),
    )
    findings: list[ToolkitError] = [
        ShapeError(
            f"{where} has {has} {what}, {asked} {'were' if asked != 1 else 'was'} asked for", place=option, next_step=_fit(option, limit)
        )
        for option, what, has, asked, limit in checks
        if limit is not None and asked > limit
    ]
    if job.time is not None and partition.max_minutes is not None and _minutes(job.time) is not None:
        asked_minutes = _minutes(job.time) or 0
        if asked_minutes > partition.max_minutes:
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


def _fit(option: str, limit: int) -> str:
    if option == "--cpus-per-task":
        return f"at most {limit} for all ranks of a node together"
    return f"{option} {limit}" if limit else "toolkit cluster status"


def _minutes(time: str | int) -> int | None:
    try:
        return minutes(str(time))
    except ValueError:
        return None


def _value_findings(job: Job) -> list[ToolkitError]:
    findings: list[ToolkitError] = []
    if job.time is not None:
        try:
            minutes(str(job.time))
        except ValueError as error:
            findings.append(UsageError(str(error), place="--time", next_step="--time 2:00:00"))
    for option, value in (("--comment", job.comment), ("--job-name", job.job_name), ("--partition", job.partition)):
        _collect(findings, lambda value=value: sbatch(value or ""))  # type: ignore[misc]
        if value == "":
            findings.append(UsageError("the value is empty", place=option, next_step=f"leave {option} out, or give it a value"))
    findings += [
        UsageError(f"{name!r} cannot be the name of a variable", place="--env", next_step="--env NAME=VALUE")
        for name in job.env
        if not (name.isidentifier() and name.isascii())
    ]
    return findings


def _request(inputs: Inputs, partition: Partition | None) -> Request:
    job = inputs.job
    ranks = job.ntasks_per_node or job.gpus or 1
    share = (partition.cpus // partition.gpus) * (job.gpus or 0) // ranks if partition and partition.gpus and job.gpus else 0
    return Request(
        nodes=job.nodes or 1,
        ranks_per_node=ranks,
        cpus_per_rank=job.cpus_per_task or max(share, inputs.site.cpus_per_task),
        script=inputs.script,
        arguments=job.arguments,
        site=inputs.site,
        facts=inputs.facts,
        manifest=inputs.manifest,
        reason=inputs.origins.get("launcher", "default"),
    )


def _container(inputs: Inputs) -> Container:
    if not inputs.facts.container and not inputs.findings:
        raise SlurmUnreachableError("no container command is known for this site", next_step="toolkit setup")
    return apptainer.container(
        command=inputs.facts.container or "apptainer",
        image=inputs.image,
        name=inputs.manifest.name if inputs.manifest else PurePosixPath(inputs.image).stem,
        manifest=inputs.manifest,
        binds=_binds(inputs),
        gpus=bool(inputs.job.gpus),
        scratch=inputs.site.scratch,
    )


def _binds(inputs: Inputs) -> tuple[Bind, ...]:
    """Where the ranks run, the run's own directory, where the script is, and what the user names; none twice, none within another."""
    own = [inputs.directory, inputs.run_directory, inputs.folder]
    kept: list[str] = []
    for path in own:
        if not any(PurePosixPath(path).is_relative_to(other) for other in kept):
            kept.append(path)
    places = [apptainer.checked(Bind(source=path, target=path), "working directory") for path in kept]
    return (*places, *(apptainer.bind(text, inputs.directory) for text in inputs.job.bind))


def _always() -> dict[str, str]:
    return {
        # ~/.local of the user would shadow the image's packages.
        "PYTHONNOUSERSITE": "1",
        # Ranks write to files, where Python would keep lines back until its buffer is full.
        "PYTHONUNBUFFERED": "1",
    }


def directives(job: Job, name: str, ntasks_per_node: int, cpus_per_task: int) -> tuple[tuple[str, str], ...]:
    """Slurm's long options of the script, in a fixed order; those that nobody set are left to the cluster."""
    rows: list[tuple[str, object]] = [
        ("job-name", name),
        ("partition", job.partition),
        ("nodes", job.nodes or 1),
        ("ntasks-per-node", ntasks_per_node),
        ("cpus-per-task", cpus_per_task),
        ("gres", f"gpu:{job.gpus}" if job.gpus else None),
        ("time", job.time),
        ("comment", job.comment),
    ]
    return tuple((key, str(value)) for key, value in rows if value is not None)


def _with_origins(draft: Plan, inputs: Inputs, partition: Partition | None) -> Plan:
    from msgspec.structs import replace

    origins = {key: value for key, value in inputs.origins.items() if key != "summary"}
    job = inputs.job
    if job.ntasks_per_node is None:
        origins["ntasks_per_node"] = "one per GPU" if job.gpus else "default"
    if job.cpus_per_task is None:
        origins["cpus_per_task"] = "the GPUs' share of the node's CPUs" if job.gpus and partition and partition.gpus else "site"
    if job.partition is None:
        origins["partition"] = f"Slurm's default ({partition.name})" if partition else "Slurm's default"
    if job.time is None:
        origins["time"] = "Slurm's default of the partition"
    if job.job_name is None:
        origins["job_name"] = "the script's name"
    origins |= {f"env {name}": _origin_of_variable(name, draft, inputs) for name in draft.environment}
    own = len(draft.container.binds) - len(job.bind)
    named = inputs.origins.get("bind", "job")
    origins |= {f"bind {bind.target}": named if index >= own else "the run needs it" for index, bind in enumerate(draft.container.binds)}
    origins.pop("env", None)
    origins.pop("bind", None)
    return replace(draft, origins=dict(sorted(origins.items())))


def _origin_of_variable(name: str, draft: Plan, inputs: Inputs) -> str:
    if name in inputs.job.env:
        return inputs.origins.get("env", "job")
    if name in inputs.site.environment:
        return f"site {inputs.site.name}"
    return f"launcher {draft.launch.launcher}" if name in draft.launch.environment else "default"
