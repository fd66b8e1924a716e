"""Compare a site file with the cluster that it describes, and with itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from toolkit.model.base import field_names
from toolkit.model.job import Job
from toolkit.model.site import Limits, Site, SitePartition
from toolkit.sites.rules import comment_problem
from toolkit.sites.survey import Survey
from toolkit.slurm import hostlist


class Difference(NamedTuple):
    """A value of the site file that is not correct.

    Attributes:
        key: of the file: ``partitions.cas_v100_4.gpus``.
        text: what is wrong, with both values.
        wrong: jobs are refused or accepted by mistake; else the difference does no harm.
    """

    key: str
    text: str
    wrong: bool = True


def within(site: Site) -> Iterator[Difference]:
    """Yield contradictions between values, and values that the toolkit never reads."""
    rule = site.comment
    broken = comment_problem(rule, rule.example) if rule and rule.example else None
    if broken:
        yield Difference("comment.example", f"it breaks its own rule: {broken}")
    options = field_names(Job)
    for table in ("required", "forbidden"):
        for option in getattr(site, table):
            if option.replace("-", "_") not in options:
                text = f"toolkit run has no --{option}: the rule has no effect"
                yield Difference(f"{table}.{option}", text, wrong=False)
    for option in sorted(set(site.required) & set(site.forbidden)):
        yield Difference(f"required.{option}", "it is forbidden as well")
    for name, partition in site.partitions.items():
        try:
            hostlist.count(partition.nodes)
        except ValueError as error:
            yield Difference(f"partitions.{name}.nodes", str(error))
    for name in site.defaults:
        if name not in options:
            yield Difference(f"defaults.{name}", "toolkit run has no such option")
    default = site.defaults.get("partition")
    if default is not None and site.partitions and default not in site.partitions:
        yield Difference("defaults.partition", f"there is no partition {default!r}")


def against(site: Site, survey: Survey) -> Iterator[Difference]:
    """Yield the differences between the site file and the cluster."""
    known = {partition.name for partition in survey.partitions}
    for name, written in site.partitions.items():
        if name in known and written.batch:
            yield from _partition(name, written, site, survey)
        elif name not in known and written.batch:
            yield Difference(f"partitions.{name}", "the cluster has no such partition")
    default = site.defaults.get("partition")
    if default is not None and default not in known:
        yield Difference("defaults.partition", f"the cluster has no partition {default!r}")
    for name in sorted(known - {*site.partitions} if site.partitions else ()):
        text = "the file does not have this partition"
        yield Difference(f"partitions.{name}", text, wrong=False)
    missing = [kind for kind in site.mpi if kind not in survey.mpi] if survey.mpi else []
    if missing:
        text = f"srun --mpi has no {', '.join(missing)}; it has {', '.join(survey.mpi)}"
        yield Difference("mpi", text)
    for module in dict.fromkeys((*site.modules, *site.available_modules)):
        if survey.modules is not None and module not in survey.modules:
            text = f"the cluster has no module {module}"
            yield Difference("modules", text, wrong=module in site.modules)


def _partition(
    name: str, written: SitePartition, site: Site, survey: Survey
) -> Iterator[Difference]:
    live = next(each for each in survey.partitions if each.name == name)
    members, limits = survey.members(live), survey.limits.get(name, Limits())
    minutes = live.max_minutes
    rows: tuple[tuple[str, object, object], ...] = (
        ("gpus", max((node.gpus for node in members), default=0), written.gpus),
        ("cpus", max((node.cpus for node in members), default=0), written.cpus),
        (
            "max_minutes",
            "no limit" if minutes is None else minutes,
            written.max_minutes or site.max_minutes,
        ),
        ("nodes", len(members), hostlist.count(written.nodes)),
        ("jobs_submitted", limits.jobs_submitted, written.jobs_submitted),
        ("jobs_running", limits.jobs_running, written.jobs_running),
        ("gpus_per_user", limits.gpus, written.gpus_per_user),
    )
    for key, now, then in rows:
        if now is not None and then is not None and now != then:
            text = f"{now} in Slurm, {then} in the file"
            yield Difference(f"partitions.{name}.{key}", text, wrong=key != "nodes")
    arches = {node.arch for node in members if node.arch}
    if arches and written.arch not in arches:
        text = f"the nodes are {', '.join(sorted(arches))}, the file has {written.arch}"
        yield Difference(f"partitions.{name}.arch", text)
