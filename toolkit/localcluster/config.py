"""Render a shape as the files of a real Slurm: slurm.conf, gres.conf, slurmdbd.conf. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from msgspec.structs import replace

from toolkit.localcluster.shape import Node, PartitionShape, Shape, all_nodes, partitions_of

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
    texts = {
        "slurm.conf": slurm_conf(shape, name, directory, user),
        "gres.conf": gres_conf(shape, directory, gpus),
        # slurmd starts a cgroup plugin even where nothing uses one; v1 by name touches nothing, and
        # automatic choice can fail.
        "cgroup.conf": "CgroupPlugin=cgroup/v1\n",
        "hosts": hosts(shape),
        "nsswitch.conf": _nsswitch(nsswitch),
    }
    texts |= {"job_submit.lua": shape.job_submit} if shape.job_submit else {}
    return texts | ({"slurmdbd.conf": slurmdbd_conf(directory, user)} if shape.accounting else {})


def slurm_conf(shape: Shape, name: str, directory: PurePosixPath, user: str) -> str:
    """Return slurm.conf."""
    blocks = [
        "# Written by toolkit cluster up, which overwrites it each time.",
        *_controller(shape, name, directory, user),
        *_jobs(shape),
        *_accounting(shape, directory),
        *(_light_nodes(shape) if shape.is_light else map(_node, all_nodes(shape))),
        *(_partition(partition, shape) for partition in partitions_of(shape)),
        *shape.extra,
    ]
    return "\n".join(blocks) + "\n"


def _controller(shape: Shape, name: str, directory: PurePosixPath, user: str) -> list[str]:
    return [
        f"ClusterName={name}",
        f"SlurmctldHost={LOGIN}({LOGIN_ADDRESS})",
        f"SlurmUser={user}",
        f"SlurmdUser={user}",
        f"SlurmctldPort={CONTROLLER_PORT}",
        f"SlurmdPort={NODE_PORT}",
        "AuthType=auth/munge",
        # cred_expire: a job that is requeued waits this long before it can start again, and all
        # nodes have to begin a step in it; 120 s without it.
        f"AuthInfo=socket={directory}/run/munge.socket,cred_expire={10 + _slack(shape)}",
        f"StateSaveLocation={directory}/state",
        f"SlurmdSpoolDir={directory}/node/%n/spool",
        f"SlurmctldPidFile={directory}/run/slurmctld.pid",
        f"SlurmdPidFile={directory}/run/slurmd.%n.pid",
        f"SlurmctldLogFile={directory}/log/slurmctld.log",
        f"SlurmdLogFile={directory}/log/slurmd.%n.log",
        "MailProg=/bin/true",
        "ReturnToService=2",
        *_timeouts(shape),
        # Nodes may declare more CPUs and memory than this machine has.
        "SlurmdParameters=config_overrides",
    ]


def _timeouts(shape: Shape) -> list[str]:
    slack = _slack(shape)
    return [
        f"SlurmdTimeout={15 + slack}",
        f"MessageTimeout={5 + slack // 2}",
        *([f"BatchStartTimeout={10 + slack // 2}"] if slack else []),
    ]


def _slack(shape: Shape) -> int:
    """Return the seconds that an answer may take longer, since light nodes share few cores."""
    return len(all_nodes(shape)) // 5 if shape.is_light else 0


def _processes(shape: Shape) -> list[str]:
    if shape.is_light:
        # The others read all processes of the machine for every step of every node.
        return [
            "ProctrackType=proctrack/pgid",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none",
        ]
    return [
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        # Without cgroups this is what ends a job that takes more than its memory.
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=5",
        "JobAcctGatherParams=OverMemoryKill",
    ]


def _jobs(shape: Shape) -> list[str]:
    per_cpu = min(group.memory // group.cpus for group in shape.nodes)
    return [
        *_processes(shape),
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        f"DefMemPerCPU={max(per_cpu, 1)}",
        "SchedulerType=sched/backfill",
        "SchedulerParameters="
        "batch_sched_delay=0,sched_min_interval=0,sched_interval=5,bf_interval=5",
        # A job that no partition could ever run is refused at once.
        "EnforcePartLimits=ALL",
        "KillWait=5",
        "MpiDefault=none",
        "GresTypes=gpu",
        *(["JobSubmitPlugins=lua"] if shape.job_submit else []),
    ]


def _accounting(shape: Shape, directory: PurePosixPath) -> list[str]:
    if not shape.accounting:
        return [
            "AccountingStorageType=accounting_storage/none",
            "JobCompType=jobcomp/filetxt",
            f"JobCompLoc={directory}/log/jobcomp.txt",
            # Nothing else records a job that has ended: squeue shows it for a day.
            "MinJobAge=86400",
        ]
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={ACCOUNTING_PORT}",
        f"AccountingStoragePass={directory}/run/munge.socket",
        "AccountingStorageTRES=gres/gpu",
        "AccountingStoreFlags=job_comment",
        *(["AccountingStorageEnforce=associations,limits,qos"] if shape.limits else []),
        "MinJobAge=86400",
    ]


def _light_nodes(shape: Shape) -> list[str]:
    """Return a line for each group of nodes."""
    lines: list[str] = []
    for nodes in _groups(shape):
        first, last = nodes[0], nodes[-1]
        network, _, begin = first.address.rpartition(".")
        end = last.address.rpartition(".")[2]
        whole = replace(first, name=_names(nodes), address=f"{network}.[{begin}-{end}]")
        lines.append(f"{_node(whole)} Port=[{light_port(first)}-{light_port(last)}]")
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


def _node(node: Node) -> str:
    words = [
        f"NodeName={node.name}",
        f"NodeAddr={node.address}",
        f"CPUs={node.cpus}",
        f"RealMemory={node.memory}",
    ]
    if node.gpus:
        words.append("Gres=" + ":".join(filter(None, ("gpu", node.gpu_type, str(node.gpus)))))
    if node.features:
        words.append("Feature=" + ",".join(node.features))
    return " ".join([*words, "State=UNKNOWN"])


def _partition(partition: PartitionShape, shape: Shape) -> str:
    words = [
        f"PartitionName={partition.name}",
        f"Nodes={partition.nodes}",
        f"Default={'YES' if partition.default else 'NO'}",
    ]
    words += [f"MaxNodes={partition.max_nodes}"] if partition.max_nodes else []
    words += [f"MaxTime={partition.max_time or 'UNLIMITED'}"]
    words += [f"DefaultTime={partition.default_time}"] if partition.default_time else []
    words += [f"QOS={qos_name(partition.name)}"] if partition.name in shape.limits else []
    return " ".join([*words, *partition.options, "State=UP"])


def qos_name(partition: str) -> str:
    """Return the quality of service that has a partition's limits of users."""
    return f"limits-{partition}".lower()  # sacctmgr writes all names in lower case


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


def slurmdbd_conf(directory: PurePosixPath, user: str) -> str:
    """Return slurmdbd.conf. It has no password: MariaDB knows the user by the socket."""
    rows = [
        "AuthType=auth/munge",
        f"AuthInfo=socket={directory}/run/munge.socket",
        "DbdHost=localhost",
        "DbdAddr=127.0.0.1",
        f"DbdPort={ACCOUNTING_PORT}",
        f"SlurmUser={user}",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        f"StorageUser={user}",
        f"LogFile={directory}/log/slurmdbd.log",
        f"PidFile={directory}/run/slurmdbd.pid",
    ]
    return "\n".join(rows) + "\n"


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
