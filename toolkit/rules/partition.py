"""Rules about the partition: its state, size, nodes, GPUs, time, and the limits of one user."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.errors import ShapeError, ToolkitError, UsageError
from toolkit.model.case import Case
from toolkit.model.site import SitePartition, Use
from toolkit.quoting import alternatives
from toolkit.sites import resolve_gpu_type
from toolkit.slurm import hostlist
from toolkit.slurm.hostlist import task_ids
from toolkit.units import counted

_LIST = "sinfo --Node --format='%N %P %f' lists nodes, their partitions and their features"


def partition(case: Case) -> Iterator[ToolkitError]:
    """Require a partition that takes batch jobs and is up."""
    name = case.partition_name
    if case.written is not None and not case.written.batch:
        others = ", ".join(other for other, each in case.site.partitions.items() if each.batch)
        yield UsageError(
            f"partition {name} takes no batch jobs",
            place="--partition",
            next_step=f"one of {others}" if others else None,
            source=case.site.cited,
        )
    if case.partition is not None and not case.partition.available:
        yield UsageError(
            f"{name} is switched off for now",
            place="--partition",
            next_step="toolkit cluster show",
            source="sinfo",
            is_warning=True,
        )


def size(case: Case) -> Iterator[ToolkitError]:
    """Require as many nodes, CPUs and as much memory as the partition has.

    Slurm's own answer counts more than the site's file.
    """
    live, written = case.partition, case.written
    limits: tuple[tuple[int | None, str, str, str], ...] = ()
    if live is not None:
        limits = (
            (live.nodes, "--nodes", "node", "up"),
            (live.max_nodes, "--nodes", "node", "at most for one job"),
            (live.cpus, "--cpus-per-task", "CPU", "per node"),
            (live.memory or None, "--mem", "MB", "of memory per node"),
        )
    elif written is not None:
        limits = (
            (hostlist.count(written.nodes), "--nodes", "node", ""),
            (written.cpus, "--cpus-per-task", "CPU", "per node"),
            (written.memory, "--mem", "MB", "of memory per node"),
        )
    asked = {
        "--nodes": case.job.node_range[0],
        "--cpus-per-task": _cpus(case),
        "--mem": case.memory or 0,
    }
    known = [(has, place, unit, rest) for has, place, unit, rest in limits if has is not None]
    for has, place, unit, rest in sorted(known):  # the strictest of each option counts
        number = asked[place]
        if number <= has:
            continue
        asked[place] = 0
        steps = {
            "--cpus-per-task": f"at most {has} for all ranks of a node together",
            "--mem": f"--mem {has}M, or less",
            "--nodes": f"--nodes {has}" if has else "toolkit cluster show",
        }
        amount = f"{has} MB" if unit == "MB" else counted(has, unit)
        yield ShapeError(
            f"partition {case.partition_name} has {f'{amount} {rest}'.rstrip()}, "
            f"{number} {'were' if number != 1 else 'was'} asked for",
            place=place,
            next_step=steps[place],
            source=case.site.cited if live is None else "sinfo",
        )


def _cpus(case: Case) -> int:
    """Return the CPUs that the job takes of a node."""
    job = case.job
    return (job.cpus_per_task or 1) * (job.ntasks_per_node or job.most_gpus or 1)


def nodes(case: Case) -> Iterator[ToolkitError]:
    """Require the nodes in ``--nodelist`` and ``--exclude``."""
    known, partition = case.facts.nodes, case.partition_name
    given = {"--nodelist": case.job.nodelist, "--exclude": case.job.exclude}
    for place, hosts in given.items():
        if not hosts or not known or "/" in hosts:  # with a slash it is a file of names
            continue
        try:
            names = dict.fromkeys(hostlist.expand(hosts))
        except ValueError as error:
            step = f"{place} {next(iter(known))}"
            yield UsageError(str(error), place=place, next_step=step, source="sinfo")
            continue
        for name in names:
            if name not in known:
                yield UsageError(
                    f"the cluster has no node {name!r}",
                    place=place,
                    choices=known,
                    value=name,
                    next_step=_LIST,
                    source="sinfo",
                )
            elif place == "--nodelist" and partition and partition not in known[name].partitions:
                others = known[name].partitions
                yield UsageError(
                    f"node {name} is in partition {', '.join(others)}, not in {partition}",
                    place=place,
                    next_step=alternatives("--partition", others),
                    source="sinfo",
                )


def features(case: Case) -> Iterator[ToolkitError]:
    """Require the features in ``--constraint``, such as ``intel&[rack1*2|rack2*2]``."""
    text, known_nodes = case.job.constraint or "", case.facts.nodes.values()
    words = [re.sub(r"\*\d+$", "", word).strip() for word in re.split(r"[&|,\[\]()]", text)]
    wanted = [*dict.fromkeys(filter(None, words))]
    if not wanted or not known_nodes:
        return
    known = {feature for node in known_nodes for feature in node.features}
    missing = [name for name in wanted if name not in known]
    for name in missing:
        yield UsageError(
            f"no node has the feature {name!r}",
            place="--constraint",
            choices=known,
            value=name,
            next_step=_LIST,
            source="sinfo",
        )
    if missing or re.search(r"[|\[(]", text):
        return
    places = sorted(
        {name for node in known_nodes if {*wanted} <= {*node.features} for name in node.partitions}
    )
    if case.partition_name and case.partition_name not in places:
        yield UsageError(
            f"no node of partition {case.partition_name} has {text}",
            place="--constraint",
            next_step=f"with it: {alternatives('--partition', places)}" if places else _LIST,
            source="sinfo",
        )


def gpus(case: Case) -> Iterator[ToolkitError]:
    """Require as many GPUs as a node has.

    Slurm's own answer counts more than the site's file.
    """
    job, requested, live, written = case.job, case.job.most_gpus, case.partition, case.written
    if live is not None:
        name, error = resolve_gpu_type(case)
        kind = name if error is None and name else live.gpu_type
        has = live.gpus_by_type.get(kind or "", live.gpus)
        others = [each.name for each in case.facts.partitions if each.gpus >= requested]
    elif written is not None:
        has, kind, sites = written.gpus, written.gpu, case.site.partitions
        others = [name for name, each in sites.items() if each.gpus >= requested and each.batch]
    else:
        return
    if requested <= has:
        return
    number = f"{counted(has, 'GPU')}{f' ({kind})' if kind else ''}"
    least = f"{job.gpu_type}:{has}" if job.gpu_type else has
    fewer = f"{job.gpu_option} {least}" if has else f"leave {job.gpu_option} out"
    yield ShapeError(
        f"a node of partition {case.partition_name} has {number}, "
        f"{requested} {'was' if requested == 1 else 'were'} asked for",
        place=job.gpu_option,
        next_step=f"with as many: {', '.join(others)}" if others else fewer,
        source=case.site.cited if live is None else "sinfo",
    )


def gpu_types(case: Case) -> Iterator[ToolkitError]:
    """Require GPUs of the requested type in the partition."""
    _, error = resolve_gpu_type(case)
    if error is not None:
        error.source = case.site.cited if case.partition is None else "sinfo"
        yield error


def anywhere(case: Case) -> Iterator[ToolkitError]:
    """Require a partition that fits a job that names none.

    The cluster's default partition is not known here.
    """
    partitions = [each for each in case.site.partitions.values() if each.batch]
    if case.partition_name or not partitions or any(_fits(case, each) for each in partitions):
        return
    requested, option = case.job.most_gpus, case.job.gpu_option
    most = max(each.gpus for each in partitions)
    is_gpus = requested > most
    count = counted(case.job.node_range[0], "node")
    each = f" with {counted(requested, 'GPU')} each" if requested else ""
    yield ShapeError(
        f"no partition of site {case.site.name} has {count}{each}",
        place=option if is_gpus else "--nodes",
        next_step=f"{option} {most}" if is_gpus else f"toolkit site show {case.site.name}",
        source=case.site.cited,
    )


def _fits(case: Case, written: SitePartition) -> bool:
    count = hostlist.count(written.nodes)
    return (
        case.job.most_gpus <= written.gpus
        and (count is None or case.job.node_range[0] <= count)
        and (written.memory is None or (case.memory or 0) <= written.memory)
        and (written.cpus is None or _cpus(case) <= written.cpus)
    )


def user_gpus(case: Case) -> Iterator[ToolkitError]:
    """Compare the GPUs with those that one user may have in the partition at a time.

    Slurm keeps a job that asks for more waiting for ever.
    """
    limit, name, mine = case.limits.gpus, case.partition_name, case.facts.mine
    requested = sum(case.job.gpus_by_node) or case.job.most_gpus * case.job.node_range[0]
    used = mine[name].gpus if name in mine else 0
    if limit is None or not requested or used + requested <= limit:
        return
    may = f"one user may have {counted(limit, 'GPU')} in {name}"
    is_late = requested <= limit
    yield ShapeError(
        f"{may}; your running jobs have {used}, so that {requested} more have to wait"
        if is_late
        else f"{may}, {requested} were asked for",
        place="--nodes",
        next_step="toolkit cluster show" if is_late else "fewer nodes, or another partition",
        source=case.limits.source,
        is_warning=is_late,
    )


def user_jobs(case: Case) -> Iterator[ToolkitError]:
    """Compare the jobs with those that one user may have in the partition: queued, and running."""
    name, most, running = case.partition_name, case.limits.jobs_submitted, case.limits.jobs_running
    mine = case.facts.mine.get(name, Use())
    adds = len(task_ids(str(case.job.array))) or 1  # a job without an array
    if most is not None and mine.submitted + adds > most:
        yield ShapeError(
            f"one user may have {counted(most, 'job')} in {name}; "
            f"you have {mine.submitted}, and this would be {adds} more",
            place="--partition",
            next_step="wait for one to end, or another partition",
            source=case.limits.source,
        )
    elif running is not None and mine.running >= running:
        yield ShapeError(
            f"one user may have {running} running jobs in {name}, and you have {mine.running}: "
            "this one waits for one of them",
            place="--partition",
            next_step="toolkit cluster show",
            source=case.limits.source,
            is_warning=True,
        )


def time(case: Case) -> Iterator[ToolkitError]:
    """Compare the time with the limits of partition and site; the first broken one is reported.

    Slurm's answer about the partition comes first. Some sites give interactive jobs less time.
    """
    site, live, written = case.site, case.partition, case.written
    name, is_notebook = case.partition_name, case.launcher is not None and case.launcher.is_server
    interactive = site.interactive_minutes if case.job.interactive else None
    gives, minutes = f"site {site.name} gives", case.minutes
    limits = (
        (f"partition {name} gives", live.max_minutes if live else None, "sinfo"),
        (f"partition {name} gives", written.max_minutes if written else None, site.cited),
        (gives, site.max_minutes, site.cited),
        (f"{gives} interactive jobs", interactive, site.cited),
        (f"{gives} notebooks", site.notebook_minutes if is_notebook else None, site.cited),
    )
    for who, limit, source in limits:
        if limit is not None and minutes is not None and minutes > limit:
            yield ShapeError(
                f"{who} {counted(limit, 'minute')} at most, {minutes} were asked for",
                place="--time",
                next_step=f"--time {limit}",
                source=source,
            )
            return
