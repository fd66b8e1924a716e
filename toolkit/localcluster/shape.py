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
from typing import Annotated, NamedTuple

from msgspec import Meta

from toolkit.model.base import Model, from_json, to_json
from toolkit.model.job import Positive
from toolkit.slurm import hostlist
from toolkit.units import counted

MOST_NODES = 200  # addresses 10.77.0.11 to .210
MOST_LIGHT_NODES = 1000  # addresses 10.77.0.11 to 10.77.3.242
_NODE = re.compile(r"[A-Za-z](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?\Z")
_RESERVED = ("login", "localhost", "default", "all")
Word = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9_.-]+\Z", description="a name of letters, digits, _, . and -"),
]
Time = Annotated[
    str,
    Meta(
        pattern=r"^(?i:\d+-\d{1,2}(?::\d{1,2}){0,2}|\d+(?::\d{1,2}){0,2}|UNLIMITED|INFINITE)\Z",
        description="a time such as 30:00, 1:00:00 or 2-00:00:00",
    ),
]
Setting = Annotated[
    str, Meta(pattern=r"^[A-Za-z]+=\S+\Z", description="a setting of the form Name=value")
]


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
    cpus: Annotated[int, Meta(ge=1, le=4096, description="a whole number from 1 to 4096")] = 4
    memory: Annotated[int, Meta(ge=100, le=1 << 30, description="at least 100 MB")] = 4000
    gpus: Annotated[int, Meta(ge=0, le=64, description="a whole number from 0 to 64")] = 0
    gpu_type: Word | None = None
    features: tuple[Word, ...] = ()


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

    name: Word
    nodes: str = "ALL"
    default: bool = False
    max_nodes: Positive | None = None
    max_time: Time | None = None
    default_time: Time | None = None
    options: tuple[Setting, ...] = ()


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

    def __post_init__(self) -> None:
        """Raise ValueError if no cluster can have this shape."""
        names = [name for group in self.nodes for name in expand(group.names)]
        most = MOST_NODES if self.light is False else MOST_LIGHT_NODES
        _check(1 <= len(names) <= most, f"{counted(len(names), 'node')}; 1 to {most} were expected")
        for name in names:
            cannot = f"{name!r} cannot be the name of a node:"
            _check(_NODE.match(name), f"{cannot} letters, digits and -")
            _check(name.lower() not in _RESERVED, f"{cannot} it is reserved")
        _check_unique(names, "node")
        for part in self.partitions:
            _check(part.name.lower() != "default", f"{part.name!r} cannot be a partition's name")
            members = () if part.nodes.upper() == "ALL" else expand(part.nodes)
            unknown = next((member for member in members if member not in names), None)
            lacks = f"partition {part.name} has a node {unknown} that does not exist"
            _check(unknown is None, lacks)
        _check_unique([part.name for part in self.partitions], "partition")
        defaults = sum(part.default for part in self.partitions)
        _check(defaults <= 1, "only one partition can be the default")
        fine = all(line.isprintable() for line in self.extra)
        _check(fine, "an entry of extra is one line of slurm.conf")

    @property
    def is_light(self) -> bool:
        """True if the nodes share the cluster's namespaces."""
        return len(all_nodes(self)) > MOST_NODES if self.light is None else self.light


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


class Node(NamedTuple):
    """One node, with the address that it has in every cluster of this shape."""

    name: str
    address: str
    group: Nodes

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


def numbered(count: int) -> str:
    """Return the names of nodes as Slurm writes them: ``nid[001-004]``."""
    digits = max(3, len(str(count)))
    return f"nid[{1:0{digits}}-{count:0{digits}}]" if count > 1 else "nid001"


def all_nodes(shape: Shape) -> tuple[Node, ...]:
    """Return every node of a shape."""
    named = [(name, group) for group in shape.nodes for name in expand(group.names)]
    return tuple(
        Node(name, f"10.77.{number // 256}.{number % 256}", group)
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
    """Return the size of a cluster: ``2 nodes, 1 partition``, or ``like neuron: 4 nodes, ...``."""
    like = f"like {shape.like}: " if shape.like else ""
    nodes, partitions = len(all_nodes(shape)), len(partitions_of(shape))
    return f"{like}{counted(nodes, 'node')}, {counted(partitions, 'partition')}"


def check(shape: Shape) -> Shape:
    """Return the shape, if its fields are within their bounds, too.

    Raises:
        BadDataError: they are not; with the key.
    """
    return from_json(to_json(shape), Shape)


def _check(fine: object, message: str) -> None:
    if not fine:
        raise ValueError(message)


def _check_unique(names: Sequence[str], what: str) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    _check(twice is None, f"{what} {twice} is listed twice")
