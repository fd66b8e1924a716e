"""Render a shape as the files of a real Slurm, by templates/slurm.conf.j2 and others. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from toolkit.config import make_templates
from toolkit.localcluster.shape import Node, Shape, all_nodes, expand, partitions_of

LOGIN = "login"  # the host name of the controller's side, from where jobs are submitted
LOGIN_ADDRESS = "10.77.0.1"
CONTROLLER_PORT = 16817
NODE_PORT = 16818
LIGHT_PORTS = 17024  # of light nodes, which have one network: each has a port of its own above it
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
    nodes = all_nodes(shape)
    values = {
        "name": name,
        "user": user,
        "directory": directory,
        "shape": shape,
        "nodes": _lines(shape),
        "partitions": partitions_of(shape),
        "memory_per_cpu": max(min(group.memory // group.cpus for group in shape.nodes), 1),
        # Seconds that an answer may take longer, since light nodes share few cores.
        "slack": len(nodes) // 5 if shape.is_light else 0,
        "login": LOGIN,
        "login_address": LOGIN_ADDRESS,
        "controller_port": CONTROLLER_PORT,
        "node_port": NODE_PORT,
        "accounting_port": ACCOUNTING_PORT,
    }
    hosts = {"127.0.0.1": "localhost", LOGIN_ADDRESS: LOGIN}
    hosts |= {node.address: node.name for node in nodes}
    # Hosts are looked up in the file only: the cluster has no route to a name server, and would
    # wait for one.
    others = [row for row in nsswitch.splitlines() if not re.match(r"\s*hosts\s*:", row)]
    texts = {
        "slurm.conf": render("slurm.conf.j2", values),
        "gres.conf": gres_conf(shape, directory, gpus),
        # slurmd starts a cgroup plugin even where nothing uses one; v1 by name touches nothing, and
        # automatic choice can fail.
        "cgroup.conf": "CgroupPlugin=cgroup/v1\n",
        "hosts": "".join(f"{address} {host}\n" for address, host in hosts.items()),
        "nsswitch.conf": "\n".join([*others, "hosts: files\n"]),
    }
    if shape.job_submit:
        texts["job_submit.lua"] = shape.job_submit
    if shape.accounting:
        texts["slurmdbd.conf"] = render("slurmdbd.conf.j2", values)
    return texts


def render(template: str, values: Mapping[str, object]) -> str:
    """Return the text of a template of this room."""
    # Not HTML: a shape is checked, and has only words of slurm.conf.
    templates = make_templates("localcluster/templates", autoescape=False)
    templates.filters["lua"] = _lua
    return templates.get_template(template).render(values)


def _lua(value: object) -> str:
    """Return a literal of Lua 5.1; of text, control characters are written by number."""
    if isinstance(value, Mapping):
        return "{ " + " ".join(f"[{_lua(key)}] = {_lua(of)}," for key, of in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "{ " + ", ".join(map(_lua, value)) + " }"
    if isinstance(value, str):
        quoted = (
            f"\\{ord(letter):03d}" if ord(letter) < 32 or letter in '"\\\x7f' else letter
            for letter in value
        )
        return '"' + "".join(quoted) + '"'
    return "nil" if value is None else str(value).lower()


def _lines(shape: Shape) -> list[tuple[Node, str]]:
    """Return each group of equal nodes as if it was one node, and the ports of light ones.

    Every slurmd reads the whole file: lines of a thousand nodes would be read a million times.
    """
    nodes, lines = iter(all_nodes(shape)), []
    for group in shape.nodes:
        own = list(itertools.islice(nodes, len(expand(group.names))))
        ends: dict[str, list[str]] = {}
        for network, _, number in (node.address.rpartition(".") for node in own):
            ends.setdefault(network, []).append(number)
        address = ",".join(f"{net}.[{each[0]}-{each[-1]}]" for net, each in ends.items())
        ports = f" Port=[{light_port(own[0])}-{light_port(own[-1])}]"
        lines.append((Node(group.names, address, group), ports if shape.is_light else ""))
    return lines


def light_port(node: Node) -> int:
    """Return the port of a light node's slurmd."""
    third, fourth = node.address.split(".")[2:]
    return LIGHT_PORTS + int(third) * 256 + int(fourth)


def gres_conf(shape: Shape, directory: PurePosixPath, gpus: Sequence[int]) -> str:
    """Return gres.conf with a device for each GPU, so that Slurm numbers it."""
    rows, rest = ["AutoDetect=off"], iter(gpus)
    device = "/dev/nvidia" if gpus else f"{directory}/dev/gpu"
    for node in all_nodes(shape) if gpus else [node for node, _ in _lines(shape)]:
        count, kind = node.group.gpus, node.group.gpu_type
        if count:
            numbers = list(itertools.islice(rest, count)) or [*range(count)]
            files = f"{device}[{','.join(map(str, numbers))}]"
            typed = f" Type={kind}" if kind else ""
            rows.append(f"NodeName={node.name} Name=gpu{typed} File={files}")
    return "\n".join(rows) + "\n"
