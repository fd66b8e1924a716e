"""A site's file against the cluster that it describes, and against itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.model.base import Model, field_names
from toolkit.model.job import Job
from toolkit.model.overview import Survey
from toolkit.model.site import Site, SitePartition
from toolkit.sites.comment import problem
from toolkit.slurm import hostlist
from toolkit.units import counted


class Difference(Model, frozen=True, kw_only=True):
    """Something that is not as it is written.

    Attributes:
        key: of the file: ``partitions.cas_v100_4.gpus``.
        text: what is wrong, with both values.
        wrong: jobs are refused, or let pass, by mistake; else it is good to know.
    """

    key: str
    text: str
    wrong: bool = True


def within(site: Site) -> tuple[Difference, ...]:
    """What the model cannot see: values that contradict each other, or that nothing reads."""
    return tuple(_within(site))


def _within(site: Site) -> Iterator[Difference]:
    if site.comment and site.comment.example:
        wrong = problem(site.comment, site.comment.example)
        if wrong:
            yield Difference(key="comment.example", text=f"it breaks its own rule: {wrong}")
    known = {name.replace("_", "-") for name in field_names(Job)}
    for table in ("required", "forbidden"):
        for option in getattr(site, table):
            if option not in known:
                yield Difference(
                    key=f"{table}.{option}",
                    text=f"toolkit run has no --{option}: nobody looks at it",
                    wrong=False,
                )
        both = sorted(set(site.required) & set(site.forbidden)) if table == "required" else []
        if both:
            yield Difference(key=f"required.{both[0]}", text="it is forbidden as well")
    for name, partition in site.partitions.items():
        if isinstance(partition.nodes, str):
            try:
                hostlist.expand(partition.nodes)
            except ValueError as error:
                yield Difference(key=f"partitions.{name}.nodes", text=str(error))
    for name in site.defaults:
        if name not in field_names(Job):
            yield Difference(key=f"defaults.{name}", text="toolkit run has no such option")


def against(site: Site, found: Survey) -> tuple[Difference, ...]:
    """What the cluster says otherwise."""
    return tuple(_against(site, found))


def _against(site: Site, found: Survey) -> Iterator[Difference]:
    queues = {queue.name: queue for queue in found.queues}
    for name, written in site.partitions.items():
        if name in queues and written.batch:
            yield from _partition(name, written, site, found)
        elif name not in queues and written.batch:
            yield Difference(key=f"partitions.{name}", text="it is gone")
    for name in queues:
        if name not in site.partitions and site.partitions:
            yield Difference(
                key=f"partitions.{name}", text="it is new: nothing is written of it", wrong=False
            )
    if site.mpi and found.mpi and (missing := [kind for kind in site.mpi if kind not in found.mpi]):
        yield Difference(
            key="mpi", text=f"srun --mpi has no {', '.join(missing)}; it has {', '.join(found.mpi)}"
        )
    if found.modules is not None:
        lost = [
            module
            for module in (*site.modules, *site.available_modules)
            if module not in found.modules
        ]
        for module in dict.fromkeys(lost):
            yield Difference(key="modules", text=f"{module} is gone", wrong=module in site.modules)


def _partition(
    name: str, written: SitePartition, site: Site, found: Survey
) -> Iterator[Difference]:
    queue = next(queue for queue in found.queues if queue.name == name)
    members = found.members(queue)
    gpus, cpus = (
        max((getattr(node, key) for node in members), default=0) for key in ("gpus", "cpus")
    )
    where = f"partitions.{name}"
    if written.gpus != gpus:
        yield Difference(key=f"{where}.gpus", text=f"a node has {gpus}, {written.gpus} are written")
    if written.cpus is not None and written.cpus != cpus:
        yield Difference(key=f"{where}.cpus", text=f"a node has {cpus}, {written.cpus} are written")
    limit = written.max_minutes or site.max_minutes
    if limit is not None and queue.max_minutes != limit:
        says = counted(queue.max_minutes, "minute") if queue.max_minutes is not None else "no limit"
        yield Difference(key=f"{where}.max_minutes", text=f"Slurm says {says}, {limit} are written")
    nodes = hostlist.count(written.nodes)
    if nodes is not None and nodes != len(members):
        yield Difference(
            key=f"{where}.nodes", text=f"there are {len(members)}, {nodes} are written", wrong=False
        )
    arches = {node.arch for node in members if node.arch}
    if arches and written.arch not in arches:
        yield Difference(
            key=f"{where}.arch",
            text=f"the nodes are {', '.join(sorted(arches))}, {written.arch} is written",
        )
    limits = found.limits.get(name)
    for key, live in (
        ("jobs_submitted", "jobs_submitted"),
        ("jobs_running", "jobs_running"),
        ("gpus_per_user", "gpus"),
    ):
        now, then = getattr(limits, live, None), getattr(written, key)
        if now is not None and then is not None and now != then:
            yield Difference(key=f"{where}.{key}", text=f"Slurm says {now}, {then} are written")
