"""What Slurm's commands say of nodes, partitions and limits, as the state of a cluster. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from toolkit.model.overview import Live, Queue, Standing, Start
from toolkit.model.site import Limits, Site, Use
from toolkit.slurm.parse import gpu_counts, minutes
from toolkit.slurm.usage import gpus_in

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
_FLAGS = "*~#!%$@^-"  # behind a state, in some versions; * is: it does not answer


def fields(line: str) -> dict[str, str]:
    """A line of ``scontrol --oneliner show ...``; values with blanks (a reason, an operating system) keep their first word."""
    return dict(re.findall(r"(?:^|\s)([A-Za-z_:]+)=(\S*)", line))


def nodes(text: str) -> tuple[Live, ...]:
    """The answer of ``scontrol --oneliner --details show node``."""
    return tuple(_node(fields(line)) for line in text.splitlines() if line.startswith("NodeName="))


def _node(said: Mapping[str, str]) -> Live:
    counts = gpu_counts(said.get("Gres", ""))
    return Live(
        name=said["NodeName"],
        partitions=tuple(filter(None, said.get("Partitions", "").split(","))),
        state=_state(said.get("State", "UNKNOWN")),
        cpus=int(said.get("CPUTot", 0)),
        memory=int(said.get("RealMemory", 0)),
        gpus=sum(counts.values()),
        gpus_used=gpus_in(said.get("GresUsed", "")),
        gpu_type=next(filter(None, counts), ""),
        arch=said.get("Arch", ""),
    )


def _state(text: str) -> str:
    """``MIXED+DRAIN`` is down for whoever wants to start a job; of ``IDLE+POWERED_DOWN`` Slurm switches the power on."""
    words = [word.rstrip(_FLAGS) for word in text.split("+")]
    if "*" in text or _GONE.intersection(words):
        return "down"
    return {"IDLE": "idle", "MIXED": "mixed", "ALLOCATED": "full", "COMPLETING": "full"}.get(
        words[0], "down"
    )


def queues(text: str) -> tuple[Queue, ...]:
    """The answer of ``scontrol --oneliner show partition``, in Slurm's order."""
    return tuple(
        _queue(fields(line)) for line in text.splitlines() if line.startswith("PartitionName=")
    )


def _queue(said: Mapping[str, str]) -> Queue:
    most = said.get("MaxNodes", "")
    return Queue(
        name=said["PartitionName"],
        default=said.get("Default") == "YES",
        up=said.get("State", "UP") == "UP",
        nodes="" if said.get("Nodes") == "(null)" else said.get("Nodes", ""),
        max_minutes=_minutes(said.get("MaxTime", "")),
        default_minutes=_minutes(said.get("DefaultTime", "")),
        max_nodes=int(most) if most.isdigit() else None,
        qos="" if said.get("QoS") in (None, "N/A") else said["QoS"],
    )


def _minutes(text: str) -> int | None:
    try:
        return minutes(text)
    except ValueError:  # NONE
        return None


def limits_of(text: str, source: str) -> dict[str, Limits]:
    """Lines of ``sacctmgr --parsable2 show`` with a name and three limits, by that name."""
    found = {}
    for line in text.splitlines():
        name, running, submitted, tres = (*line.split("|"), "", "", "")[:4]
        found[name] = Limits(
            jobs_submitted=_number(submitted),
            jobs_running=_number(running),
            gpus=gpus_of(tres),
            source=source,
        )
    return found


def gpus_of(tres: str) -> int | None:
    """The GPUs in ``cpu=40,gres/gpu=8``; None where they have no limit."""
    return gpus_in(tres) if "gres/gpu" in tres else None


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def limits(
    queue: Queue, site: Site, qos: Mapping[str, Limits], associations: Mapping[str, Limits]
) -> Limits:
    """What one user may have in a partition. A limit of Slurm's own goes before what is written."""
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
    found = [
        one
        for one in (
            qos.get(queue.qos),
            associations.get(queue.name),
            associations.get(""),
            from_site,
        )
        if one
    ]
    chosen = {
        name: next((one for one in found if getattr(one, name) is not None), None)
        for name in ("jobs_submitted", "jobs_running", "gpus")
    }
    return Limits(
        **{name: getattr(one, name) for name, one in chosen.items() if one},
        source=" and ".join(dict.fromkeys(one.source for one in chosen.values() if one)),
    )


def standing(
    queue: Queue,
    members: Sequence[Live],
    site: Site,
    allowed: Limits,
    use: Use,
    start: Start | None,
) -> Standing:
    """A partition, counted."""
    written = site.partitions.get(queue.name)
    kinds = ", ".join(dict.fromkeys(node.gpu_type for node in members if node.gpu_type))
    alive = [node for node in members if node.state != "down"]
    counts = {
        state: sum(node.state == state for node in members)
        for state in ("idle", "mixed", "full", "down")
    }
    return Standing(
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
    """What ``sbatch --test-only`` says."""
    match = _STARTS.search(text)
    if match:
        return Start(at=match["at"], nodes=match["nodes"])
    lines = [
        re.sub(r"^(?:sbatch: )?(?:error: )?(?:allocation failure: )?", "", line)
        for line in text.splitlines()
        if line.strip()
    ]
    return Start(refused="; ".join(dict.fromkeys(lines)) or "no answer")


def soonest(found: Sequence[Standing]) -> tuple[Standing, ...]:
    """The partitions where a job would start, the soonest first."""
    able = [one for one in found if one.start and one.start.at]
    return tuple(sorted(able, key=lambda one: one.start.at if one.start else ""))
