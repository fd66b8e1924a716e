"""Plan a job for a site and an image. Pure: the same ``Inputs`` give the same plan.

All errors are collected before one is raised, so that the user can fix them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import TypeVar

from msgspec.structs import replace

from toolkit import __version__, launchers, runtimes
from toolkit.errors import PlanError, ToolkitError, UnknownPartitionError
from toolkit.launchers import LAUNCHERS
from toolkit.launchers.shared import recorder
from toolkit.launchers.shared.base import Request
from toolkit.model.job import Job
from toolkit.model.plan import Container, Launch, Plan
from toolkit.model.site import Partition, Site
from toolkit.planning import gpus, requeue, slurm_options, sweep
from toolkit.planning.binds import binds
from toolkit.planning.inputs import Inputs
from toolkit.planning.origins import with_origins
from toolkit.planning.repeat import as_recorded
from toolkit.preflight.judge import judge
from toolkit.preflight.model import PreflightCase
from toolkit.preflight.options import (
    launcher_findings,
    node_findings,
    requested_memory,
    requested_minutes,
    terminal_findings,
    value_findings,
)
from toolkit.runtimes import RUNTIMES
from toolkit.runtimes.shared.base import RuntimeRequest
from toolkit.sites.gpu_types import resolve as resolve_gpu_type
from toolkit.text import is_secret, shows

_Decided = TypeVar("_Decided")

_VISIBLE_SECRET = (
    "an argument of the script looks like a secret: all users of a node can read it in the list of "
    "processes; pass it with --secret NAME"
)


def plan(inputs: Inputs) -> Plan:
    """Decide all values of a job.

    Raises:
        PlanError: with all errors, if there is one; nothing has been written or submitted.
    """
    errors = list(inputs.findings)
    partition = _collect(errors, lambda: _partition(inputs))
    inputs, gpu_notes = _with_gpus(inputs, partition, errors)
    job = replace(inputs.job, array=sweep.array(inputs.job))
    judged = judge(_case(inputs, partition), inputs.force)
    errors += slurm_options.findings(job, inputs.facts.sbatch_options)
    errors += [*judged.errors, *_option_errors(job, inputs)]
    if inputs.after:
        dependencies = (*((job.dependency,) if job.dependency else ()), *inputs.after)
        job = replace(job, dependency=",".join(dependencies))
    requeueing = requeue.decide(job, requested_minutes(job))
    launcher_name = job.launcher or ""
    launcher = _collect(errors, lambda: launchers.get(launcher_name))
    request = _request(inputs, partition)
    if launcher is not None:
        errors += [*launcher_findings(job, launcher_name), *launcher.check(request)]
    runtime_request = _runtime_request(inputs, errors)
    container = _collect(errors, lambda: _container(inputs, runtime_request, errors))
    if errors or launcher is None or container is None:
        raise PlanError(
            f"this job could not run on site {inputs.site.name}; nothing was submitted", errors
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
            job,
            name,
            launch,
            request.cpus_per_rank,
            gpu_type.name,
            requeueing,
            reports=_writes_reports(inputs) and runtimes.get(job.runtime).image != "docker",
        ),
        slurm=slurm_options.passed(job),
        gpu_type=job.gpu_type,
        directory=inputs.directory,
        run_directory=inputs.run_directory,
        container=container,
        launch=launch,
        environment=_environment(job, launch, inputs),
        secrets=_secret_names(job),
        modules=(*inputs.site.modules, *job.modules),
        least_nodes=job.node_range[0] if job.node_range[0] != request.nodes else None,
        gpus_by_node=job.gpus_by_node,
        array=job.array is not None,
        requeue=requeueing,
        interactive=bool(job.interactive),
        pty=bool(job.pty),
        points=sweep.points(job),
        notes=(
            *filter(None, (inputs.understood,)),
            *gpu_notes,
            *slurm_options.notes(job, inputs.facts.sbatch_options),
        ),
        warnings=_warnings(job, inputs, launch, judged.warnings, runtime_request),
        forced=judged.forced,
        script_file=None if job.interactive else inputs.script_file,
        ports=inputs.site.ports,
        reports=_writes_reports(inputs),
        is_part=inputs.is_part,
    )
    fresh = with_origins(draft, inputs, partition)
    return as_recorded(inputs.repeats, fresh) if inputs.repeats else fresh


def _option_errors(job: Job, inputs: Inputs) -> list[ToolkitError]:
    """Return the errors of a job's options that are independent of launcher and runtime."""
    return [
        *value_findings(job),
        *node_findings(job, inputs.origins),
        *requeue.findings(job, requested_minutes(job)),
        *terminal_findings(job),
        *sweep.findings(job, inputs.source),
    ]


def _warnings(
    job: Job, inputs: Inputs, launch: Launch, rules: Sequence[str], request: RuntimeRequest
) -> tuple[str, ...]:
    """Return the warnings of a plan.

    Args:
        job: the merged settings.
        inputs: of the plan.
        launch: how the ranks are started.
        rules: the warnings of the preflight rules.
        request: of the runtime.
    """
    return (
        *inputs.notes,
        *((inputs.unchecked,) if inputs.unchecked else ()),
        *launchers.warnings(PurePosixPath(inputs.script).name, inputs.source, job.launcher or ""),
        *launch.warnings,
        *((_VISIBLE_SECRET,) if shows(job.arguments) else ()),
        *rules,
        *sweep.warnings(job, inputs.source),
        *requeue.warnings(job, inputs.script),
        *runtimes.get(job.runtime).warnings(request),
    )


def _writes_reports(inputs: Inputs) -> bool:
    """Return whether the ranks may be Python programs that can write reports.

    A directory with a colon in its path cannot be an entry of PYTHONPATH.
    """
    launcher = launchers.get(inputs.job.launcher or "")
    is_program = inputs.program and not launcher.starts_python
    is_python = not is_program or PurePosixPath(inputs.script).name.startswith("python")
    return is_python and launcher.writes_reports and ":" not in inputs.run_directory


def _secret_names(job: Job) -> tuple[str, ...]:
    """Return the user's variables that are declared secret or look like secrets, sorted."""
    return tuple(
        sorted(
            name for name, value in job.env.items() if name in job.secret or is_secret(name, value)
        )
    )


def _collect(errors: list[ToolkitError], decide: Callable[[], _Decided]) -> _Decided | None:
    try:
        return decide()
    except ToolkitError as error:
        errors.append(error)
        return None


def _partition(inputs: Inputs) -> Partition | None:
    live = {partition.name: partition for partition in inputs.facts.partitions}
    name = inputs.job.partition
    if name is None:
        return inputs.facts.default_partition
    known = live or inputs.site.partitions
    if name not in known and known:
        raise UnknownPartitionError(
            f"site {inputs.site.name} has no partition {name!r}",
            place="--partition",
            choices=known,
            value=name,
            next_step=f"one of {', '.join(sorted(known))}",
        )
    return live.get(name)


def _with_gpus(
    inputs: Inputs, partition: Partition | None, errors: list[ToolkitError]
) -> tuple[Inputs, tuple[str, ...]]:
    """Return the inputs with the job's GPUs on each node, and notes for the user on them."""
    job = inputs.job
    has = gpus.on_a_node(inputs.site, partition, job.partition, job.gpu_type)
    decided = _collect(errors, lambda: gpus.resolved(job, has))
    job, notes = decided or (job, ())
    return inputs._replace(job=job), notes


def _case(inputs: Inputs, partition: Partition | None) -> PreflightCase:
    return PreflightCase(
        job=inputs.job,
        site=inputs.site,
        facts=inputs.facts,
        partition=partition,
        manifest=inputs.manifest,
        host=inputs.host,
        minutes=requested_minutes(inputs.job),
        memory=requested_memory(inputs.job),
    )


def _request(inputs: Inputs, partition: Partition | None) -> Request:
    job = inputs.job
    launcher = LAUNCHERS.get(job.launcher or "")
    ranks = job.ntasks_per_node or (1 if launcher and launcher.takes_node else job.most_gpus) or 1
    node = partition or inputs.site.partitions.get(job.partition or "")
    share = ((node.cpus or 0) // node.gpus) * job.most_gpus // ranks if node and node.gpus else 0
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
    """Return the site with the runtime's network interface if the runtime has a network."""
    runtime = RUNTIMES.get(inputs.job.runtime or runtimes.DEFAULT)
    if runtime is None or not runtime.interface:
        return inputs.site
    return replace(inputs.site, interface=runtime.interface)


def _runtime_request(inputs: Inputs, errors: list[ToolkitError]) -> RuntimeRequest:
    runtime = RUNTIMES.get(inputs.job.runtime or runtimes.DEFAULT)
    bound = _collect(errors, lambda: binds(inputs)) if runtime and runtime.image else None
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


def _container(inputs: Inputs, request: RuntimeRequest, errors: list[ToolkitError]) -> Container:
    runtime = runtimes.get(inputs.job.runtime)
    errors += runtime.check(request)
    launcher = inputs.job.launcher or ""
    if launcher in LAUNCHERS:
        errors += runtimes.launcher_findings(runtime.name, launcher)
    return runtime.container(request)


def _recorder(launch: Launch, inputs: Inputs) -> dict[str, str]:
    """Return the settings of torch's flight recorder if its ranks use torch.distributed."""
    is_torch = launchers.get(launch.launcher).framework == "torch.distributed"
    is_reported = is_torch and _writes_reports(inputs)
    return recorder.environment(_request(inputs, None)) if is_reported else {}


def _environment(job: Job, launch: Launch, inputs: Inputs) -> dict[str, str]:
    """Return the variables of the ranks whose values may be shown."""
    secrets = _secret_names(job)
    has_user_site = runtimes.get(job.runtime).has_user_site
    return {
        # The user's ~/.local would shadow the packages of an image; it belongs to a Python of the
        # host.
        **({} if has_user_site else {"PYTHONNOUSERSITE": "1"}),
        # Ranks write to files, where Python would hold lines back until its buffer is full.
        "PYTHONUNBUFFERED": "1",
        **_recorder(launch, inputs),
        **launch.environment,
        **inputs.site.environment,
        **{name: value for name, value in job.env.items() if name not in secrets},
    }
