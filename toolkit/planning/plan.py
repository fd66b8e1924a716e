"""Decide all values of a run. Pure: the same case gives the same plan.

All errors are collected before one is raised, so that the user can fix them at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

import msgspec
from msgspec.structs import replace

from toolkit import __version__, launchers, runtimes
from toolkit.errors import PlanError, ToolkitError, UnknownPartitionError, UsageError
from toolkit.launchers.torch import flight_recorder
from toolkit.model.base import convert, to_json
from toolkit.model.case import Case
from toolkit.model.job import Job
from toolkit.model.run import Forced, Launch, Plan, Point
from toolkit.planning import options
from toolkit.rules import judge
from toolkit.rules.job import contradictions
from toolkit.text import is_secret, shows

# What the site's file, the image and the machine decide without a setting.
_FROM_OUTSIDE = ("container", "environment", "launch", "modules", "ports")


def decide(case: Case) -> Plan:
    """Decide all values of a job.

    Raises:
        PlanError: with all errors, if there is one; nothing has been written or submitted.
    """
    case, gpu_notes = _resolved(case.in_snapshot)
    case, points = _swept(case)
    job, launcher, runtime = case.job, case.launcher, case.runtime
    findings, forced = _findings(case)
    errors = [finding for finding in findings if not finding.is_warning]
    if errors or launcher is None or runtime is None:
        raise PlanError(
            f"this job could not run on site {case.site.name}; nothing was submitted", errors
        )
    launch = launcher.launch(case)
    container = runtime.container(case)
    requeue = options.requeueing(job, case.minutes)
    reports = _writes_reports(case)
    origins = _origins(case)
    forced_texts = [f"forced: {text}" for text in (forced.findings if forced else ())]
    for bind in container.binds:
        reason = case.shown.get(bind.target, "the run needs it")
        is_named = bind in case.binds
        origins[f"bind {bind.target}"] = case.origins.get("bind", "job") if is_named else reason
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
        notify=options.notifying(job),
        interactive=bool(job.interactive),
        pty=bool(job.pty),
        points=points,
        notes=(*case.notes, *gpu_notes, *options.notes(job, case.facts.sbatch_options)),
        warnings=(*forced_texts, *(finding.summary for finding in findings)),
        forced=forced,
        script_file=None if job.interactive else case.script_file,
        ports=case.site.ports,
        reports=reports,
    )
    return fresh if case.repeats is None else as_recorded(case.repeats, fresh)


def _resolved(case: Case) -> tuple[Case, tuple[str, ...]]:
    """Return the case with all that its job leaves to be decided, and notes for the user."""
    job, partition = case.job, case.partition
    has = options.gpus_on_a_node(case.site, partition, job.partition, job.gpu_type)
    job, notes = options.with_gpus(job, has)
    names = {"gpus": "gpus_per_node"}
    origins = {names.get(key, key): value for key, value in case.origins.items()}
    if case.after:
        dependencies = ",".join(filter(None, (job.dependency, *case.after)))
        job = replace(job, dependency=dependencies)
    case = case.with_findings(*options.gpu_findings(case.job))
    return case._replace(job=job, origins=origins), notes


def _swept(case: Case) -> tuple[Case, tuple[Point, ...]]:
    """Return the case with an array for its sweep, and what is wrong with it, and the points."""
    job = case.job
    if not job.sweep and job.array is None:
        return case, ()
    from toolkit.planning import sweep  # few jobs have one

    findings = list(sweep.findings(job, case.source))
    case = case.with_findings(*findings)
    if any(not finding.is_warning for finding in findings):
        return case, ()
    points = sweep.points(job)
    last = f"-{len(points) - 1}" if len(points) > 1 else ""
    array = f"0{last}" if points and job.array is None else job.array
    return case._replace(job=replace(job, array=array)), points


def _findings(case: Case) -> tuple[list[ToolkitError], Forced | None]:
    """Return all findings of a case, without the errors that the user overrules, and those."""
    job, judged = case.job, judge(case)
    overruled = [error for error in judged if case.force is not None and not error.is_warning]
    findings = [
        *case.findings,
        *_own_findings(case),
        *options.findings(job, case.facts.sbatch_options),
        *(finding for finding in judged if finding not in overruled),
        *contradictions(case),
        *options.requeue_findings(case),
        *launchers.check(case),
        *runtimes.check(case),
    ]
    texts = tuple(error.summary for error in overruled)
    forced = Forced(reason=case.force or "", findings=texts) if overruled else None
    return findings, forced


def _own_findings(case: Case) -> Iterator[ToolkitError]:
    """Yield an unknown partition, and arguments that look like secrets."""
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
    if shows(case.job.arguments):
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


def as_recorded(recorded: Plan, fresh: Plan) -> Plan:
    """Return the recorded plan of a run, for the directory of its repetition.

    Args:
        recorded: the plan of the run.
        fresh: a plan of the same settings, made now. It is only compared; the warnings, the hash of
            the script and the absence of dependencies on other runs come from it.
    """
    places = (recorded.run_directory, fresh.run_directory)
    old, new = (msgspec.json.encode(place).decode()[1:-1] for place in places)
    text = re.sub(rf'{re.escape(old)}(?=[/"])', lambda _: new, to_json(recorded))
    data = msgspec.json.decode(text)
    # How a variable gets to the ranks is the template's business, which is that of today.
    data["container"]["prefix"] = fresh.container.prefix
    again = convert(data, Plan)
    now = dict(fresh.directives)
    after = ("dependency", "kill-on-invalid-dep")
    changed = [name for name in _FROM_OUTSIDE if getattr(again, name) != getattr(fresh, name)]
    text = f"the site, the image or the toolkit has changed; as recorded: {', '.join(changed)}"
    return replace(
        again,
        toolkit=fresh.toolkit,
        directives=tuple(row for row in again.directives if row[0] not in after or row[0] in now),
        script_file=fresh.script_file,
        forced=fresh.forced,
        notes=(*fresh.notes, *([text] if changed else ())),
        warnings=fresh.warnings,
    )
