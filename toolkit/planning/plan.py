"""Decide all values of a run. Pure: the same case gives the same plan.

All errors are collected before one is raised, so that the user can fix them at once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

import msgspec
from msgspec.structs import replace

from toolkit import __version__, launchers, quoting, runtimes
from toolkit.errors import PlanError, ToolkitError, UnknownPartitionError, UsageError
from toolkit.launchers.torch import flight_recorder
from toolkit.model.base import convert, to_json
from toolkit.model.case import Case
from toolkit.model.job import Job, is_url
from toolkit.model.run import Forced, Launch, Plan, Point, Requeue
from toolkit.model.site import Partition, Site
from toolkit.model.slurm_options import OPTIONS
from toolkit.rules import judge
from toolkit.rules.job import contradictions
from toolkit.sites import resolve_gpu_type
from toolkit.text import is_secret, shows
from toolkit.units import counted

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
    requeue = requeueing(job, case.minutes)
    reports = _writes_reports(case, launch)
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
        directives=directives(case, launch, requeue, reports=reports and runtime.image != "docker"),
        slurm=passed_options(job),
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
        notify=notifying(job),
        interactive=bool(job.interactive),
        pty=bool(job.pty),
        points=points,
        notes=(*case.notes, *gpu_notes),
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
    has = gpus_on_a_node(case.site, partition, job.partition, job.gpu_type)
    job, notes = with_gpus(job, has)
    names = {"gpus": "gpus_per_node"}
    origins = {names.get(key, key): value for key, value in case.origins.items()}
    if case.after:
        dependencies = ",".join(filter(None, (job.dependency, *case.after)))
        job = replace(job, dependency=dependencies)
    case = case.with_findings(*gpu_findings(case.job))
    return case._replace(job=job, origins=origins), notes


def _swept(case: Case) -> tuple[Case, tuple[Point, ...]]:
    """Return the case with an array for its sweep, and what is wrong with it, and the points."""
    job = case.job
    if not job.sweep and job.array is None:
        return case, ()
    from toolkit.planning import sweep  # few jobs have one

    if findings := list(sweep.findings(job)):
        return case.with_findings(*findings), ()
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
        *option_findings(job, case.facts.sbatch_options),
        *(finding for finding in judged if finding not in overruled),
        *contradictions(case),
        *requeue_findings(case),
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


def _writes_reports(case: Case, launch: Launch) -> bool:
    """Return whether the ranks may be Python programs that can write reports.

    A directory with a colon in its path cannot be an entry of PYTHONPATH.
    """
    if case.launcher is None or not case.launcher.writes_reports or ":" in case.run:
        return False
    if not case.target.is_program:
        return True
    word = next(word for word in launch.program if not word.startswith("-"))  # torchrun's options
    name = PurePosixPath(word).name
    return name.startswith("python") or name in case.launcher.starters


def _origins(case: Case) -> dict[str, str]:
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
    origins = {key: value for key, value in given if key not in ("summary", "env", "bind")}
    if case.site.modules:
        origins["modules"] = " and ".join(("site", *filter(None, (origins.get("modules"),))))
    return origins | unset


def _environment(case: Case, launch: Launch, origins: dict[str, str]) -> dict[str, str]:
    """Return the variables of the ranks whose values may be shown, and note the source of all."""
    job, launcher, runtime = case.job, case.launcher, case.runtime
    # Ranks write to files, where Python would hold lines back until its buffer is full.
    defaults = {"PYTHONUNBUFFERED": "1"}
    if runtime is not None and not runtime.has_user_site:
        # The user's ~/.local would shadow the packages of an image; it belongs to a Python of the
        # host.
        defaults["PYTHONNOUSERSITE"] = "1"
    if launcher and launcher.framework == "torch.distributed" and _writes_reports(case, launch):
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


# The options of sbatch: directives, requeueing, GPUs, and those of --slurm.

_ASKED_SECONDS = 40  # before the time limit, at the latest


def directives(
    case: Case, launch: Launch, requeue: Requeue | None, *, reports: bool = False
) -> tuple[tuple[str, str], ...]:
    """Return the options of a plan's script in the order of the table; "" for one without a value.

    Options that are unset are left to the cluster.

    Args:
        case: of the plan.
        launch: how the ranks are started.
        requeue: how the job is requeued; None: it is not.
        reports: the ranks may be Python, which writes its stacks when it gets SIGURG.
    """
    job = case.job
    least, most = job.node_range
    is_equal, is_fixed = not job.gpus_by_node, least == most
    gpu_type, _ = resolve_gpu_type(case)
    kind = f"{gpu_type}:" if gpu_type else ""
    gres = [
        *([f"gpu:{kind}{job.most_gpus}"] if job.most_gpus and is_equal else []),
        *([str(job.slurm["gres"])] if "gres" in job.slurm else []),
    ]
    # A job that reaches its limit says where each rank was; who does not know SIGURG ignores it.
    is_free = "signal" not in {*job.slurm, *dict(launch.directives)} and not job.interactive
    asked = f"URG@{_ASKED_SECONDS}" if reports and is_free else None
    before = f"B:{requeue.signal}@{requeue.seconds}" if requeue and requeue.signal else None
    decided: dict[str, object] = {
        "job-name": case.name,
        "nodes": most if is_fixed else f"{least}-{most}",
        # If Slurm knows the number of tasks on each node, it allocates as few nodes as it can.
        "ntasks-per-node": launch.ntasks_per_node if is_fixed else None,
        "cpus-per-task": launch.cpus_per_task,
        "gres": ",".join(gres) or None,
        "gpus-per-node": None,
        # If nodes differ, Slurm gets the total, and each node's script counts its GPUs.
        "gpus": None if is_equal else f"{kind}{sum(job.gpus_by_node)}",
        "cpus-per-gpu": None if is_equal else case.cpus_per_rank,
        "exclusive": "" if job.exclusive is True else job.exclusive or None,
        # Cancel a job that can never start because another job failed.
        "kill-on-invalid-dep": job.slurm.get(
            "kill-on-invalid-dep", "yes" if job.after and job.dependency else None
        ),
        "signal": before or job.signal or asked,
        "requeue": None,
    }
    rows: list[tuple[str, object]] = [
        (option.name, decided.get(option.name, getattr(job, option.field, None)))
        for option in OPTIONS.values()
        if option.kind or option.name in decided
    ]
    rows += launch.directives or (("requeue" if requeue else "no-requeue", ""),)
    return tuple(
        (key, str(value)) for key, value in rows if value is not None and _applies(key, job)
    )


# Options of ``--slurm`` that the directives already have.
_IN_DIRECTIVES = ("gres", "kill-on-invalid-dep")


def passed_options(job: Job) -> dict[str, str | None]:
    """Return the options that are passed to sbatch unchanged; None for one without a value."""
    mail = {"mail-type": "END,FAIL"} if job.notify == "mail" else {}
    return {
        name: None if value is True else str(value)
        for name, value in (mail | job.slurm).items()
        if name not in _IN_DIRECTIVES and _applies(name, job)
    }


def _applies(name: str, job: Job) -> bool:
    """Return whether the command that starts a job, sbatch or salloc, has an option."""
    return not job.interactive or name not in OPTIONS or OPTIONS[name].in_salloc


def option_findings(job: Job, installed: Collection[str]) -> Iterator[ToolkitError]:
    """Yield the errors of the options that the user passes to sbatch.

    Args:
        job: the merged settings.
        installed: the options that ``sbatch --help`` lists; empty if there is no sbatch.
    """
    for name, value in job.slurm.items():
        place, option = f"--slurm {name}", OPTIONS.get(name)
        if name == "gres" and any(each.strip().startswith("gpu") for each in str(value).split(",")):
            option = OPTIONS["gpus-per-node"]
        try:
            quoting.sbatch_option(name)
            quoting.sbatch(value)
        except UsageError as error:
            yield UsageError(error.cause, place=place, next_step=error.next_step)
            continue
        if option is not None and option.refusal:
            cause = f"--{name} cannot be passed to sbatch: {option.refusal}"
            yield UsageError(cause, place=place, next_step=option.instead or None)
        elif value is True and option is not None and option.takes == "value":
            # sbatch would take the next line of the script as its value.
            yield UsageError(f"--{name} needs a value", place=place, next_step=f"{place}=VALUE")
        elif installed and name not in installed and (option is None or option.in_help):
            yield _unknown(name, installed)


def _unknown(name: str, installed: Collection[str]) -> UsageError:
    refused = {key for key, option in OPTIONS.items() if option.refusal}
    return UsageError(
        f"the sbatch of this cluster has no option --{name}",
        place=f"--slurm {name}",
        choices=sorted({*installed} - refused),
        value=name,
        next_step="sbatch --help lists them",
    )


# What tells the URL in a file of the run, which neither a script nor a list of processes shows.
_POST = (
    'curl --silent --fail --max-time 20 --config "$run/notify" --output /dev/null '
    '--header "Content-Type: application/json" --data "$NOTIFY_JSON"'
)


def notifying(job: Job) -> str:
    """Return the command by which the script tells of its end; empty if it does not."""
    if not job.notify or job.notify == "mail" or job.interactive:
        return ""
    return _POST if is_url(job.notify) else job.notify


_TIMES = 20
_SECONDS = 120
# Slurm checks time limits periodically, and may send a signal up to so many seconds too early.
_EARLY = 60
_SIGNAL = re.compile(r"(?P<to>[BR]{0,2}:)?(?:SIG)?(?P<name>[A-Z]+\d?|\d+)(?:@(?P<seconds>\d+))?\Z")
_NAMES = {"USR1": "USR1", "USR2": "USR2", "10": "USR1", "12": "USR2"}


def requeueing(job: Job, minutes: int | None) -> Requeue | None:
    """Fill in the defaults of requeueing, which has no errors. Return None if it is off.

    Slurm signals the batch shell (``--signal=B:USR1@120``), which signals the ranks, waits for
    them, and asks Slurm to queue the job again, so that it continues from what it has saved. Ranks
    that do not handle the signal ignore it. A job that exits with 0 meanwhile has finished. The
    script logs each step in the batch shell's log, from which ``runs.attempts`` reads the history.

    Args:
        job: the merged settings.
        minutes: the job's time limit; None: it has none, or that of its partition.
    """
    retries = job.retry or 0
    if not job.requeue:
        off = Requeue(signal="", seconds=0, wait=0, times=0, retries=retries)
        return off if retries else None
    name, seconds = _signal(job, minutes)
    return Requeue(
        signal=name,
        seconds=seconds,
        wait=max(seconds - 20, seconds // 2, 1),
        times=job.max_requeues or _TIMES,
        retries=retries,
    )


def requeue_findings(case: Case) -> Iterator[ToolkitError]:
    """Yield the settings that contradict requeueing."""
    job = case.job
    if not job.requeue:
        return
    match = _SIGNAL.match(job.signal or "B:USR1")
    if not match or "B" not in (match["to"] or "") or match["name"] not in _NAMES:
        yield UsageError(
            f"--requeue needs USR1 or USR2 to the batch shell (B:) only, got {job.signal!r}",
            place="--signal",
            next_step=f"--signal B:USR1@{_SECONDS}, or leave --signal out",
        )
        return
    minutes, seconds = case.minutes, _signal(job, case.minutes)[1]
    if minutes is not None and minutes * 60 <= seconds + _EARLY:
        yield UsageError(
            f"a job of {counted(minutes, 'minute')} would be stopped as soon as it runs: Slurm "
            f"sends the signal {seconds} s before the time limit, and up to {_EARLY} s earlier",
            place="--signal",
            next_step="give a longer --time, or a signal nearer to the end: "
            "--signal B:USR1@SECONDS",
        )


def _signal(job: Job, minutes: int | None) -> tuple[str, int]:
    """Return the signal, and how many seconds before the time limit Slurm sends it.

    The default is at most a quarter of the time.
    """
    match = _SIGNAL.match(job.signal or "B:USR1")
    assert match
    usual = _SECONDS if minutes is None else max(1, min(_SECONDS, minutes * 15))
    return _NAMES[match["name"]], int(match["seconds"] or usual)


def gpus_on_a_node(
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


def gpu_findings(job: Job) -> Iterator[ToolkitError]:
    """Yield an error if `--gpus` and `--gpus-per-node` contradict each other."""
    if job.gpus is None or job.gpus_per_node is None:
        return
    total = sum(job.gpus_by_node) or job.most_gpus * job.node_range[1]
    kind = f"{job.gpu_type}:" if job.gpu_type else ""
    if str(job.gpus) not in (str(total), f"{kind}{total}"):
        yield UsageError(
            f"--gpus-per-node {job.gpus_per_node} gives {kind}{total} GPUs, "
            f"--gpus asks for {job.gpus}",
            place="--gpus",
            next_step="leave --gpus out",
        )
