"""Rules about options and arguments: values, contradictions, and what a site requires of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import prod
from pathlib import PurePosixPath

from toolkit.errors import (
    BindMissingError,
    LauncherMismatchError,
    ShapeError,
    ToolkitError,
    UsageError,
)
from toolkit.launchers import LAUNCHERS, offered
from toolkit.launchers.base import Launcher
from toolkit.model.case import Case
from toolkit.model.job import Job
from toolkit.model.site import PORTS
from toolkit.model.slurm_options import OTHER_NAMES, OWN
from toolkit.quoting import sbatch, shell
from toolkit.sites import comment_example, comment_problem
from toolkit.units import counted, minutes

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
    yield from _terminal(case)
    if case.launcher is not None:
        yield from _launcher(case.job, case.launcher)


def _values(case: Case) -> Iterator[ToolkitError]:
    """Yield the values that an ``#SBATCH`` line or a shell cannot carry."""
    job = case.job
    if job.time is not None:
        try:
            minutes(str(job.time))
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


def _launcher(job: Job, launcher: Launcher) -> Iterator[ToolkitError]:
    """Yield the options that the launcher does not support."""
    least, most = job.node_range
    if least != most and not launcher.is_elastic:
        yield LauncherMismatchError(
            f"the launcher {launcher.name} cannot start with a number of nodes that may change",
            place="--nodes",
            next_step=f"--nodes {most}, or one of: "
            + ", ".join(name for name, other in LAUNCHERS.items() if other.is_elastic),
        )
    if job.gpus_by_node and not launcher.is_unequal:
        yield LauncherMismatchError(
            f"the launcher {launcher.name} cannot start ranks on nodes that differ",
            place=job.gpu_option,
            next_step=f"{job.gpu_option} {min(job.gpus_by_node)}, "
            "or one of: "
            + ", ".join(name for name, other in LAUNCHERS.items() if other.is_unequal),
        )
    for key, option in {"max_restarts": "--max-restarts", "init": "--init"}.items():
        if getattr(job, key) is not None and key not in launcher.options:
            having = ", ".join(other.name for other in LAUNCHERS.values() if key in other.options)
            yield LauncherMismatchError(
                f"the launcher {launcher.name} has no {option}",
                place=option,
                next_step=f"leave it out, or choose --launcher {having}",
            )


def _terminal(case: Case) -> Iterator[ToolkitError]:
    """Yield what contradicts a terminal: ``--pty``, and ``--interactive``."""
    job, (least, most) = case.job, case.job.node_range
    if job.pty and case.launcher is not None and not case.launcher.has_pty:
        others = ", ".join(name for name in offered() if LAUNCHERS[name].has_pty)
        yield LauncherMismatchError(
            f"the launcher {job.launcher} gives no rank a terminal",
            place="--pty",
            next_step=f"one of: {others}",
        )
    given = {"--array": job.array is not None, "--requeue": job.requeue, "--nodes": least < most}
    given["--retry"] = bool(job.retry)
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
    text = case.job.env.get("MASTER_PORT")
    if text is None:
        return
    why, source = "the same for every job, and taken where two of them share a node", ""
    if not text.isdecimal() or not _LOWEST <= int(text) <= _HIGHEST:
        why, source = f"not a port that a user can listen at: {_LOWEST} to {_HIGHEST}", "ip(7)"
    elif case.site.ports != PORTS and not first <= int(text) <= last:
        why = f"not among the ports at which ranks may meet: {first} to {last}"
        source = case.site.cited
    yield UsageError(
        f"MASTER_PORT={text} is {why}",
        place="--env",
        next_step="leave it out: the script takes a free one by the job's number",
        source=source or "pytorch#116974",
        is_warning=not source,
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
