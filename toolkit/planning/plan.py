"""A job, a site and an image become a plan. Pure: what had to be looked up is in ``Inputs``; the same inputs give the same plan.

Everything that is wrong is found before anything is raised, so that a user mends all of it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from toolkit import __version__, launchers, runtimes
from toolkit.errors import PlanError, ToolkitError, UnknownPartitionError
from toolkit.launchers import LAUNCHERS
from toolkit.launchers.shared import auto
from toolkit.launchers.shared.base import Request
from toolkit.model.code import ScriptFile, Tree
from toolkit.model.environment import Engine, Environment
from toolkit.model.image import Manifest
from toolkit.model.imports import Shown
from toolkit.model.job import Job
from toolkit.model.plan import Bind, Container, Launch, Plan
from toolkit.model.site import Facts, Partition, Site
from toolkit.model.source import Source
from toolkit.model.ways import Requeue
from toolkit.planning import arrays as sweep
from toolkit.planning import gpus, requeue
from toolkit.preflight import terminal
from toolkit.preflight.judge import judge
from toolkit.preflight.model import Case, Seen
from toolkit.preflight.options import (
    asked_memory,
    asked_minutes,
    launcher_findings,
    node_findings,
    value_findings,
)
from toolkit.redaction import is_secret, shows
from toolkit.runtimes import RUNTIMES
from toolkit.runtimes.shared.base import RuntimeRequest
from toolkit.runtimes.shared.binds import checked_bind, parse_bind

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
        source: what was read of the script.
        program: there is no script: ``script`` is a program of the image.
        shown: further directories that the ranks must see, such as the git work tree.
        environment, engine: where the ranks run in no SIF: the Python, or the engine, that was found.
        after: what the job waits for, in Slurm's words: ``afterok:7``.
        seen: what was looked at on this machine, for the rules.
        force: why what the rules find shall not stop the job; None: it does.
        script_file: the script's hash; None: it is a program, or cannot be read.
        notes: warnings of what was looked up.
        tree: the tree that a snapshot is taken of; None: the job runs in the work tree itself.
        unchecked: the warning of a plan that was made without the cluster; empty: it was asked.
        to_fetch: the reference of an image that must be fetched before the job is submitted; empty: none.
        is_recipe: the image comes from one of our recipes, also where it is not here.
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
    source: Source = Source()
    program: bool = False
    after: tuple[str, ...] = ()
    seen: Seen = Seen()
    force: str | None = None
    environment: Environment | None = None
    engine: Engine | None = None
    script_file: ScriptFile | None = None
    notes: tuple[str, ...] = ()
    tree: Tree | None = None
    unchecked: str = ""
    to_fetch: str = ""
    is_recipe: bool = False
    shown: tuple[Shown, ...] = ()


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
    findings += [*judged.errors, *value_findings(job), *node_findings(job, inputs.origins)]
    findings += [*requeue.findings(job, asked_minutes(job)), *terminal.findings(job)]
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
    name = job.job_name or PurePosixPath(inputs.script).stem
    draft = Plan(
        toolkit=__version__,
        name=name,
        site=inputs.site.name,
        nodes=request.nodes,
        ranks_per_node=request.ranks_per_node,
        gpus_per_node=job.most_gpus,
        cpus_per_rank=request.cpus_per_rank,
        directives=directives(job, name, launch, request.cpus_per_rank, back),
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
        notes=notes,
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
    return _with_origins(draft, inputs, partition)


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
    has = gpus.on_a_node(inputs.site, partition, inputs.job.partition)
    decided = _collect(findings, lambda: gpus.resolved(inputs.job, has))
    job, notes = decided or (inputs.job, ())
    return inputs._replace(job=job), notes


def _case(inputs: Inputs, partition: Partition | None) -> Case:
    return Case(
        job=inputs.job,
        site=inputs.site,
        facts=inputs.facts,
        partition=partition,
        manifest=inputs.manifest,
        seen=inputs.seen,
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
    binds = _collect(findings, lambda: _binds(inputs)) if runtime and runtime.image else None
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
        binds=binds or (),
        source=inputs.source,
    )


def _container(inputs: Inputs, request: RuntimeRequest, findings: list[ToolkitError]) -> Container:
    runtime = runtimes.get(inputs.job.runtime)
    findings += runtime.check(request)
    launcher = inputs.job.launcher or ""
    if launcher in LAUNCHERS:
        findings += runtimes.launcher_findings(runtime.name, launcher)
    return runtime.container(request)


def _binds(inputs: Inputs) -> tuple[Bind, ...]:
    """Where the ranks run, the run's own directory, where the script is, the site's data, and what the user names; none within another."""
    own = [
        inputs.directory,
        inputs.run_directory,
        inputs.folder,
        *(one.path for one in inputs.shown),
    ]
    if inputs.tree is not None:
        own = [inputs.tree.cwd, inputs.run_directory, *own]
    kept: list[str] = []
    for path in (
        sorted(own, key=lambda path: len(PurePosixPath(path).parts)) if inputs.shown else own
    ):
        if not any(PurePosixPath(path).is_relative_to(other) for other in kept):
            kept.append(path)
    places = [checked_bind(Bind(source=path, target=path), "working directory") for path in kept]
    named = tuple(parse_bind(text, inputs.directory) for text in inputs.job.bind)
    taken = {bind.target for bind in named}
    data = (
        checked_bind(
            Bind(source=inputs.site.datasets[name], target=f"/data/{name}", read_only=True),
            "datasets",
        )
        for name in inputs.job.datasets
        if name in inputs.site.datasets and f"/data/{name}" not in taken
    )
    return (*places, *data, *named)


def _always(runtime: str | None) -> dict[str, str]:
    has_user_site = runtimes.get(runtime).has_user_site
    return {
        # ~/.local of the user would shadow the image's packages. To a Python of the host it
        # belongs.
        **({} if has_user_site else {"PYTHONNOUSERSITE": "1"}),
        # Ranks write to files, where Python would keep lines back until its buffer is full.
        "PYTHONUNBUFFERED": "1",
    }


def directives(
    job: Job, name: str, launch: Launch, cpus_per_rank: int, back: Requeue | None
) -> tuple[tuple[str, str], ...]:
    """Slurm's long options of the script, in a fixed order; those that nobody set are left to the cluster. "" for one without a value."""
    least, most = job.node_range
    equal, fixed = not job.gpus_by_node, least == most
    rows: list[tuple[str, object]] = [
        ("job-name", name),
        ("account", job.account),
        ("partition", job.partition),
        ("qos", job.qos),
        ("nodes", most if fixed else f"{least}-{most}"),
        # Slurm takes as few nodes as it can where it is told how many tasks are on each.
        ("ntasks-per-node", launch.ntasks_per_node if fixed else None),
        ("cpus-per-task", launch.cpus_per_task),
        ("gres", f"gpu:{job.most_gpus}" if job.most_gpus and equal else None),
        # Nodes that differ: so many in all, and each node's script looks how many it was given.
        ("gpus", None if equal else sum(job.gpus_by_node)),
        ("cpus-per-gpu", None if equal else cpus_per_rank),
        ("mem", job.mem),
        ("time", job.time),
        ("constraint", job.constraint),
        ("nodelist", job.nodelist),
        ("exclude", job.exclude),
        ("exclusive", "" if job.exclusive else None),
        ("reservation", job.reservation),
        ("dependency", job.dependency),
        # A job that can never start, because another one failed, does not wait for ever.
        ("kill-on-invalid-dep", "yes" if job.after and job.dependency else None),
        ("array", job.array),
        ("signal", requeue.directive(back) if back else job.signal),
        ("comment", job.comment),
        *(
            launch.directives
            or ((("requeue" if back else "no-requeue"), None if job.interactive else ""),)
        ),
    ]
    return tuple((key, str(value)) for key, value in rows if value is not None)


def _with_origins(draft: Plan, inputs: Inputs, partition: Partition | None) -> Plan:
    from msgspec.structs import replace

    origins = {key: value for key, value in inputs.origins.items() if key != "summary"}
    job = inputs.job
    if "gpus" in origins:
        origins["gpus_per_node"] = origins.pop("gpus")
    if job.ntasks_per_node is None:
        origins["ntasks_per_node"] = (
            "one per GPU" if job.most_gpus and draft.ranks_per_node == job.most_gpus else "default"
        )
    if job.cpus_per_task is None:
        origins["cpus_per_task"] = (
            "the GPUs' share of the node's CPUs"
            if job.most_gpus and partition and partition.gpus
            else "site"
        )
    if job.partition is None:
        origins["partition"] = (
            f"Slurm's default ({partition.name})" if partition else "Slurm's default"
        )
    if job.time is None:
        origins["time"] = "Slurm's default of the partition"
    if job.job_name is None:
        origins["job_name"] = "the script's name"
    if job.gpus_by_node:
        origins["nodes"] = f"one for each of {job.gpu_option}"
    origins |= {
        f"env {name}": _origin_of_variable(name, draft, inputs)
        for name in (*draft.environment, *draft.secrets)
    }
    own = len(draft.container.binds) - len(job.bind)
    named = inputs.origins.get("bind", "job")
    reasons = {one.path: one.reason for one in inputs.shown}
    for index, bind in enumerate(draft.container.binds):
        needed = reasons.get(bind.target, "the run needs it")
        origins[f"bind {bind.target}"] = named if index >= own else needed
    origins.pop("env", None)
    origins.pop("bind", None)
    return replace(draft, origins=dict(sorted(origins.items())))


def _origin_of_variable(name: str, draft: Plan, inputs: Inputs) -> str:
    if name in inputs.job.pass_env:
        return "this shell"
    if name in inputs.job.env:
        return inputs.origins.get("env", "job")
    if name in inputs.site.environment:
        return f"site {inputs.site.name}"
    return f"launcher {draft.launch.launcher}" if name in draft.launch.environment else "default"
