"""A shape after a site: its partitions, its limits and its rules, with fewer nodes. Pure.

What Slurm can be configured to refuse, it refuses by its configuration (nodes, GPUs, time); the
site's own rules (comments, options that are required or forbidden, where jobs come from, how many
one user may queue) by Slurm's plugin job_submit/lua, as at most sites.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from toolkit.errors import UnknownPartitionError
from toolkit.localcluster import submit_lua
from toolkit.localcluster.shape import Nodes, PartitionShape, Shape, UserLimits, check
from toolkit.model.site import Site, SitePartition
from toolkit.sites.gpu_types import short_name
from toolkit.slurm import hostlist

_MEMORY_PER_CPU = 4000  # MB, where a site does not say
_UNKNOWN_CPUS = 8


class Likeness(NamedTuple):
    """A shape, and what of the site it leaves out, for people."""

    shape: Shape
    said: tuple[str, ...]


def like(
    site: Site,
    *,
    most: int = 2,
    chosen: Sequence[str] = (),
    accounting: bool = False,
    there: Callable[[str], str] = lambda _: "",
) -> Likeness:
    """The cluster that imitates a site.

    Args:
        site: as it is written.
        most: nodes of each partition at most.
        chosen: partitions that are wanted; empty: all.
        accounting: slurmdbd runs too, so that Slurm keeps to limits of users itself.
        there: a directory of the site's as it is called on this machine; empty: it is not there.

    Raises:
        UnknownPartitionError: the site has no such partition.
    """
    for name in chosen:
        if name not in site.partitions:
            raise UnknownPartitionError(
                f"site {site.name} has no partition {name!r}",
                place="--partition",
                choices=site.partitions,
                value=name,
            )
    parts = {name: one for name, one in site.partitions.items() if name in chosen or not chosen}
    members = {name: _names(name, one, most) for name, one in parts.items() if one.batch}
    nodes = _nodes(parts, members) if members else _nameless(site, most)
    default = next(iter(members), "main")
    directory = there(site.submit_directory) if site.submit_directory else ""
    limits = (
        {name: limits for name, one in parts.items() if (limits := _limits(one)) != UserLimits()}
        if accounting
        else {}
    )
    shape = Shape(
        nodes=nodes,
        partitions=tuple(
            _partition(name, one, site, members, default) for name, one in parts.items()
        )
        or (PartitionShape(name="main", default=True, max_time=_time(site.max_minutes)),),
        like=site.name,
        job_submit=submit_lua.text(
            site, parts, default=default, directory=directory, count=not accounting
        ),
        limits=limits,
        accounting=accounting,
    )
    return Likeness(
        check(shape), tuple(_said(site, parts, members, accounting=accounting, directory=directory))
    )


def _names(partition: str, one: SitePartition, most: int) -> tuple[str, ...]:
    """The first nodes of a partition; where nobody wrote their names down, made-up ones."""
    if isinstance(one.nodes, str):
        return hostlist.expand(one.nodes)[:most]
    stem = re.sub(r"[^A-Za-z0-9]+", "-", partition).strip("-") or "node"
    return tuple(f"{stem}-{number:02d}" for number in range(1, min(one.nodes or 1, most) + 1))


def _nodes(
    parts: Mapping[str, SitePartition], members: Mapping[str, tuple[str, ...]]
) -> tuple[Nodes, ...]:
    """Each node once, as the first partition that has it describes it."""
    found, taken = [], set[str]()
    for partition, names in members.items():
        own = [name for name in names if name not in taken]
        taken.update(own)
        one = parts[partition]
        cpus = one.cpus or _UNKNOWN_CPUS
        if own:
            memory = one.memory or cpus * _MEMORY_PER_CPU
            kind = short_name(one.gpu) or None if one.gpus else None
            found.append(
                Nodes(
                    names=",".join(own),
                    cpus=cpus,
                    memory=memory,
                    gpus=one.gpus,
                    gpu_type=kind,
                    features=(one.arch,),
                )
            )
    return tuple(found)


def _nameless(site: Site, most: int) -> tuple[Nodes, ...]:
    """Nodes for a site that has no partitions, but kinds of nodes that jobs name by ``--constraint``."""
    rule = site.required.get("constraint")
    features = tuple(re.findall(r"--constraint=([\w.-]+)", rule.instead)) if rule else ()
    names = f"nid[001-{most:03d}]" if most > 1 else "nid001"
    return (Nodes(names=names, cpus=64, memory=64 * _MEMORY_PER_CPU, gpus=4, features=features),)


def _partition(
    name: str, one: SitePartition, site: Site, members: Mapping[str, tuple[str, ...]], default: str
) -> PartitionShape:
    names = members.get(name) or members.get(default, ())
    return PartitionShape(
        name=name,
        nodes=",".join(names) or "ALL",
        default=name == default,
        max_nodes=len(names) or None,
        max_time=_time(one.max_minutes or site.max_minutes),
    )


def _time(minutes: int | None) -> str | None:
    return str(minutes) if minutes else None


def _limits(one: SitePartition) -> UserLimits:
    return UserLimits(
        jobs_submitted=one.jobs_submitted, jobs_running=one.jobs_running, gpus=one.gpus_per_user
    )


def _said(
    site: Site,
    parts: Mapping[str, SitePartition],
    members: Mapping[str, tuple[str, ...]],
    *,
    accounting: bool,
    directory: str,
) -> Iterator[str]:
    """What is not as it is there."""
    fewer = [
        f"{name} {len(names)} of {whole}"
        for name, names in members.items()
        if (whole := _whole(parts[name])) is not None and whole > len(names)
    ]
    if fewer:
        yield f"fewer nodes: {', '.join(fewer)}"
    left_out = [name for name in site.partitions if name not in parts]
    if left_out:
        yield f"left out: {', '.join(left_out)}"
    if not accounting and any(one.jobs_running or one.gpus_per_user for one in parts.values()):
        yield "running jobs and GPUs of one user are not limited by Slurm: that needs --accounting"
    if any(one.arch != "x86_64" for one in parts.values()):
        yield "all nodes have this machine's architecture; only the rules know better"
    if site.submit_directory and not directory:
        yield f"jobs are taken from everywhere: {site.submit_directory} is not on this machine"
    unknown = [
        f"--{name}" for name in (*site.required, *site.forbidden) if not submit_lua.knows(name)
    ]
    if unknown:
        yield f"Slurm here does not look at {', '.join(unknown)}"
    if site.modules:
        yield f"no environment modules: {', '.join(site.modules)}"


def _whole(one: SitePartition) -> int | None:
    return len(hostlist.expand(one.nodes)) if isinstance(one.nodes, str) else one.nodes
