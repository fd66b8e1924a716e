"""Imitate a site on the local cluster: its partitions, limits and rules, with fewer nodes.

Slurm refuses by its configuration what it can (nodes, GPUs, time). The site's own rules (comments,
required or forbidden options, the directory of submission, jobs of one user in the queue) are
applied by Slurm's plugin job_submit/lua, as at most sites.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from toolkit.errors import UnknownPartitionError
from toolkit.localcluster.config import render
from toolkit.localcluster.shape import Nodes, PartitionShape, Shape, check, numbered
from toolkit.model.site import Site, SitePartition
from toolkit.sites import short_name
from toolkit.slurm import hostlist

_MEMORY_PER_CPU = 4000  # MB, where a site does not say
_UNKNOWN_CPUS = 8
# The plugin's conditions that an option of sbatch was given.
_CONDITIONS = {
    "mem": "job.min_mem_per_node ~= nil or job.min_mem_per_cpu ~= nil",
    "account": "job.account ~= nil",
    "qos": "job.qos ~= nil",
    "constraint": "job.features ~= nil",
    "nodelist": "job.req_nodes ~= nil",
    "exclude": "job.exc_nodes ~= nil",
    "reservation": "job.reservation ~= nil",
    "comment": "job.comment ~= nil",
    "partition": "job.partition ~= nil",
    "time": "job.time_limit ~= nil and job.time_limit ~= slurm.NO_VAL",
}


def imitate(
    site: Site,
    *,
    most: int = 2,
    chosen: Sequence[str] = (),
    accounting: bool = False,
    local_directory: Callable[[str], str] = lambda _: "",
) -> Shape:
    """Return the shape of a cluster that imitates a site.

    Args:
        site: as its file describes it.
        most: the most nodes of each partition.
        chosen: partitions to imitate; empty: all.
        accounting: slurmdbd runs too.
        local_directory: returns a directory of the site on this machine; empty if it has none.

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
    parts = {
        name: partition
        for name, partition in site.partitions.items()
        if name in chosen or not chosen
    }
    members = {
        name: _names(name, partition, most) for name, partition in parts.items() if partition.batch
    }
    nodes = _nodes(parts, members) if members else _nameless(site, most)
    default = next(iter(members), "main")
    directory = local_directory(site.submit_directory) if site.submit_directory else ""
    own = {name: members.get(name) or members.get(default, ()) for name in parts}
    partitions = tuple(
        PartitionShape(
            name=name,
            nodes=",".join(own[name]) or "ALL",
            default=name == default,
            max_nodes=len(own[name]) or None,
            max_time=_time(partition.max_minutes or site.max_minutes),
        )
        for name, partition in parts.items()
    )
    main = PartitionShape(name="main", default=True, max_time=_time(site.max_minutes))
    shape = Shape(
        nodes=nodes,
        partitions=partitions or (main,),
        like=site.name,
        job_submit=submit_rules(site, parts, default=default, directory=directory),
        accounting=accounting,
    )
    return check(shape)


def submit_rules(
    site: Site, partitions: Mapping[str, SitePartition], *, default: str, directory: str
) -> str:
    """Return the site's rules as a job_submit.lua, which slurmctld runs for every job.

    Args:
        site: whose rules they are.
        partitions: of the cluster.
        default: partition of jobs that name none.
        directory: that jobs must be submitted from; empty: any.
    """
    comment = site.comment and {
        "required": site.comment.required,
        "words": site.comment.words,
        "fields": site.comment.fields or None,
    }
    values = {
        "name": " ".join(site.name.split()),
        "comment": comment,
        "required": {key: rule.why for key, rule in site.required.items() if key in _CONDITIONS},
        "forbidden": {key: rule.why for key, rule in site.forbidden.items() if key in _CONDITIONS},
        "closed": [name for name, partition in partitions.items() if not partition.batch],
        "most": {
            name: part.jobs_submitted for name, part in partitions.items() if part.jobs_submitted
        },
        "default": default,
        "directory": directory,
        "conditions": _CONDITIONS,
    }
    return render("job_submit.lua.j2", values)


def _names(name: str, partition: SitePartition, most: int) -> tuple[str, ...]:
    """Return the first nodes of a partition, with invented names if its own are not known."""
    if isinstance(partition.nodes, str):
        return hostlist.expand(partition.nodes)[:most]
    stem = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "node"
    return tuple(f"{stem}-{number:02d}" for number in range(1, min(partition.nodes or 1, most) + 1))


def _nodes(
    parts: Mapping[str, SitePartition], members: Mapping[str, tuple[str, ...]]
) -> tuple[Nodes, ...]:
    """Return each node once, as the first partition that has it describes it."""
    nodes, taken = [], set[str]()
    for name, names in members.items():
        own = [node for node in names if node not in taken]
        taken.update(own)
        partition = parts[name]
        cpus = partition.cpus or _UNKNOWN_CPUS
        if own:
            memory = partition.memory or cpus * _MEMORY_PER_CPU
            kind = short_name(partition.gpu) or None if partition.gpus else None
            nodes.append(
                Nodes(
                    names=",".join(own),
                    cpus=cpus,
                    memory=memory,
                    gpus=partition.gpus,
                    gpu_type=kind,
                    features=(partition.arch,),
                )
            )
    return tuple(nodes)


def _nameless(site: Site, most: int) -> tuple[Nodes, ...]:
    """Return the nodes of a site without partitions, whose jobs choose them by ``--constraint``."""
    rule = site.required.get("constraint")
    features = tuple(re.findall(r"--constraint=([\w.-]+)", rule.instead)) if rule else ()
    return (
        Nodes(
            names=numbered(most), cpus=64, memory=64 * _MEMORY_PER_CPU, gpus=4, features=features
        ),
    )


def _time(minutes: int | None) -> str | None:
    return str(minutes) if minutes else None


def adapt_site(site: Site, local: Site, expanded: Callable[[str], str]) -> Site:
    """Adapt a site to the local cluster: with this machine's commands and directories.

    Args:
        site: that is imitated.
        local: the site file of the local cluster.
        expanded: returns a directory with its variables replaced.
    """

    def if_present(path: str | None) -> str | None:
        return path if path is not None and Path(expanded(path)).is_dir() else None

    return replace(
        site,
        access=local.access,
        containers=local.containers,
        modules=(),
        interface=local.interface,
        mpi=(),
        private_directories=local.private_directories,
        environment={**local.environment, **site.environment},
        images=tuple(path for path in site.images if if_present(path)),
        datasets={name: path for name, path in site.datasets.items() if if_present(path)},
        scratch=if_present(site.scratch),
        submit_directory=if_present(site.submit_directory),
    )
