"""Write the site file of a cluster from its survey. Pure.

A fact that the survey does not have is a comment with a question mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from toolkit.model.base import toml_value
from toolkit.model.overview import ClusterNode, Queue
from toolkit.sites.survey import Survey

_ASK = "# ?"


def draft(name: str, survey: Survey, *, date: str) -> str:
    """Return the text of the file.

    Args:
        name: of the site.
        survey: the cluster's own facts.
        date: today, as ``2026-11-21``.
    """
    lines = [*_head(name, survey, date), *_runtime(survey), *_nodes(survey), *_directories(survey)]
    return "\n".join([*lines, *_partitions(survey), *_rules(survey)]) + "\n"


def _line(key: str, value: object, *, example: object, why: str) -> str:
    """Return a key with its value; if the cluster does not report it, a line to fill in."""
    if value or value == 0:
        return f"{key} = {toml_value(value)}"
    return f"{_ASK} {key} = {toml_value(example)}   # {_plain(why)}"


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


def _runtime(survey: Survey) -> Iterator[str]:
    """Yield what starts containers, modules, and types of MPI."""
    named = re.compile(r"(?:apptainer|singularity)(?:/|$)", re.IGNORECASE)
    loaded = [module for module in survey.modules or () if named.match(module)]
    why = "neither apptainer nor singularity is on PATH" + (" without a module" if loaded else "")
    yield _line("containers", survey.containers, example=["apptainer"], why=why)
    if survey.modules is None:
        yield _line("modules", None, example=[], why="there is no command `module`")
    elif loaded and not survey.containers:
        yield f"modules = {toml_value([loaded[-1]])}"
    if survey.modules is not None:
        yield "available_modules = ["
        yield from (f"    {toml_value(module)}," for module in survey.modules)
        yield "]"
    yield _line("mpi", survey.mpi, example=["pmix"], why="srun --mpi=list lists no type")


def _nodes(survey: Survey) -> Iterator[str]:
    """Yield the facts that only a job on a node can collect."""
    nodes = [probe for probe in survey.probes.values() if not probe.problem]
    interfaces = list(dict.fromkeys(name for probe in nodes for name in probe.interfaces))
    drivers = {probe.driver for probe in nodes if probe.driver}
    oldest = min(drivers, key=lambda text: list(map(int, re.findall(r"\d+", text))), default="")
    why = "to query a node: toolkit site init --probe" if not survey.probes else "the probes failed"
    only = interfaces[0] if len(interfaces) == 1 else ""
    yield _line(
        "interface",
        only,
        example=interfaces[0] if interfaces else "ib0",
        why=f"one of {interfaces}" if interfaces else why,
    )
    driver = _line("driver", oldest, example="570.86", why=why)
    yield f"{driver}   # the oldest of the nodes" if oldest else driver
    for partition, probe in survey.probes.items():
        if probe.problem:
            yield f"# the probe of {_plain(partition)} failed: {_plain(probe.problem)}"


def _directories(survey: Survey) -> Iterator[str]:
    neither = "neither $SCRATCH nor this directory exists"
    yield _line("scratch", survey.scratch, example="/scratch/$USER", why=neither)
    for key, example, why in (
        (
            "submit_directory",
            "/scratch/$USER",
            "if jobs must be submitted from a certain directory",
        ),
        ("purge_days", 15, "files on scratch are deleted if unread for so many days"),
        ("images", ["/apps/images"], "directories with images for all users"),
    ):
        yield _line(key, None, example=example, why=why)


def _partitions(survey: Survey) -> Iterator[str]:
    for queue in survey.queues:
        members, limits = survey.members(queue), survey.limits.get(queue.name)
        is_bare = re.fullmatch(r"[A-Za-z0-9_-]+", queue.name)
        yield ""
        yield f"[partitions.{queue.name if is_bare else toml_value(queue.name)}]"
        yield f"nodes = {toml_value(queue.nodes or len(members))}"
        yield from _hardware(queue, members, survey)
        if queue.max_minutes is not None:
            yield f"max_minutes = {queue.max_minutes}"
        for key, limit in (
            ("jobs_submitted", limits and limits.jobs_submitted),
            ("jobs_running", limits and limits.jobs_running),
            ("gpus_per_user", limits and limits.gpus),
        ):
            yield _line(key, limit, example=10, why="Slurm sets no limit")


def _hardware(queue: Queue, members: Sequence[ClusterNode], survey: Survey) -> Iterator[str]:
    for key in ("cpus", "memory", "gpus"):
        values = sorted({getattr(node, key) for node in members})
        if values and (values[-1] or key != "gpus"):
            many = f"   # of the largest; there are {_plain(str(values))}"
            yield f"{key} = {values[-1]}{many if len(values) > 1 else ''}"
    if any(node.gpus for node in members):
        probe = survey.probes.get(queue.name)
        types = dict.fromkeys(node.gpu_type.upper() for node in members if node.gpu_type)
        gpu = probe.gpus[0] if probe and probe.gpus else ", ".join(types)
        yield _line("gpu", gpu, example="A100", why="Slurm has no type for them")
    architectures = sorted({node.arch for node in members if node.arch})
    if architectures == ["aarch64"]:
        yield 'arch = "aarch64"'
    elif architectures not in ([], ["x86_64"]):
        yield _line("arch", "", example="x86_64", why=f"of the nodes: {', '.join(architectures)}")


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


def _plain(text: str) -> str:
    """Return text on one line of printable characters, for a comment."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
