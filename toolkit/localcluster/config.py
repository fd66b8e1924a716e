"""Render a shape as the files of a real Slurm, by templates/slurm.conf.j2 and others. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from msgspec.structs import replace

from toolkit.config import make_templates
from toolkit.localcluster.shape import Node, Shape, all_nodes, partitions_of

LOGIN = "login"  # the host name of the controller's side, from where jobs are submitted
LOGIN_ADDRESS = "10.77.0.1"
NODE_LINK = "eth0"  # the nodes' network interface, as in toolkit/sites/local.toml
CONTROLLER_PORT = 16817
NODE_PORT = 16818
LIGHT_PORTS = 17024  # of light nodes, which have one network: each has a port of its own above it
_ON_A_LINE = 64  # light nodes at most; divides 256 and the number above, as 10.77.1.0 begins a line
ACCOUNTING_PORT = 16819


def files(
    shape: Shape,
    *,
    name: str,
    directory: PurePosixPath,
    user: str,
    nsswitch: str,
    gpus: Sequence[int] = (),
) -> dict[str, str]:
    """Return every file of the cluster's ``etc`` by its name.

    Args:
        shape: a checked one.
        name: of the cluster.
        directory: of the cluster.
        user: that runs the daemons and the jobs.
        nsswitch: this machine's /etc/nsswitch.conf.
        gpus: the number N of /dev/nvidiaN of each GPU of all nodes; empty: they are simulated.
    """
    known = {
        "name": name,
        "user": user,
        "directory": directory,
        "shape": shape,
        "nodes": _node_lines(shape),
        "partitions": partitions_of(shape),
        "memory_per_cpu": max(min(group.memory // group.cpus for group in shape.nodes), 1),
        # Seconds that an answer may take longer, since light nodes share few cores.
        "slack": len(all_nodes(shape)) // 5 if shape.is_light else 0,
        "login": LOGIN,
        "login_address": LOGIN_ADDRESS,
        "controller_port": CONTROLLER_PORT,
        "node_port": NODE_PORT,
        "accounting_port": ACCOUNTING_PORT,
    }
    texts = {
        "slurm.conf": _render("slurm.conf.j2", known),
        "gres.conf": gres_conf(shape, directory, gpus),
        # slurmd starts a cgroup plugin even where nothing uses one; v1 by name touches nothing, and
        # automatic choice can fail.
        "cgroup.conf": "CgroupPlugin=cgroup/v1\n",
        "hosts": hosts(shape),
        "nsswitch.conf": _nsswitch(nsswitch),
    }
    if shape.job_submit:
        texts["job_submit.lua"] = shape.job_submit
    if shape.accounting:
        texts["slurmdbd.conf"] = _render("slurmdbd.conf.j2", known)
    return texts


def _render(template: str, known: Mapping[str, object]) -> str:
    # Not HTML: a shape is checked, and has only words of slurm.conf.
    templates = make_templates("localcluster/templates", autoescape=False)
    return templates.get_template(template).render(known)


def _node_lines(shape: Shape) -> list[tuple[Node, str]]:
    """Return the nodes as lines have them, with what a line says of ports."""
    lines = []
    for nodes in _groups(shape):
        first, last = nodes[0], nodes[-1]
        if shape.is_light:
            network, _, begin = first.address.rpartition(".")
            end = last.address.rpartition(".")[2]
            ports = f" Port=[{light_port(first)}-{light_port(last)}]"
            whole = replace(first, name=_names(nodes), address=f"{network}.[{begin}-{end}]")
            lines.append((whole, ports))
        else:
            lines.append((first, ""))
    return lines


def _groups(shape: Shape) -> list[list[Node]]:
    """Return the nodes in groups of equal neighbors if they are light; else each by itself.

    Every slurmd reads the whole file: lines of a thousand nodes would be read a million times.
    Groups are small enough for the length that Slurm allows for a line.
    """

    def kind(node: Node) -> tuple[int, Node]:
        return light_port(node) // _ON_A_LINE, replace(node, name="", address="")

    nodes = all_nodes(shape)
    return (
        [list(group) for _, group in itertools.groupby(nodes, kind)]
        if shape.is_light
        else [[node] for node in nodes]
    )


def _names(nodes: Sequence[Node]) -> str:
    return ",".join(node.name for node in nodes)


def light_port(node: Node) -> int:
    """Return the port of a light node's slurmd."""
    third, fourth = node.address.split(".")[2:]
    return LIGHT_PORTS + int(third) * 256 + int(fourth)


def gres_conf(shape: Shape, directory: PurePosixPath, gpus: Sequence[int]) -> str:
    """Return gres.conf with a device for each GPU, so that Slurm numbers it."""
    rows, rest = ["AutoDetect=off"], iter(gpus)
    device = "/dev/nvidia" if gpus else f"{directory}/dev/gpu"
    for nodes in [[node] for node in all_nodes(shape)] if gpus else _groups(shape):
        node = nodes[0]
        if node.gpus:
            kind = f" Type={node.gpu_type}" if node.gpu_type else ""
            numbers = list(itertools.islice(rest, node.gpus)) or range(node.gpus)
            rows.append(f"NodeName={_names(nodes)} Name=gpu{kind} File={device}{_ranges(numbers)}")
    return "\n".join(rows) + "\n"


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers as Slurm writes them: ``0``, ``[0-3]``, ``[0,2]``."""
    if len(numbers) == 1:
        return str(numbers[0])
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"[{numbers[0]}-{numbers[-1]}]"
    return f"[{','.join(map(str, numbers))}]"


def hosts(shape: Shape) -> str:
    """Return /etc/hosts of the cluster."""
    rows = [
        "127.0.0.1 localhost",
        f"{LOGIN_ADDRESS} {LOGIN}",
        *(f"{node.address} {node.name}" for node in all_nodes(shape)),
    ]
    return "\n".join(rows) + "\n"


def _nsswitch(text: str) -> str:
    """Return this machine's nsswitch.conf, with hosts looked up in the file only.

    The cluster has no route to a name server, and would wait for one.
    """
    others = [row for row in text.splitlines() if not re.match(r"\s*hosts\s*:", row)]
    return "\n".join([*others, "hosts: files"]) + "\n"
