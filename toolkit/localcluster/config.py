"""Render a shape as the files of a real Slurm: slurm.conf, gres.conf, slurmdbd.conf. Pure."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from toolkit.localcluster.shape import Node, PartitionShape, Shape, all_nodes, partitions_of

LOGIN = "login"  # the host name of the controller's side, from where jobs are submitted
LOGIN_ADDRESS = "10.77.0.1"
CONTROLLER_PORT = 16817
NODE_PORT = 16818
ACCOUNTING_PORT = 16819


def files(
    shape: Shape, *, name: str, directory: PurePosixPath, user: str, nsswitch: str
) -> dict[str, str]:
    """Return every file of the cluster's ``etc`` by its name.

    Args:
        shape: a checked one.
        name: of the cluster.
        directory: of the cluster.
        user: that runs the daemons and the jobs.
        nsswitch: this machine's /etc/nsswitch.conf.
    """
    texts = {
        "slurm.conf": slurm_conf(shape, name, directory, user),
        "gres.conf": gres_conf(shape, directory),
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
        *_controller(name, directory, user),
        *_jobs(shape),
        *_accounting(shape, directory),
        *(_node(node) for node in all_nodes(shape)),
        *(_partition(partition, shape) for partition in partitions_of(shape)),
        *shape.extra,
    ]
    return "\n".join(blocks) + "\n"


def _controller(name: str, directory: PurePosixPath, user: str) -> list[str]:
    return [
        f"ClusterName={name}",
        f"SlurmctldHost={LOGIN}({LOGIN_ADDRESS})",
        f"SlurmUser={user}",
        f"SlurmdUser={user}",
        f"SlurmctldPort={CONTROLLER_PORT}",
        f"SlurmdPort={NODE_PORT}",
        "AuthType=auth/munge",
        # cred_expire: a job that is requeued waits this long before it can start again; 120 s
        # without it.
        f"AuthInfo=socket={directory}/run/munge.socket,cred_expire=10",
        f"StateSaveLocation={directory}/state",
        f"SlurmdSpoolDir={directory}/node/%n/spool",
        f"SlurmctldPidFile={directory}/run/slurmctld.pid",
        f"SlurmdPidFile={directory}/run/slurmd.%n.pid",
        f"SlurmctldLogFile={directory}/log/slurmctld.log",
        f"SlurmdLogFile={directory}/log/slurmd.%n.log",
        "MailProg=/bin/true",
        "ReturnToService=2",
        "SlurmdTimeout=15",
        "MessageTimeout=5",
        # Nodes may declare more CPUs and memory than this machine has.
        "SlurmdParameters=config_overrides",
    ]


def _jobs(shape: Shape) -> list[str]:
    per_cpu = min(node.memory // node.cpus for node in all_nodes(shape))
    return [
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        # Without cgroups this is what ends a job that takes more than its memory.
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=5",
        "JobAcctGatherParams=OverMemoryKill",
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


def gres_conf(shape: Shape, directory: PurePosixPath) -> str:
    """Return gres.conf with a device for each GPU, so that Slurm numbers it."""
    rows = ["AutoDetect=off"]
    for node in all_nodes(shape):
        if node.gpus:
            kind = f" Type={node.gpu_type}" if node.gpu_type else ""
            numbers = "0" if node.gpus == 1 else f"[0-{node.gpus - 1}]"
            rows.append(f"NodeName={node.name} Name=gpu{kind} File={directory}/dev/gpu{numbers}")
    return "\n".join(rows) + "\n"


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
