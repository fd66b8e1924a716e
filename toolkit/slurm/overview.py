"""Parse Slurm's output on nodes, partitions and limits into the state of a cluster. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from toolkit.model.overview import ClusterNode, PartitionState, Queue, Start
from toolkit.model.site import Limits, Site, Use
from toolkit.slurm.parse import gpu_counts, gpus_in
from toolkit.units import minutes

QOS_FORMAT = "Name,MaxJobsPU,MaxSubmitPU,MaxTRESPU"
ASSOCIATION_FORMAT = "Partition,MaxJobs,MaxSubmit,GrpTRES"
# 26.05 has more words before "using", such as the cluster's name.
_STARTS = re.compile(
    r"to start at (?P<at>\S+).{0,200}? using .{0,200}? on (?:nodes? )?(?P<nodes>\S+)"
)
_GONE = frozenset(
    (
        "DOWN",
        "DRAIN",
        "DRAINED",
        "DRAINING",
        "FAIL",
        "FAILING",
        "ERROR",
        "FUTURE",
        "UNKNOWN",
        "NOT_RESPONDING",
        "MAINT",
    )
)
_FLAGS = "*~#!%$@^-"  # suffixes of a state, in some versions; * means that the node does not answer


def fields(line: str) -> dict[str, str]:
    """Return the fields of a line of ``scontrol --oneliner show ...``.

    A value with blanks (a reason, an operating system) is cut after its first word.
    """
    return dict(re.findall(r"(?:^|\s)([A-Za-z_:]+)=(\S*)", line))


def nodes(text: str) -> tuple[ClusterNode, ...]:
    """Parse the output of ``scontrol --oneliner --details show node``."""
    return tuple(_node(fields(line)) for line in text.splitlines() if line.startswith("NodeName="))


def _node(values: Mapping[str, str]) -> ClusterNode:
    counts = gpu_counts(values.get("Gres", ""))
    return ClusterNode(
        name=values["NodeName"],
        partitions=tuple(filter(None, values.get("Partitions", "").split(","))),
        state=_state(values.get("State", "UNKNOWN")),
        cpus=int(values.get("CPUTot", 0)),
        memory=int(values.get("RealMemory", 0)),
        gpus=sum(counts.values()),
        gpus_used=gpus_in(values.get("GresUsed", "")),
        gpu_type=next(filter(None, counts), ""),
        arch=values.get("Arch", ""),
    )


def _state(text: str) -> str:
    """Return the state of a node for a user who wants to start a job.

    ``MIXED+DRAIN`` is down. ``IDLE+POWERED_DOWN`` is idle: Slurm switches such a node on.
    """
    words = [word.rstrip(_FLAGS) for word in text.split("+")]
    if "*" in text or _GONE.intersection(words):
        return "down"
    return {"IDLE": "idle", "MIXED": "mixed", "ALLOCATED": "full", "COMPLETING": "full"}.get(
        words[0], "down"
    )


def queues(text: str) -> tuple[Queue, ...]:
    """Parse the output of ``scontrol --oneliner show partition``, in Slurm's order."""
    return tuple(
        _queue(fields(line)) for line in text.splitlines() if line.startswith("PartitionName=")
    )


def _queue(values: Mapping[str, str]) -> Queue:
    most = values.get("MaxNodes", "")
    return Queue(
        name=values["PartitionName"],
        default=values.get("Default") == "YES",
        up=values.get("State", "UP") == "UP",
        nodes="" if values.get("Nodes") == "(null)" else values.get("Nodes", ""),
        max_minutes=_minutes(values.get("MaxTime", "")),
        default_minutes=_minutes(values.get("DefaultTime", "")),
        max_nodes=int(most) if most.isdigit() else None,
        qos="" if values.get("QoS") in (None, "N/A") else values["QoS"],
    )


def _minutes(text: str) -> int | None:
    try:
        return minutes(text)
    except ValueError:  # NONE
        return None


def limits_of(text: str, source: str) -> dict[str, Limits]:
    """Parse lines of ``sacctmgr --parsable2 show``: a name and its three limits, by that name."""
    by_name = {}
    for line in text.splitlines():
        name, running, submitted, tres = (*line.split("|"), "", "", "")[:4]
        by_name[name] = Limits(
            jobs_submitted=_number(submitted),
            jobs_running=_number(running),
            gpus=gpus_of(tres),
            source=source,
        )
    return by_name


def gpus_of(tres: str) -> int | None:
    """Return the GPUs in ``cpu=40,gres/gpu=8``; None if they have no limit."""
    return gpus_in(tres) if "gres/gpu" in tres else None


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def limits(
    queue: Queue, site: Site, qos: Mapping[str, Limits], associations: Mapping[str, Limits]
) -> Limits:
    """Return the limits of one user in a partition.

    Slurm's own limits take precedence over those of the site file.
    """
    written = site.partitions.get(queue.name)
    from_site = (
        Limits(
            jobs_submitted=written.jobs_submitted,
            jobs_running=written.jobs_running,
            gpus=written.gpus_per_user,
            source=f"site {site.name}",
        )
        if written
        else Limits()
    )
    sources = (qos.get(queue.qos), associations.get(queue.name), associations.get(""), from_site)
    known = [limits for limits in sources if limits]
    chosen = {
        name: next((limits for limits in known if getattr(limits, name) is not None), None)
        for name in ("jobs_submitted", "jobs_running", "gpus")
    }
    return Limits(
        **{name: getattr(limits, name) for name, limits in chosen.items() if limits},
        source=" and ".join(dict.fromkeys(limits.source for limits in chosen.values() if limits)),
    )


def partition_state(
    queue: Queue,
    members: Sequence[ClusterNode],
    site: Site,
    allowed: Limits,
    use: Use,
    start: Start | None,
) -> PartitionState:
    """Return the present state of a partition from its nodes, limits and usage."""
    written = site.partitions.get(queue.name)
    kinds = ", ".join(dict.fromkeys(node.gpu_type for node in members if node.gpu_type))
    alive = [node for node in members if node.state != "down"]
    counts = {
        state: sum(node.state == state for node in members)
        for state in ("idle", "mixed", "full", "down")
    }
    return PartitionState(
        queue=queue,
        gpu=(written.gpu if written and written.gpu else kinds) or "",
        gpus_per_node=max((node.gpus for node in members), default=0),
        cpus_per_node=max((node.cpus for node in members), default=0),
        **counts,
        gpus=sum(node.gpus for node in alive),
        gpus_free=sum(node.gpus - node.gpus_used for node in alive),
        limits=allowed,
        use=use,
        start=start,
    )


def start(text: str) -> Start:
    """Parse the output of ``sbatch --test-only``."""
    match = _STARTS.search(text)
    if match:
        return Start(at=match["at"], nodes=match["nodes"])
    lines = [
        re.sub(r"^(?:sbatch: )?(?:error: )?(?:allocation failure: )?", "", line)
        for line in text.splitlines()
        if line.strip()
    ]
    return Start(refused="; ".join(dict.fromkeys(lines)) or "no answer")


def soonest(partitions: Sequence[PartitionState]) -> tuple[PartitionState, ...]:
    """Return the partitions where a job would start, the soonest first."""
    starts = [(partition.start.at, partition) for partition in partitions if partition.start]
    able = [pair for pair in starts if pair[0]]
    return tuple(partition for _, partition in sorted(able, key=lambda pair: pair[0]))
