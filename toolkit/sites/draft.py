"""Write the site file of a cluster from its survey. Pure.

A fact that the survey does not have is a comment with a question mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from toolkit.model.base import toml_value
from toolkit.model.overview import ClusterNode, Queue, Survey

_ASK = "# ?"


def draft(name: str, survey: Survey, *, date: str) -> str:
    """Return the text of the file.

    Args:
        name: of the site.
        survey: the cluster's own facts.
        date: today, as ``2026-11-21``.
    """
    return "\n".join([*_head(name, survey, date), *_partitions(survey), *_rules(survey)]) + "\n"


def _head(name: str, survey: Survey, date: str) -> Iterator[str]:
    cluster = f"Slurm {survey.slurm} (cluster {_plain(survey.cluster)})"
    yield f"# Written by toolkit site init on {date} from the answers of {cluster}."
    yield f"# Fill in or delete the lines marked {_ASK}: the cluster does not report these values."
    yield f"# Then check the file: toolkit site check {name}"
    yield f"name = {toml_value(name)}"
    yield f"summary = {toml_value(f'{survey.cluster or name}, Slurm {survey.slurm}')}"
    yield f"date = {toml_value(date[:7])}"
    if survey.local:
        yield 'access = "local-cluster"'
    loaded = [
        module
        for module in survey.modules or ()
        if re.match(r"(?:apptainer|singularity)(?:/|$)", module, re.IGNORECASE)
    ]
    if survey.containers:
        yield f"containers = {toml_value(survey.containers)}"
    else:
        without = " without a module" if loaded else ""
        reason = f"neither apptainer nor singularity is on PATH{without}"
        yield f'{_ASK} containers = ["apptainer"]   # {reason}'
    yield from _modules(survey, loaded)
    yield (
        f"mpi = {toml_value(survey.mpi)}"
        if survey.mpi
        else f'{_ASK} mpi = ["pmix"]   # srun --mpi=list lists no type'
    )
    yield from _nodes_own(survey)
    if survey.scratch:
        yield f"scratch = {toml_value(survey.scratch)}"
    else:
        yield f'{_ASK} scratch = "/scratch/$USER"   # neither $SCRATCH nor this directory exists'
    yield (
        f'{_ASK} submit_directory = "/scratch/$USER"   '
        "# if jobs must be submitted from a certain directory"
    )
    yield f"{_ASK} purge_days = 15   # files on scratch are deleted if unread for so many days"
    yield f'{_ASK} images = ["/apps/images"]   # directories with images for all users'


def _modules(survey: Survey, loaded: Sequence[str]) -> Iterator[str]:
    if survey.modules is None:
        yield f"{_ASK} modules = []   # there is no command `module`"
        return
    if loaded and not survey.containers:
        yield f"modules = {toml_value([loaded[-1]])}"
    yield from _long("available_modules", survey.modules)


def _nodes_own(survey: Survey) -> Iterator[str]:
    """Yield the facts that only a job on a node can collect."""
    nodes = [probe for probe in survey.probes.values() if not probe.problem]
    interfaces = list(dict.fromkeys(name for probe in nodes for name in probe.interfaces))
    drivers = sorted(
        {probe.driver for probe in nodes if probe.driver},
        key=lambda text: [int(part) for part in re.findall(r"\d+", text)],
    )
    why = "to query a node: toolkit site init --probe" if not survey.probes else "the probes failed"
    if len(interfaces) == 1:
        yield f"interface = {toml_value(interfaces[0])}"
    else:
        first = toml_value(interfaces[0] if interfaces else "ib0")
        choices = f"one of {_plain(str(interfaces))}" if interfaces else why
        yield f"{_ASK} interface = {first}   # {choices}"
    yield (
        f"driver = {toml_value(drivers[0])}   # the oldest of the nodes"
        if drivers
        else f'{_ASK} driver = "570.86"   # {why}'
    )
    for partition, probe in survey.probes.items():
        if probe.problem:
            yield f"# the probe of {_plain(partition)} failed: {_plain(probe.problem)}"


def _partitions(survey: Survey) -> Iterator[str]:
    for queue in survey.queues:
        members = survey.members(queue)
        yield ""
        yield f"[partitions.{_key(queue.name)}]"
        yield f"nodes = {toml_value(queue.nodes or len(members))}"
        yield from _hardware(queue, members, survey)
        if queue.max_minutes is not None:
            yield f"max_minutes = {queue.max_minutes}"
        limits = survey.limits.get(queue.name)
        for key, value in (
            ("jobs_submitted", limits.jobs_submitted if limits else None),
            ("jobs_running", limits.jobs_running if limits else None),
            ("gpus_per_user", limits.gpus if limits else None),
        ):
            yield (
                f"{key} = {value}"
                if value is not None
                else f"{_ASK} {key} = 10   # Slurm sets no limit"
            )


def _hardware(queue: Queue, members: Sequence[ClusterNode], survey: Survey) -> Iterator[str]:
    for key in ("cpus", "memory", "gpus"):
        values = sorted({getattr(node, key) for node in members})
        if values and (values[-1] or key != "gpus"):
            yield f"{key} = {values[-1]}" + (
                f"   # of the largest; there are {_plain(str(values))}" if len(values) > 1 else ""
            )
    probe = survey.probes.get(queue.name)
    kinds = (
        list(probe.gpus[:1])
        if probe and probe.gpus
        else list(dict.fromkeys(node.gpu_type.upper() for node in members if node.gpu_type))
    )
    if any(node.gpus for node in members):
        yield (
            f"gpu = {toml_value(', '.join(kinds))}"
            if kinds
            else f'{_ASK} gpu = "A100"   # Slurm has no type for them'
        )
    architectures = sorted({node.arch for node in members if node.arch})
    if architectures == ["aarch64"]:
        yield 'arch = "aarch64"'
    elif len(architectures) > 1 or architectures not in ([], ["x86_64"]):
        yield f'{_ASK} arch = "x86_64"   # of the nodes: {_plain(", ".join(architectures))}'


def _rules(survey: Survey) -> Iterator[str]:
    yield ""
    if survey.plugins:
        yield f"# This Slurm has job_submit plugins ({_plain(survey.plugins)}):"
        yield "# they may refuse jobs by rules that no command prints."
    yield f"{_ASK} [comment]"
    yield f'{_ASK} words = ["pytorch", "etc"]   # or fields.appl = [...]'
    yield f"{_ASK} [required.account]"
    yield f'{_ASK} why = "hours are charged to a project"'
    yield f"{_ASK} [forbidden.mem]"
    yield f'{_ASK} why = "memory goes with the cores"'


def _long(key: str, values: Iterable[str]) -> Iterator[str]:
    yield f"{key} = ["
    yield from (f"    {toml_value(value)}," for value in values)
    yield "]"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def _plain(text: str) -> str:
    """Return text on one line of printable characters, for a comment."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
