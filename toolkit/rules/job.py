"""Rules about the job: what its partition has and one user may have, options, and arguments."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import prod
from pathlib import PurePosixPath

from toolkit import units
from toolkit.errors import (
    BindMissingError,
    LauncherMismatchError,
    ShapeError,
    ToolkitError,
    UsageError,
)
from toolkit.launchers import LAUNCHERS, offered
from toolkit.launchers.base import Ability
from toolkit.model.case import Case
from toolkit.model.job import Job
from toolkit.model.site import PORTS, SitePartition, Use
from toolkit.model.slurm_options import OTHER_NAMES, OWN
from toolkit.quoting import sbatch, shell
from toolkit.sites import comment_example, comment_problem, resolve_gpu_type
from toolkit.slurm import hostlist
from toolkit.slurm.hostlist import task_ids
from toolkit.units import counted


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
    job = case.job
    return (job.cpus_per_task or 1) * (job.ntasks_per_node or job.most_gpus or 1)


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
    limit = case.limits.gpus
    requested = sum(case.job.gpus_by_node) or case.job.most_gpus * case.job.node_range[0]
    if limit is not None and requested > limit:
        yield ShapeError(
            f"one user may have {counted(limit, 'GPU')} in {case.partition_name}, "
            f"{requested} were asked for",
            place="--nodes",
            next_step="fewer nodes, or another partition",
            source=case.limits.source,
        )


def user_jobs(case: Case) -> Iterator[ToolkitError]:
    """Compare the jobs with those that one user may have in the partition."""
    name, most = case.partition_name, case.limits.jobs_submitted
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


# As Megatron-LM, NeMo and torchtitan name the sizes of a mesh. Their product divides the ranks; the
# quotient is the number of copies of the network (data parallelism).
SIZES = frozenset(
    f"{kind}{model}_parallel_{size}"
    for kind in ("tensor", "pipeline", "context")
    for model in ("", "_model")
    for size in ("size", "degree")
)
CHECKPOINTS = frozenset(
    (
        *("checkpoint", "checkpoint_dir", "checkpoint_folder", "ckpt_dir"),
        *("save", "save_dir", "snapshot"),
    )
)
_RANK_IS_PROCESS = ("torchrun", "srun")  # others may start processes of their own
_LOWEST, _HIGHEST = 1024, 65535  # ports that a user can listen at
_LEAST = 64  # with fewer, jobs on one node meet at the same ones


def contradictions(case: Case) -> Iterator[ToolkitError]:
    """Yield what no script can be written for, and ``--force`` cannot overrule."""
    yield from _values(case)
    yield from _nodes(case)
    yield from _launcher(case)
    yield from _interactive(case)


def _values(case: Case) -> Iterator[ToolkitError]:
    """Yield the values that an ``#SBATCH`` line or a shell cannot carry."""
    job = case.job
    if job.time is not None:
        try:
            units.minutes(str(job.time))
        except ValueError as error:
            yield UsageError(str(error), place="--time", next_step="--time 2:00:00")
    if job.mem is not None and case.memory is None:
        yield UsageError(
            f"{str(job.mem)!r} is not a size; Slurm's are 16G, 500M, or a number of megabytes",
            place="--mem",
            next_step="--mem 16G",
        )
    for own in OWN:
        value, flag = getattr(job, own.field), f"--{own.name}"
        if own.name in ("mem", "time") or not isinstance(value, str):
            continue
        try:
            sbatch(value)
        except UsageError as error:
            yield UsageError(error.cause, place=flag, next_step=error.next_step)
        if value == "":
            yield UsageError(
                "the value is empty", place=flag, next_step=f"leave {flag} out, or give it a value"
            )
    for name in job.env:
        if not (name.isidentifier() and name.isascii()):
            yield UsageError(
                f"{name!r} cannot be the name of a variable",
                place="--env",
                next_step="--env NAME=VALUE",
            )


def _nodes(case: Case) -> Iterator[ToolkitError]:
    """Yield numbers of nodes that run backwards, or contradict the GPUs given for each node."""
    job = case.job
    (least, most), named, option = job.node_range, len(job.gpus_by_node), job.gpu_option
    given = f"{option} {','.join(map(str, job.gpus_by_node))}"
    if least > most:
        yield UsageError(
            f"{job.nodes} runs backwards", place="--nodes", next_step=f"--nodes {most}:{least}"
        )
    elif 0 in job.gpus_by_node:
        yield UsageError(
            f"a node of {given} has no GPU", place=option, next_step="leave that node out"
        )
    elif named and (least, most) != (named, named):
        yield UsageError(
            f"{given} is for {named} nodes, and --nodes is {job.nodes}",
            place=option,
            next_step=f"leave --nodes out, or --nodes {named}",
        )
    elif named and job.ntasks_per_node is not None:
        yield UsageError(
            f"{given} gives each node as many ranks as it has GPUs, and "
            f"{case.origins.get('ntasks_per_node', '--ntasks-per-node')} is {job.ntasks_per_node}",
            place=option,
            next_step="leave --ntasks-per-node out",
        )


def _launcher(case: Case) -> Iterator[ToolkitError]:
    """Yield what the job asks of its launcher that this cannot do."""
    job, (least, most), option = case.job, case.job.node_range, case.job.gpu_option
    fewest = min(job.gpus_by_node, default=0)
    asked: dict[Ability, tuple[bool, str, str, str]] = {
        "elastic": (
            least != most,
            "--nodes",
            "use nodes whose number may change",
            str(most),
        ),
        "unequal": (fewest > 0, option, "start ranks on nodes that differ", str(fewest)),
        "pty": (bool(job.pty), "--pty", "give ranks a terminal", ""),
        "max_restarts": (job.max_restarts is not None, "--max-restarts", "restart ranks", ""),
        "init": (job.init is not None, "--init", "choose how ranks meet", ""),
    }
    for ability, (is_asked, place, what, value) in asked.items():
        if is_asked and case.launcher and ability not in case.launcher.can:
            others = ", ".join(name for name in offered() if ability in LAUNCHERS[name].can)
            step = f"{place} {value}" if value else "leave it out"
            yield LauncherMismatchError(
                f"the launcher {case.launcher.name} cannot {what}",
                place=place,
                next_step=f"{step}, or a launcher that can: {others}",
            )


def _interactive(case: Case) -> Iterator[ToolkitError]:
    job, (least, most) = case.job, case.job.node_range
    given = {
        "--array": job.array is not None,
        "--requeue": job.requeue,
        "--nodes": least < most,
        "--retry": bool(job.retry),
    }
    for option, is_given in given.items():
        if is_given and job.interactive:
            yield UsageError(
                "an interactive run is one job that runs once, on a fixed number of nodes",
                place=option,
                next_step=f"leave out {option}, or --interactive",
            )


def mesh(case: Case) -> Iterator[ToolkitError]:
    """Require sizes of a mesh, among the script's arguments, that divide the number of ranks."""
    job = case.job
    given = {name: (flag, value) for name, flag, value in _arguments(job, SIZES)}  # the last counts
    sizes = {flag: int(value) for flag, value in given.values() if value.isdecimal()}
    product = prod(sizes.values())
    if job.launcher not in _RANK_IS_PROCESS or not sizes or not product or not case.ranks % product:
        return
    shape = f"{counted(case.nodes, 'node')} x {case.ranks_per_node}"
    yield ShapeError(
        f"{counted(case.ranks, 'rank')} ({'one for each GPU' if job.gpus_by_node else shape}) "
        f"cannot form a mesh of {' x '.join(f'{flag} {size}' for flag, size in sizes.items())}",
        place=next(iter(sizes)),
        next_step=f"--nodes and --ntasks-per-node whose product is a multiple of {product}",
        source="arguments of the script",
    )


def checkpoint(case: Case) -> Iterator[ToolkitError]:
    """Warn of ranks of several nodes that save to a directory of each node's own.

    Each would leave its part of a distributed checkpoint on its own node.
    """
    if case.nodes == 1:
        return
    for _, flag, path in _arguments(case.job, CHECKPOINTS):
        for directory in case.site.private_directories:
            if PurePosixPath(path).is_relative_to(directory):
                yield BindMissingError(
                    f"{path} is on each node's own {directory}: "
                    "parts of a distributed checkpoint would lie on different nodes",
                    place=flag,
                    next_step=f"{flag} with a directory that all nodes see",
                    source=case.site.cited,
                    is_warning=True,
                )


def _arguments(job: Job, names: frozenset[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the flag and the value of each argument that has one of these names.

    ``-`` and ``_`` are equal, and a prefix does not count: ``--parallelism.checkpoint-dir``.
    """
    for word, following in pairwise([*job.arguments, ""]):
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").rpartition(".")[2].replace("-", "_")
        if flag.startswith("--") and name in names:
            yield name, flag, value if equals else following


def options(case: Case) -> Iterator[ToolkitError]:
    """Require and refuse the options of sbatch that the site requires and forbids."""
    site = case.site
    for name, rule in site.forbidden.items():
        for place in _given(name, case.job):
            yield UsageError(
                f"site {site.name} does not take it: {rule.why}",
                place=place,
                next_step=rule.instead or f"leave {place} out",
                source=rule.source,
            )
    for name, rule in site.required.items():
        if not _given(name, case.job):
            yield UsageError(
                f"site {site.name} wants it: {rule.why}",
                place=f"--{name}",
                next_step=rule.instead or None,
                source=rule.source,
            )


def _given(name: str, job: Job) -> list[str]:
    """Return the options by which a job has what an option of sbatch sets, as users write them."""
    own = getattr(job, name.replace("-", "_"), None) not in (None, 0)
    others = [other for other in (name, *OTHER_NAMES.get(name, ())) if other in job.slurm]
    return [*([f"--{name}"] if own else ()), *(f"--slurm {other}" for other in others)]


def comment(case: Case) -> Iterator[ToolkitError]:
    """Compare ``--comment`` with the site's rule."""
    rule = case.site.comment
    if rule and (wrong := comment_problem(rule, case.job.comment)):
        yield UsageError(
            wrong,
            place="--comment",
            next_step=f"--comment {shell(comment_example(rule))}",
            source=", ".join(filter(None, (rule.source or case.site.cited, rule.date))),
        )


def ports(case: Case) -> Iterator[ToolkitError]:
    """Require ports at which ranks may meet, and warn of a fixed one.

    The next job on a shared node takes the same one.
    """
    first, last = case.site.ports
    if first < _LOWEST or last > _HIGHEST or last - first + 1 < _LEAST:
        yield UsageError(
            f"ranks cannot meet at ports {first} to {last}: "
            f"it takes {_LEAST} of those from {_LOWEST} to {_HIGHEST}",
            place="ports",
            next_step=f"correct ports of site {case.site.name}, or leave it out: "
            f"{PORTS[0]} to {PORTS[1]}",
            source=case.site.cited,
        )
    if (text := case.job.env.get("MASTER_PORT")) is not None:
        is_port = text in map(str, range(_LOWEST, _HIGHEST + 1))
        why = "the same for every job, and taken where two share a node"
        yield UsageError(
            f"MASTER_PORT={text} is {why if is_port else f'no port from {_LOWEST} to {_HIGHEST}'}",
            place="--env",
            next_step="leave it out: the script takes a free one by the job's number",
            source="pytorch#116974",
            is_warning=is_port,
        )


def modules(case: Case) -> Iterator[ToolkitError]:
    """Compare the modules with those that the site is known to have."""
    known = case.site.available_modules
    held = {*known, *case.site.modules}
    held |= {name.partition("/")[0] for name in held}
    for name in case.job.modules if known else ():
        if name not in held:
            yield UsageError(
                f"site {case.site.name} is not known to have the module {name}",
                place="--module",
                choices=known,
                value=name,
                next_step="module avail shows what there is",
                source=case.site.cited,
            )
