"""Rules about the partition: it is up, large enough, and allows the time."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.checks import Result, check, from_error
from toolkit.errors import ShapeError, UsageError
from toolkit.model.case import Case
from toolkit.model.site import SitePartition
from toolkit.slurm import hostlist
from toolkit.units import counted


@check("partition", "the partition takes batch jobs and is up", order=10)
def check_partition(case: Case) -> Iterator[Result]:
    """Check that the partition takes batch jobs and is up."""
    name = case.partition_name
    if case.written is not None and not case.written.batch:
        others = ", ".join(other for other, each in case.site.partitions.items() if each.batch)
        error = UsageError(
            f"partition {name} takes no batch jobs",
            place="--partition",
            next_step=f"one of {others}" if others else None,
        )
        yield from_error(error, case.site.cited)
    if case.partition is not None and not case.partition.available:
        error = UsageError(
            f"{name} is switched off for now", place="--partition", next_step="toolkit cluster show"
        )
        yield from_error(error, "sinfo", stops=False)


@check("size", "as many nodes and CPUs as there are", order=20)
def check_size(case: Case) -> list[Result]:
    """Check nodes, CPUs and memory against the partition.

    Slurm's own answer counts more than the site's file.
    """
    job, name = case.job, case.partition_name
    least, _ = job.node_range
    cpus = (job.cpus_per_task or 1) * (job.ntasks_per_node or job.most_gpus or 1)
    requested = {"--nodes": least, "--cpus-per-task": cpus, "--mem": case.memory or 0}
    results: dict[str, Result] = {}
    known = (
        (has, place, what, source) for place, what, has, source in _limits(case) if has is not None
    )
    for has, place, what, source in sorted(known):  # the strictest limit of each option counts
        if requested[place] > has and place not in results:
            number = requested[place]
            verb = "were" if number != 1 else "was"
            cause = f"partition {name} has {_counted(has, what)}, {number} {verb} asked for"
            error = ShapeError(cause, place=place, next_step=_fit(place, has))
            results[place] = from_error(error, source)
    return list(results.values())


def _counted(number: int, what: str) -> str:
    """Return ``11 nodes up`` for ``node up``."""
    noun, _, rest = what.partition(" ")
    return f"{f'{number} MB' if noun == 'MB' else counted(number, noun)} {rest}".rstrip()


def _limits(case: Case) -> Iterator[tuple[str, str, int | None, str]]:
    """Yield the option, the unit, the limit and the source of each limit."""
    live, written = case.partition, case.written
    if live is not None:
        yield "--nodes", "node up", live.nodes, "sinfo"
        yield "--nodes", "node at most for one job", live.max_nodes, "sinfo"
        yield "--cpus-per-task", "CPU per node", live.cpus, "sinfo"
        yield "--mem", "MB of memory per node", live.memory or None, "sinfo"
    elif written is not None:
        yield "--nodes", "node", hostlist.count(written.nodes), case.site.cited
        yield "--cpus-per-task", "CPU per node", written.cpus, case.site.cited
        yield "--mem", "MB of memory per node", written.memory, case.site.cited


def _fit(place: str, limit: int) -> str:
    if place == "--cpus-per-task":
        return f"at most {limit} for all ranks of a node together"
    if place == "--mem":
        return f"--mem {limit}M, or less"
    return f"{place} {limit}" if limit else "toolkit cluster show"


@check("anywhere", "a partition that fits, where none is named", order=40)
def check_anywhere(case: Case) -> list[Result]:
    """Check that some partition fits a job that names none.

    The cluster's default partition is not known here.
    """
    partitions = [each for each in case.site.partitions.values() if each.batch]
    if case.partition_name or not partitions or any(_fits(case, each) for each in partitions):
        return []
    gpus, (nodes, _) = case.job.most_gpus, case.job.node_range
    cause = f"no partition of site {case.site.name} has {counted(nodes, 'node')}"
    cause += f" with {counted(gpus, 'GPU')} each" if gpus else ""
    most = max(each.gpus for each in partitions)
    place, step = (
        (case.job.gpu_option, f"{case.job.gpu_option} {most}")
        if gpus > most
        else ("--nodes", f"toolkit site show {case.site.name}")
    )
    return [from_error(ShapeError(cause, place=place, next_step=step), case.site.cited)]


def _fits(case: Case, partition: SitePartition) -> bool:
    job, nodes = case.job, hostlist.count(partition.nodes)
    cpus = (job.cpus_per_task or 1) * (job.ntasks_per_node or job.most_gpus or 1)
    return (
        job.most_gpus <= partition.gpus
        and (nodes is None or job.node_range[0] <= nodes)
        and (partition.memory is None or (case.memory or 0) <= partition.memory)
        and (partition.cpus is None or cpus <= partition.cpus)
    )


@check("time", "time limits", order=70)
def check_time(case: Case) -> list[Result]:
    """Check the time limits of the partition and of the site, and report the first that is broken.

    Slurm's answer about the partition comes first. Some sites give interactive jobs less time.
    """
    name, site = f"partition {case.partition_name} gives", f"site {case.site.name} gives"
    waiting = case.site.interactive_minutes if case.job.interactive else None
    is_notebook = case.launcher is not None and case.launcher.is_server
    served = case.site.notebook_minutes if is_notebook else None
    limits = (
        (name, case.partition.max_minutes if case.partition else None, "sinfo"),
        (name, case.written.max_minutes if case.written else None, case.site.cited),
        (site, case.site.max_minutes, case.site.cited),
        (f"{site} interactive jobs", waiting, case.site.cited),
        (f"{site} notebooks", served, case.site.cited),
    )
    for who, limit, source in limits:
        if case.minutes is not None and limit is not None and case.minutes > limit:
            cause = f"{who} {counted(limit, 'minute')} at most, {case.minutes} were asked for"
            return [
                from_error(ShapeError(cause, place="--time", next_step=f"--time {limit}"), source)
            ]
    return []
