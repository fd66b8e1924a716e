"""The file of a site from what was found out of it. What nobody could tell is there as a comment with a question mark. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from toolkit.model.overview import Live, Queue, Survey

_ASK = "# ?"


def draft(name: str, found: Survey, *, date: str) -> str:
    """The whole file.

    Args:
        name: of the site.
        found: what the cluster told.
        date: today, as ``2026-11-21``.
    """
    return "\n".join([*_head(name, found, date), *_partitions(found), *_rules(found)]) + "\n"


def _head(name: str, found: Survey, date: str) -> Iterator[str]:
    yield f"# Written by toolkit site init on {date}, from what Slurm {found.slurm} (cluster {_plain(found.cluster)}) told."
    yield f"# Lines that begin with {_ASK} could not be found out: mend them, or leave them out. Check with: toolkit site check {name}"
    yield f"name = {_value(name)}"
    yield f"summary = {_value(f'{found.cluster or name}, Slurm {found.slurm}')}"
    yield f"date = {_value(date[:7])}"
    if found.local:
        yield 'access = "local-cluster"'
    loaded = [
        module
        for module in found.modules or ()
        if re.match(r"(?:apptainer|singularity)(?:/|$)", module, re.IGNORECASE)
    ]
    if found.containers:
        yield f"containers = {_value(found.containers)}"
    else:
        yield f'{_ASK} containers = ["apptainer"]   # neither apptainer nor singularity is on PATH{" without a module" if loaded else ""}'
    yield from _modules(found, loaded)
    yield (
        f"mpi = {_value(found.mpi)}"
        if found.mpi
        else f'{_ASK} mpi = ["pmix"]   # srun --mpi=list said nothing'
    )
    yield from _nodes_own(found)
    if found.scratch:
        yield f"scratch = {_value(found.scratch)}"
    else:
        yield f'{_ASK} scratch = "/scratch/$USER"   # neither $SCRATCH nor this is there'
    yield f'{_ASK} submit_directory = "/scratch/$USER"   # where jobs must be submitted from, if anywhere'
    yield f"{_ASK} purge_days = 15   # after so many days files on scratch are deleted that nobody read"
    yield f'{_ASK} images = ["/apps/images"]   # directories with images for everybody'


def _modules(found: Survey, loaded: Sequence[str]) -> Iterator[str]:
    if found.modules is None:
        yield f"{_ASK} modules = []   # there is no command `module` here"
        return
    if loaded and not found.containers:
        yield f"modules = {_value([loaded[-1]])}"
    yield from _long("available_modules", found.modules)


def _nodes_own(found: Survey) -> Iterator[str]:
    """What only a job on a node can see."""
    seen = [one for one in found.met.values() if not one.problem]
    interfaces = list(dict.fromkeys(name for one in seen for name in one.interfaces))
    drivers = sorted(
        {one.driver for one in seen if one.driver},
        key=lambda text: [int(part) for part in re.findall(r"\d+", text)],
    )
    why = "ask a node: toolkit site init --probe" if not found.met else "the probes did not tell"
    if len(interfaces) == 1:
        yield f"interface = {_value(interfaces[0])}"
    else:
        first = _value(interfaces[0] if interfaces else "ib0")
        yield f"{_ASK} interface = {first}   # {f'one of {_plain(str(interfaces))}' if interfaces else why}"
    yield (
        f"driver = {_value(drivers[0])}   # the oldest that was met"
        if drivers
        else f'{_ASK} driver = "570.86"   # {why}'
    )
    for partition, one in found.met.items():
        if one.problem:
            yield f"# the probe of {_plain(partition)} failed: {_plain(one.problem)}"


def _partitions(found: Survey) -> Iterator[str]:
    for queue in found.queues:
        members = found.members(queue)
        yield ""
        yield f"[partitions.{_key(queue.name)}]"
        yield f"nodes = {_value(queue.nodes or len(members))}"
        yield from _hardware(queue, members, found)
        if queue.max_minutes is not None:
            yield f"max_minutes = {queue.max_minutes}"
        limits = found.limits.get(queue.name)
        for key, value in (
            ("jobs_submitted", limits.jobs_submitted if limits else None),
            ("jobs_running", limits.jobs_running if limits else None),
            ("gpus_per_user", limits.gpus if limits else None),
        ):
            yield (
                f"{key} = {value}"
                if value is not None
                else f"{_ASK} {key} = 10   # Slurm names no limit"
            )


def _hardware(queue: Queue, members: Sequence[Live], found: Survey) -> Iterator[str]:
    for key in ("cpus", "memory", "gpus"):
        values = sorted({getattr(node, key) for node in members})
        if values and (values[-1] or key != "gpus"):
            yield f"{key} = {values[-1]}" + (
                f"   # of the largest; there are {_plain(str(values))}" if len(values) > 1 else ""
            )
    met = found.met.get(queue.name)
    kinds = (
        list(met.gpus[:1])
        if met and met.gpus
        else list(dict.fromkeys(node.gpu_type.upper() for node in members if node.gpu_type))
    )
    if any(node.gpus for node in members):
        yield (
            f"gpu = {_value(', '.join(kinds))}"
            if kinds
            else f'{_ASK} gpu = "A100"   # Slurm gives them no type'
        )
    architectures = sorted({node.arch for node in members if node.arch})
    if architectures == ["aarch64"]:
        yield 'arch = "aarch64"'
    elif len(architectures) > 1 or architectures not in ([], ["x86_64"]):
        yield f'{_ASK} arch = "x86_64"   # of the nodes: {_plain(", ".join(architectures))}'


def _rules(found: Survey) -> Iterator[str]:
    yield ""
    if found.plugins:
        yield f"# Slurm here asks job_submit plugins ({_plain(found.plugins)}): they may refuse jobs by rules that no command tells."
    yield f"{_ASK} [comment]"
    yield f'{_ASK} words = ["pytorch", "etc"]   # or fields.appl = [...]'
    yield f"{_ASK} [required.account]"
    yield f'{_ASK} why = "hours are charged to a project"'
    yield f"{_ASK} [forbidden.mem]"
    yield f'{_ASK} why = "memory goes with the cores"'


def _long(key: str, values: Iterable[str]) -> Iterator[str]:
    yield f"{key} = ["
    yield from (f"    {_value(value)}," for value in values)
    yield "]"


def _value(value: object) -> str:
    """A string, a number or a list of strings as TOML writes it: as JSON does, but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)


def _plain(text: str) -> str:
    """For a comment, which ends with its line."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
