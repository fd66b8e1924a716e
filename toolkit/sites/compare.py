"""Compare a site file with the cluster that it describes, and with itself. Pure."""

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
    """A value of the site file that is not correct.

    Attributes:
        key: of the file: ``partitions.cas_v100_4.gpus``.
        text: what is wrong, with both values.
        wrong: jobs are refused or accepted by mistake; else the difference does no harm.
    """

    key: str
    text: str
    wrong: bool = True


def within(site: Site) -> tuple[Difference, ...]:
    """Return contradictions between values, and values that the toolkit never reads."""
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
                    text=f"toolkit run has no --{option}: the rule has no effect",
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
    default = site.defaults.get("partition")
    if default is not None and site.partitions and default not in site.partitions:
        yield Difference(key="defaults.partition", text=f"there is no partition {default!r}")


def against(site: Site, survey: Survey) -> tuple[Difference, ...]:
    """Return the differences between the site file and the cluster."""
    return tuple(_against(site, survey))


def _against(site: Site, survey: Survey) -> Iterator[Difference]:
    queues = {queue.name: queue for queue in survey.queues}
    for name, written in site.partitions.items():
        if name in queues and written.batch:
            yield from _partition(name, written, site, survey)
        elif name not in queues and written.batch:
            yield Difference(key=f"partitions.{name}", text="the cluster has no such partition")
    default = site.defaults.get("partition")
    if default is not None and default not in queues:
        text = f"the cluster has no partition {default!r}"
        yield Difference(key="defaults.partition", text=text)
    for name in queues:
        if name not in site.partitions and site.partitions:
            yield Difference(
                key=f"partitions.{name}", text="the file does not have this partition", wrong=False
            )
    if (
        site.mpi
        and survey.mpi
        and (missing := [kind for kind in site.mpi if kind not in survey.mpi])
    ):
        yield Difference(
            key="mpi",
            text=f"srun --mpi has no {', '.join(missing)}; it has {', '.join(survey.mpi)}",
        )
    if survey.modules is not None:
        lost = [
            module
            for module in (*site.modules, *site.available_modules)
            if module not in survey.modules
        ]
        for module in dict.fromkeys(lost):
            yield Difference(
                key="modules",
                text=f"the cluster has no module {module}",
                wrong=module in site.modules,
            )


def _partition(
    name: str, written: SitePartition, site: Site, survey: Survey
) -> Iterator[Difference]:
    queue = next(queue for queue in survey.queues if queue.name == name)
    members = survey.members(queue)
    gpus, cpus = (
        max((getattr(node, key) for node in members), default=0) for key in ("gpus", "cpus")
    )
    where = f"partitions.{name}"
    if written.gpus != gpus:
        yield Difference(
            key=f"{where}.gpus", text=f"a node has {gpus} in Slurm, {written.gpus} in the file"
        )
    if written.cpus is not None and written.cpus != cpus:
        yield Difference(
            key=f"{where}.cpus", text=f"a node has {cpus} in Slurm, {written.cpus} in the file"
        )
    limit = written.max_minutes or site.max_minutes
    if limit is not None and queue.max_minutes != limit:
        says = counted(queue.max_minutes, "minute") if queue.max_minutes is not None else "no limit"
        yield Difference(key=f"{where}.max_minutes", text=f"{says} in Slurm, {limit} in the file")
    nodes = hostlist.count(written.nodes)
    if nodes is not None and nodes != len(members):
        yield Difference(
            key=f"{where}.nodes",
            text=f"{counted(len(members), 'node')} in Slurm, {nodes} in the file",
            wrong=False,
        )
    arches = {node.arch for node in members if node.arch}
    if arches and written.arch not in arches:
        yield Difference(
            key=f"{where}.arch",
            text=f"the nodes are {', '.join(sorted(arches))}, the file has {written.arch}",
        )
    limits = survey.limits.get(name)
    for key, live in (
        ("jobs_submitted", "jobs_submitted"),
        ("jobs_running", "jobs_running"),
        ("gpus_per_user", "gpus"),
    ):
        now, then = getattr(limits, live, None), getattr(written, key)
        if now is not None and then is not None and now != then:
            yield Difference(key=f"{where}.{key}", text=f"{now} in Slurm, {then} in the file")
