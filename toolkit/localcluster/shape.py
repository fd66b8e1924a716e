"""Describe and check the shape of a local cluster: its nodes and partitions. Pure.

A shape file imitates a site, with nodes that differ and partitions as they are there::

    [[nodes]]
    names = "gpu[01-02]"
    cpus = 40
    memory = 380000
    gpus = 4
    gpu_type = "v100"

    [[partitions]]
    name = "cas_v100_4"
    nodes = "gpu[01-02]"
    max_nodes = 2
    max_time = "2-00:00:00"
    default = true
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from toolkit.model.base import BadDataError, Model
from toolkit.slurm import hostlist
from toolkit.units import counted, human_size

MOST_NODES = 200  # addresses 10.77.0.11 to .210
MOST_LIGHT_NODES = 1000  # addresses 10.77.0.11 to 10.77.3.242
_NODE = re.compile(r"[A-Za-z](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?\Z")
_WORD = re.compile(r"[A-Za-z0-9_.-]+\Z")
_TIME = re.compile(
    r"(?:\d+-\d{1,2}(?::\d{1,2}){0,2}|\d+(?::\d{1,2}){0,2}|UNLIMITED|INFINITE)\Z", re.IGNORECASE
)
_RESERVED = ("login", "localhost", "default", "all")


class Nodes(Model, frozen=True, kw_only=True):
    """Equal nodes.

    Attributes:
        names: as Slurm writes them: ``gpu[01-04]`` or ``gpu01,gpu03``.
        cpus: of each node; may be more than this machine has.
        memory: of each node, in MB; may be more than this machine has.
        gpus: of each node; simulated unless this machine has as many as all nodes together.
        gpu_type: such as ``v100``; None: without a type.
        features: for the ``--constraint`` of jobs.
    """

    names: str
    cpus: int = 4
    memory: int = 4000
    gpus: int = 0
    gpu_type: str | None = None
    features: tuple[str, ...] = ()


class PartitionShape(Model, frozen=True, kw_only=True):
    """A partition.

    Attributes:
        name: of the partition.
        nodes: its nodes as Slurm writes them, or ``ALL``.
        default: jobs that name no partition run here; by default the first partition.
        max_nodes: the most nodes of one job; None: no limit.
        max_time: the most time of one job: ``1:00:00``, ``2-00:00:00``; None: no limit.
        default_time: the time of a job that requests none.
        options: more of slurm.conf for this partition: ``DefCpuPerGPU=10``.
    """

    name: str
    nodes: str = "ALL"
    default: bool = False
    max_nodes: int | None = None
    max_time: str | None = None
    default_time: str | None = None
    options: tuple[str, ...] = ()


MAIN = PartitionShape(name="main", default=True, max_time="1-00:00:00", default_time="30:00")


class Shape(Model, frozen=True, kw_only=True):
    """A whole cluster.

    Attributes:
        nodes: its nodes, in order.
        partitions: its partitions; without any there is one, ``main``.
        extra: lines put at the end of slurm.conf, where they win over ours.
        accounting: slurmdbd and MariaDB run too, so that ``sacct`` answers.
        like: the site that it imitates; empty if none.
        job_submit: a job_submit.lua, which Slurm runs for every job; empty if none.
        light: the nodes share the cluster's namespaces; false: each has its own; None: they share
            them if there are more than 200.
    """

    nodes: tuple[Nodes, ...] = (Nodes(names="nid[001-002]"),)
    partitions: tuple[PartitionShape, ...] = ()
    extra: tuple[str, ...] = ()
    accounting: bool = False
    like: str = ""
    job_submit: str = ""
    light: bool | None = None

    @property
    def is_light(self) -> bool:
        """True if the nodes share the cluster's namespaces."""
        many = sum(len(expand(group.names)) for group in self.nodes) > MOST_NODES
        return many if self.light is None else self.light


class Plan(Model, frozen=True, kw_only=True):
    """The plan of a cluster that was requested.

    Attributes:
        shape: a checked one.
        shared: directories below /tmp or /dev/shm that the nodes see.
        gpus: the number N of /dev/nvidiaN of each GPU of all nodes; empty: they are simulated.
    """

    shape: Shape
    shared: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()


class Node(Model, frozen=True, kw_only=True):
    """One node, with the address that it has in every cluster of this shape."""

    name: str
    address: str
    cpus: int
    memory: int
    gpus: int
    gpu_type: str | None
    features: tuple[str, ...]

    @property
    def link(self) -> str:
        """The name of the switch's end of the node's cable."""
        return f"ve{self.address.rsplit('.', 1)[1]}"


def expand(text: str) -> tuple[str, ...]:
    """Return the names of the nodes in a list such as ``gpu[01-02]``.

    Raises:
        ValueError: it is not such a list, or one of very many nodes.
    """
    names = hostlist.expand(text)
    if not names:
        raise ValueError(f"{text!r} is not a list of nodes such as nid[001-004] or nid001,nid003")
    return names


def all_nodes(shape: Shape) -> tuple[Node, ...]:
    """Return every node of a shape that ``check`` accepted."""
    named = [(name, group) for group in shape.nodes for name in expand(group.names)]
    return tuple(
        Node(
            name=name,
            address=f"10.77.{number // 256}.{number % 256}",
            cpus=group.cpus,
            memory=group.memory,
            gpus=group.gpus,
            gpu_type=group.gpu_type,
            features=group.features,
        )
        for number, (name, group) in enumerate(named, 11)
    )


def partitions_of(shape: Shape) -> tuple[PartitionShape, ...]:
    """Return the partitions, of which exactly one is the default."""
    from msgspec.structs import replace

    partitions = shape.partitions or (MAIN,)
    if any(partition.default for partition in partitions):
        return partitions
    return (replace(partitions[0], default=True), *partitions[1:])


def summary(shape: Shape) -> str:
    """Return the shape on one line: ``nid[001-002]: 4 CPUs, 4.0 GB, 2 GPUs; partitions main``."""
    if shape.like:
        nodes = counted(len(all_nodes(shape)), "node")
        return f"like {shape.like}: {nodes}, {counted(len(partitions_of(shape)), 'partition')}"
    groups = "; ".join(
        f"{group.names}: {counted(group.cpus, 'CPU')}, {human_size(group.memory * 1e6)}"
        + (f", {group.gpus} {group.gpu_type or ''} GPUs".replace("  ", " ") if group.gpus else "")
        for group in shape.nodes
    )
    partitions = ", ".join(partition.name for partition in partitions_of(shape))
    extras = (f", {counted(len(shape.extra), 'line')} of slurm.conf" if shape.extra else "") + (
        ", accounting" if shape.accounting else ""
    )
    extras += ", light" if shape.is_light else ""
    return f"{groups}; partitions {partitions}{extras}"


def check(shape: Shape) -> Shape:
    """Return the shape if a cluster of it could come up.

    Raises:
        BadDataError: it could not; with the key.
    """
    _check(bool(shape.nodes), "nodes", "a cluster has at least one node")
    for index, group in enumerate(shape.nodes):
        _check_group(group, f"nodes[{index}]")
    names = tuple(node.name for node in all_nodes(shape))
    most = MOST_NODES if shape.light is False else MOST_LIGHT_NODES
    number = counted(len(names), "node")
    _check(1 <= len(names) <= most, "nodes", f"{number}; 1 to {most} were expected")
    for name in names:
        cannot = f"{name!r} cannot be the name of a node:"
        _check(_NODE.match(name), "nodes", f"{cannot} letters, digits and -")
        _check(name.lower() not in _RESERVED, "nodes", f"{cannot} it is reserved")
    _check_unique(names, "nodes", "node")
    for index, partition in enumerate(shape.partitions):
        _check_partition(partition, f"partitions[{index}]", names)
    _check_unique([partition.name for partition in shape.partitions], "partitions", "partition")
    defaults = sum(partition.default for partition in shape.partitions)
    _check(defaults <= 1, "partitions", "only one partition can be the default")
    for index, line in enumerate(shape.extra):
        _check(line.isprintable(), f"extra[{index}]", "one line of slurm.conf was expected")
    return shape


def _check(fine: object, key: str, message: str) -> None:
    if not fine:
        raise BadDataError(message, key)


def _check_unique(names: Sequence[str], key: str, what: str) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    _check(twice is None, key, f"{what} {twice} is listed twice")


def _check_group(group: Nodes, key: str) -> None:
    cpus, gpus = counted(group.cpus, "CPU"), group.gpus
    _check(1 <= group.cpus <= 4096, f"{key}.cpus", f"{cpus} per node; 1 to 4096 were expected")
    memory = f"{group.memory} MB per node; at least 100 were expected"
    _check(100 <= group.memory <= 1 << 30, f"{key}.memory", memory)
    _check(0 <= gpus <= 64, f"{key}.gpus", f"{gpus} GPUs per node; 0 to 64 were expected")
    kind = group.gpu_type
    is_kind = kind is None or _WORD.match(kind)
    _check(is_kind, f"{key}.gpu_type", f"{kind!r} is not a type of a GPU")
    for feature in group.features:
        _check(_WORD.match(feature), f"{key}.features", f"{feature!r} is not a feature of a node")
    _members(group.names, f"{key}.names")


def _members(text: str, key: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except ValueError as error:
        raise BadDataError(str(error), key) from None


def _check_partition(partition: PartitionShape, key: str, names: Sequence[str]) -> None:
    name = partition.name
    is_name = _WORD.match(name) and name.lower() != "default"
    _check(is_name, f"{key}.name", f"{name!r} cannot be the name of a partition")
    is_number = partition.max_nodes is None or partition.max_nodes >= 1
    _check(is_number, f"{key}.max_nodes", "a job has at least one node")
    for field in ("max_time", "default_time"):
        time = getattr(partition, field)
        message = f"{time!r} is not a time such as 30:00, 1:00:00 or 2-00:00:00"
        _check(time is None or _TIME.match(time), f"{key}.{field}", message)
    for option in partition.options:
        is_option = re.match(r"[A-Za-z]+=\S+\Z", option)
        _check(is_option, f"{key}.options", f"{option!r} is not of the form Name=value")
    if partition.nodes.upper() == "ALL":
        return
    for member in _members(partition.nodes, f"{key}.nodes"):
        if member not in names:
            raise BadDataError(
                f"partition {name} has a node {member} that does not exist",
                f"{key}.nodes",
                tuple(names),
                member,
            )
