"""Decide the options of sbatch: directives, requeueing, GPUs, and those of ``--slurm``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from toolkit import quoting
from toolkit.errors import ToolkitError, UsageError
from toolkit.model.case import Case
from toolkit.model.job import Job, is_url
from toolkit.model.run import Launch, Requeue
from toolkit.model.site import Partition, Site
from toolkit.model.slurm_options import OPTIONS, SHORT, Takes
from toolkit.sites import resolve_gpu_type
from toolkit.units import counted

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


def passed(job: Job) -> dict[str, str | None]:
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


def findings(job: Job, installed: Mapping[str, Takes]) -> Iterator[ToolkitError]:
    """Yield the errors of the options that the user passes to sbatch.

    Args:
        job: the merged settings.
        installed: the options that ``sbatch --help`` lists; empty if there is no sbatch.
    """
    gpus = OPTIONS["gpus-per-node"]
    for name, value in job.slurm.items():
        place, option = f"--slurm {name}", OPTIONS.get(name)
        takes = option.takes if option is not None else installed.get(name, "maybe")
        asks_gpus = any(entry.strip().startswith("gpu") for entry in str(value).split(","))
        is_missing = name not in installed and (option is None or option.in_help)
        try:
            quoting.sbatch_option(name)
            quoting.sbatch(value)
        except UsageError as error:
            yield UsageError(error.cause, place=place, next_step=error.next_step)
            continue
        cause = step = ""
        if option is not None and option.refusal:
            cause = f"--{name} cannot be passed to sbatch: {option.refusal}"
            step = option.instead
        elif name == "gres" and asks_gpus:
            cause, step = f"GPUs cannot be passed to sbatch: {gpus.refusal}", gpus.instead
        elif is_missing and name in SHORT:
            cause = f"{name!r} is a short option; --slurm takes long names"
            step = f"--slurm {SHORT[name]}"
        elif is_missing and installed:
            yield _unknown(name, installed)
        elif takes == "flag" and value is not True:
            cause, step = f"sbatch's --{name} takes no value, got {value!r}", place
        elif takes == "value" and value is True:
            cause, step = f"sbatch's --{name} needs a value", f"{place}=VALUE"
        if cause:
            yield UsageError(cause, place=place, next_step=step or None)


def notes(job: Job, installed: Mapping[str, Takes]) -> tuple[str, ...]:
    """Return a note for each unknown option if there is no sbatch that could list it."""
    return tuple(
        f"--slurm {name}: not an option of Slurm 22.05 to 26.05, and this machine has no sbatch to "
        "check it with; the script has it unchanged"
        for name in job.slurm
        if name not in OPTIONS and not installed
    )


def _unknown(name: str, installed: Mapping[str, Takes]) -> UsageError:
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
    """Yield the settings that contradict requeueing, and a script that cannot handle its signal."""
    job, script = case.job, case.target.script
    if not job.requeue:
        if job.max_requeues is not None and job.requeue is None:
            yield UsageError(
                "--max-requeues has no effect without --requeue",
                place="--max-requeues",
                next_step="add --requeue",
            )
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
    # Ranks start with the signal ignored, so that it ends no rank that does not handle it, and
    # POSIX lets no shell trap a signal that was ignored when the shell started.
    if script.endswith(".sh"):
        yield UsageError(
            f"the shell that runs {script} cannot trap the signal of --requeue: "
            "handle it in a program that the script starts",
            is_warning=True,
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
