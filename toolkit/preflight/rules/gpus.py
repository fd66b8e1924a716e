"""Rules about GPUs, and the limits of one user."""

from __future__ import annotations

from toolkit.checks import Result, check, from_error
from toolkit.errors import ShapeError
from toolkit.model.case import Case
from toolkit.model.site import Use
from toolkit.sites.rules import resolve_gpu_type
from toolkit.slurm.queue import task_ids
from toolkit.units import counted


@check("gpus", "as many GPUs as a node has", order=30)
def check_gpus(case: Case) -> list[Result]:
    """Check the GPUs per node.

    Slurm's own answer counts more than the site's file.
    """
    requested = case.job.most_gpus
    has, kind, source = _has(case)
    if has is None or requested <= has:
        return []
    least = f"{case.job.gpu_type}:{has}" if case.job.gpu_type else has
    number = f"{counted(has, 'GPU')}{kind}"
    verb = "was" if requested == 1 else "were"
    cause = f"a node of partition {case.partition_name} has {number}, {requested} {verb} asked for"
    fewer = f"{case.job.gpu_option} {least}" if has else f"leave {case.job.gpu_option} out"
    step = _elsewhere(case, requested) or fewer
    return [from_error(ShapeError(cause, place=case.job.gpu_option, next_step=step), source)]


def _has(case: Case) -> tuple[int | None, str, str]:
    if case.partition is not None:
        wanted = resolve_gpu_type(case)
        kind = wanted.name if wanted.error is None and wanted.name else case.partition.gpu_type
        count = case.partition.gpus_by_type.get(kind or "", case.partition.gpus)
        return count, f" ({kind})" if kind else "", "sinfo"
    if case.written is not None:
        return (
            case.written.gpus,
            f" ({case.written.gpu})" if case.written.gpu else "",
            case.site.cited,
        )
    return None, "", ""


def _elsewhere(case: Case, requested: int) -> str:
    """Return the partitions that have nodes with so many GPUs, as advice."""
    live = [partition.name for partition in case.facts.partitions if partition.gpus >= requested]
    written = [
        name for name, each in case.site.partitions.items() if each.gpus >= requested and each.batch
    ]
    names = ", ".join(live if case.partition is not None else written)
    return f"with as many: {names}" if names else ""


@check("gpu_types", "GPUs of a type that a partition has", order=35)
def check_gpu_types(case: Case) -> list[Result]:
    """Check that the partition has GPUs of the requested type.

    Slurm's own answer counts more than the site's file.
    """
    error = resolve_gpu_type(case).error
    source = case.site.cited if case.partition is None else "sinfo"
    return [from_error(error, source)] if error is not None else []


@check("user_gpus", "GPUs that one user may have", order=50)
def check_user_gpus(case: Case) -> list[Result]:
    """Check the GPUs that one user may have in a partition at a time.

    Slurm keeps a job that asks for more waiting for ever.
    """
    limit, name = case.limits.gpus, case.partition_name
    requested = sum(case.job.gpus_by_node) or case.job.most_gpus * case.job.node_range[0]
    if limit is None or not requested:
        return []
    if requested > limit:
        cause = f"one user may have {counted(limit, 'GPU')} in {name}, {requested} were asked for"
        return [
            from_error(
                ShapeError(cause, place="--nodes", next_step="fewer nodes, or another partition"),
                case.limits.source,
            )
        ]
    used = case.facts.mine[name].gpus if name in case.facts.mine else 0
    if used + requested <= limit:
        return []
    cause = (
        f"one user may have {counted(limit, 'GPU')} in {name}; "
        f"your running jobs have {used}, so that {requested} more have to wait"
    )
    return [
        from_error(
            ShapeError(cause, place="--nodes", next_step="toolkit cluster show"),
            case.limits.source,
            stops=False,
        )
    ]


@check("user_jobs", "jobs that one user may have", order=60)
def check_user_jobs(case: Case) -> list[Result]:
    """Check the jobs that one user may have in a partition: queued, and running."""
    name, most, running = case.partition_name, case.limits.jobs_submitted, case.limits.jobs_running
    mine = case.facts.mine.get(name, Use())
    adds = len(task_ids(str(case.job.array if case.job.array is not None else 0))) or 1
    if most is not None and mine.submitted + adds > most:
        cause = (
            f"one user may have {counted(most, 'job')} in {name}; "
            f"you have {mine.submitted}, and this would be {adds} more"
        )
        return [
            from_error(
                ShapeError(
                    cause,
                    place="--partition",
                    next_step="wait for one to end, or another partition",
                ),
                case.limits.source,
            )
        ]
    if running is not None and mine.running >= running:
        cause = (
            f"one user may have {running} running jobs in {name}, and you have {mine.running}: "
            "this one waits for one of them"
        )
        return [
            from_error(
                ShapeError(cause, place="--partition", next_step="toolkit cluster show"),
                case.limits.source,
                stops=False,
            )
        ]
    return []
