"""A job, a site and an image become a plan. Pure: what had to be looked up is in ``Inputs``; the same inputs give the same plan.

Everything that is wrong is found before anything is raised, so that a user mends all of it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import TypeVar

from msgspec.structs import replace

from toolkit import __version__, launchers, runtimes
from toolkit.errors import PlanError, ToolkitError, UnknownPartitionError
from toolkit.launchers import LAUNCHERS
from toolkit.launchers.shared import auto
from toolkit.launchers.shared.base import Request
from toolkit.model.job import Job
from toolkit.model.plan import Container, Plan
from toolkit.model.site import Partition, Site
from toolkit.planning import arrays as sweep
from toolkit.planning import gpus, requeue, slurm_options
from toolkit.planning.binds import binds
from toolkit.planning.inputs import Inputs
from toolkit.planning.origins import with_origins
from toolkit.preflight.judge import judge
from toolkit.preflight.model import PreflightCase
from toolkit.preflight.options import (
    asked_memory,
    asked_minutes,
    launcher_findings,
    node_findings,
    terminal_findings,
    value_findings,
)
from toolkit.redaction import is_secret, shows
from toolkit.runtimes import RUNTIMES
from toolkit.runtimes.shared.base import RuntimeRequest
from toolkit.sites.gpu_types import resolve as resolve_gpu_type

_Decided = TypeVar("_Decided")


def plan(inputs: Inputs) -> Plan:
    """Decide everything.

    Raises:
        PlanError: with all findings, if there is one; nothing has been written or submitted.
    """
    findings = list(inputs.findings)
    partition = _collect(findings, lambda: _partition(inputs))
    inputs, notes = _with_gpus(inputs, partition, findings)
    job = replace(inputs.job, array=sweep.array(inputs.job))
    judged = judge(_case(inputs, partition), inputs.force)
    installed = inputs.facts.sbatch_options
    findings += slurm_options.findings(job, installed)
    findings += [*judged.errors, *value_findings(job), *node_findings(job, inputs.origins)]
    findings += [*requeue.findings(job, asked_minutes(job)), *terminal_findings(job)]
    findings += sweep.findings(job, inputs.source)
    if inputs.after:
        job = replace(
            job,
            dependency=",".join((*((job.dependency,) if job.dependency else ()), *inputs.after)),
        )
    back = requeue.decide(job, asked_minutes(job))
    named = job.launcher or ""
    launcher = _collect(findings, lambda: launchers.get(named))
    request = _request(inputs, partition)
    if launcher is not None:
        findings += [*launcher_findings(job, named), *launcher.check(request)]
    runtime_request = _runtime_request(inputs, findings)
    container = _collect(findings, lambda: _container(inputs, runtime_request, findings))
    if findings or launcher is None or container is None:
        raise PlanError(
            f"this job could not run on site {inputs.site.name}; nothing was submitted", findings
        )
    launch = launcher.launch(request)
    gpu_type = resolve_gpu_type(job, inputs.site, inputs.facts, partition)
    name = job.job_name or PurePosixPath(inputs.script).stem
    draft = Plan(
        toolkit=__version__,
        name=name,
        site=inputs.site.name,
        nodes=request.nodes,
        ranks_per_node=request.ranks_per_node,
        gpus_per_node=job.most_gpus,
        cpus_per_rank=request.cpus_per_rank,
        directives=slurm_options.directives(
            job, name, launch, request.cpus_per_rank, gpu_type.name, back
        ),
        slurm=slurm_options.passed(job),
        gpu_type=job.gpu_type,
        directory=inputs.directory,
        run_directory=inputs.run_directory,
        container=container,
        launch=launch,
        environment={
            **_always(job.runtime),
            **launch.environment,
            **inputs.site.environment,
            **_open(job),
        },
        secrets=hidden(job),
        modules=(*inputs.site.modules, *job.modules),
        least_nodes=job.node_range[0] if job.node_range[0] != request.nodes else None,
        gpus_by_node=job.gpus_by_node,
        array=job.array is not None,
        requeue=back,
        interactive=bool(job.interactive),
        pty=bool(job.pty),
        points=sweep.points(job),
        notes=(*notes, *slurm_options.notes(job, installed)),
        warnings=(
            *inputs.notes,
            *((inputs.unchecked,) if inputs.unchecked else ()),
            *auto.warnings(PurePosixPath(inputs.script).name, inputs.source, named),
            *launch.warnings,
            *_told_to_all(job),
            *judged.warnings,
            *sweep.warnings(job, inputs.source),
            *requeue.warnings(job, inputs.script),
            *runtimes.get(container.runtime).warnings(runtime_request),
        ),
        forced=judged.forced,
        script_file=None if job.interactive else inputs.script_file,
        ports=inputs.site.ports,
        reports=_writes_reports(inputs),
    )
    return with_origins(draft, inputs, partition)


def _writes_reports(inputs: Inputs) -> bool:
    """Return whether the ranks may be programs of Python; a path with a colon in it cannot stand in PYTHONPATH."""
    launcher = launchers.get(inputs.job.launcher or "")
    is_program = inputs.program and not launcher.starts_python
    is_python = not is_program or PurePosixPath(inputs.script).name.startswith("python")
    return is_python and launcher.writes_reports and ":" not in inputs.run_directory


def hidden(job: Job) -> tuple[str, ...]:
    """The user's variables whose values are shown nowhere, sorted: those said to be secret, and those that look so."""
    return tuple(
        sorted(
            name for name, value in job.env.items() if name in job.secret or is_secret(name, value)
        )
    )


def _told_to_all(job: Job) -> tuple[str, ...]:
    """A warning where an argument looks like a secret."""
    if not shows(job.arguments):
        return ()
    return (
        "an argument of the script looks like a secret: all users of a node see it in the list of processes; give it by --secret NAME",
    )


def _open(job: Job) -> dict[str, str]:
    kept = hidden(job)
    return {name: value for name, value in job.env.items() if name not in kept}


def _collect(findings: list[ToolkitError], decide: Callable[[], _Decided]) -> _Decided | None:
    try:
        return decide()
    except ToolkitError as error:
        findings.append(error)
        return None


def _partition(inputs: Inputs) -> Partition | None:
    live = {partition.name: partition for partition in inputs.facts.partitions}
    asked = inputs.job.partition
    if asked is None:
        return inputs.facts.default_partition
    known = live or inputs.site.partitions
    if asked not in known and known:
        raise UnknownPartitionError(
            f"site {inputs.site.name} has no partition {asked!r}",
            place="--partition",
            choices=known,
            value=asked,
            next_step=f"one of {', '.join(sorted(known))}",
        )
    return live.get(asked)


def _with_gpus(
    inputs: Inputs, partition: Partition | None, findings: list[ToolkitError]
) -> tuple[Inputs, tuple[str, ...]]:
    """The inputs with the job's GPUs on each node, and what to tell about it."""
    job = inputs.job
    has = gpus.on_a_node(inputs.site, partition, job.partition, job.gpu_type)
    decided = _collect(findings, lambda: gpus.resolved(job, has))
    job, notes = decided or (job, ())
    return inputs._replace(job=job), notes


def _case(inputs: Inputs, partition: Partition | None) -> PreflightCase:
    return PreflightCase(
        job=inputs.job,
        site=inputs.site,
        facts=inputs.facts,
        partition=partition,
        manifest=inputs.manifest,
        host=inputs.seen,
        minutes=asked_minutes(inputs.job),
        memory=asked_memory(inputs.job),
    )


def _request(inputs: Inputs, partition: Partition | None) -> Request:
    job = inputs.job
    wanted, launcher = job.most_gpus, LAUNCHERS.get(job.launcher or "")
    ranks = job.ntasks_per_node or (1 if launcher and launcher.takes_node else wanted) or 1
    node = partition or inputs.site.partitions.get(job.partition or "")
    share = (
        ((node.cpus or 0) // node.gpus) * wanted // ranks if node and node.gpus and wanted else 0
    )
    return Request(
        nodes=job.node_range[1],
        ranks_per_node=ranks,
        cpus_per_rank=job.cpus_per_task or max(share, inputs.site.cpus_per_task),
        script=inputs.script,
        arguments=job.arguments,
        site=_network(inputs),
        facts=inputs.facts,
        manifest=inputs.manifest,
        reason=inputs.origins.get("launcher", "default"),
        job=job,
        source=inputs.source,
        run_directory=inputs.run_directory,
        program=inputs.program,
        noun=runtimes.noun(job.runtime),
        environment=inputs.environment,
    )


def _network(inputs: Inputs) -> Site:
    """Return the site as the ranks see it: some runtimes have a network of their own."""
    runtime = RUNTIMES.get(inputs.job.runtime or runtimes.DEFAULT)
    if runtime is None or not runtime.interface:
        return inputs.site
    return replace(inputs.site, interface=runtime.interface)


def _runtime_request(inputs: Inputs, findings: list[ToolkitError]) -> RuntimeRequest:
    runtime = RUNTIMES.get(inputs.job.runtime or runtimes.DEFAULT)
    bound = _collect(findings, lambda: binds(inputs)) if runtime and runtime.image else None
    return RuntimeRequest(
        job=inputs.job,
        origins=inputs.origins,
        site=inputs.site,
        facts=inputs.facts,
        image=inputs.image,
        manifest=inputs.manifest,
        is_recipe=inputs.is_recipe,
        environment=inputs.environment,
        engine=inputs.engine,
        binds=bound or (),
        source=inputs.source,
    )


def _container(inputs: Inputs, request: RuntimeRequest, findings: list[ToolkitError]) -> Container:
    runtime = runtimes.get(inputs.job.runtime)
    findings += runtime.check(request)
    launcher = inputs.job.launcher or ""
    if launcher in LAUNCHERS:
        findings += runtimes.launcher_findings(runtime.name, launcher)
    return runtime.container(request)


def _always(runtime: str | None) -> dict[str, str]:
    has_user_site = runtimes.get(runtime).has_user_site
    return {
        # ~/.local of the user would shadow the image's packages. To a Python of the host it
        # belongs.
        **({} if has_user_site else {"PYTHONNOUSERSITE": "1"}),
        # Ranks write to files, where Python would keep lines back until its buffer is full.
        "PYTHONUNBUFFERED": "1",
    }
