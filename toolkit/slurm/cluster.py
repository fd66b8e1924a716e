"""The present state of a cluster: partitions, nodes, limits, usage, and where a job would start."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping, Sequence

from toolkit.errors import SlurmUnreachableError
from toolkit.model.site import ClusterNode, Limits, Partition, PartitionState, Site, Start, Use
from toolkit.slurm.client import Client
from toolkit.slurm.parse import gpu_counts, gpus_in, number, rows
from toolkit.units import minutes

QOS_FORMAT = "Name,MaxJobsPU,MaxSubmitPU,MaxTRESPU"
ASSOCIATION_FORMAT = "Partition,MaxJobs,MaxSubmit,GrpTRES"
USAGE_FORMAT = "%P|%t|%D|%b|%i"
_ENDING = ("CG", "CD", "F", "CA", "TO", "NF", "OOM", "BF", "DL", "PR")
_GIVEN = re.compile(r"\bGRES=(\S+)")
# 26.05 has more words before "using", such as the cluster's name.
_STARTS = re.compile(
    r"to start at (?P<at>\S+).{0,200}? using .{0,200}? on (?:nodes? )?(?P<nodes>\S+)"
)
_GONE = re.compile(r"DOWN|DRAIN(?:ED|ING)?|FAIL(?:ING)?|ERROR|FUTURE|UNKNOWN|NOT_RESPONDING|MAINT")
_FLAGS = "*~#!%$@^-"  # suffixes of a state, in some versions; * means that the node does not answer
_STATES = {"IDLE": "idle", "MIXED": "mixed", "ALLOCATED": "full", "COMPLETING": "full"}


def partition_states(
    client: Client, site: Site, shape: Sequence[str] | None = None
) -> tuple[PartitionState, ...]:
    """Return every partition that this user may see, in Slurm's order.

    Args:
        client: of the cluster.
        site: the site file.
        shape: options of sbatch; None: do not estimate where a job would start.

    Raises:
        SlurmUnreachableError: no Slurm answers.
    """
    all_states, all_nodes = [], ask_nodes(client)
    uses, (qos, own) = ask_usage(client), accounts(client)
    for partition in ask_partitions(client):
        members = [node for node in all_nodes if partition.name in node.partitions]
        written = site.partitions.get(partition.name)
        kinds = ", ".join(dict.fromkeys(node.gpu_type for node in members if node.gpu_type))
        alive = [node for node in members if node.state != "down"]
        states = [node.state for node in members]
        state = PartitionState(
            settings=partition,
            gpu=(written.gpu if written and written.gpu else kinds) or "",
            gpus_per_node=max((node.gpus for node in members), default=0),
            **{state: states.count(state) for state in ("idle", "mixed", "full", "down")},
            gpus=sum(node.gpus for node in alive),
            gpus_free=sum(node.gpus - node.gpus_used for node in alive),
            limits=limits(partition, site, qos, own),
            use=uses.get(partition.name, Use()),
            start=None if shape is None else _ask_start(client, partition, site, shape),
        )
        all_states.append(state)
    return tuple(all_states)


def ask_partitions(client: Client) -> tuple[Partition, ...]:
    """Return the settings of the partitions that this user may see.

    Raises:
        SlurmUnreachableError: Slurm shows none.
    """
    answer = client.ask("scontrol", "--oneliner", "show", "partition")
    if not answer.ok:
        cause = "Slurm does not show its partitions"
        place = "scontrol show partition"
        raise SlurmUnreachableError(cause, place=place, details=answer.tail(3))
    return partitions(answer.stdout)


def ask_nodes(client: Client) -> tuple[ClusterNode, ...]:
    """Return all nodes, those of hidden partitions too; none if Slurm hides them."""
    words = ("scontrol", "--all", "--oneliner", "--details", "show", "node")
    text = client.ask(*words).stdout
    lines = (line for line in text.splitlines() if line.startswith("NodeName="))
    return tuple(map(_node, map(fields_of, lines)))


def accounts(client: Client) -> tuple[dict[str, Limits], dict[str, Limits]]:
    """Return the limits by quality of service, and those of this user by partition.

    Both are empty if there is no accounting.
    """
    name = pwd.getpwuid(os.getuid()).pw_name
    command = ("sacctmgr", "--noheader", "--parsable2", "show")
    qos = client.ask(*command, "qos", f"format={QOS_FORMAT}")
    if not qos.ok:
        return {}, {}
    words = ("associations", f"user={name}", f"format={ASSOCIATION_FORMAT}")
    own = client.ask(*command, *words)
    own_limits = limits_of(own.stdout if own.ok else "", "Slurm's association")
    return limits_of(qos.stdout, "Slurm's QOS"), own_limits


def ask_limits(client: Client, partition: str, site: Site) -> dict[str, Limits]:
    """Return the limits of this user in a partition, by its name; empty if Slurm sets none."""
    qos, own = accounts(client)
    if all(each == Limits(source=each.source) for each in (*qos.values(), *own.values())):
        return {}
    answer = client.ask("scontrol", "--oneliner", "show", "partition", partition)
    return {each.name: limits(each, site, qos, own) for each in partitions(answer.stdout)}


def ask_usage(client: Client) -> dict[str, Use]:
    """Return the user's jobs and GPUs in each partition; empty if squeue fails.

    A job that waits for one of several partitions counts in each.
    """
    words = ("squeue", "--noheader", "--array", f"--user={os.getuid()}", f"--format={USAGE_FORMAT}")
    result = client.ask(*words)
    uses: dict[str, Use] = {}
    for names, state, count, gres, job in rows(result.stdout, USAGE_FORMAT) if result.ok else ():
        if state in _ENDING or not count.isdigit():
            continue
        runs = state != "PD"
        gpus = gpus_in(gres) * int(count) if runs else 0
        if runs and not gpus:  # squeue does not print those of --gpus
            shown = client.ask("scontrol", "--oneliner", "--details", "show", "job", job).stdout
            gpus = sum(map(gpus_in, _GIVEN.findall(shown)))
        for name in names.split(","):
            use = uses.get(name, Use())
            uses[name] = Use(
                submitted=use.submitted + 1, running=use.running + runs, gpus=use.gpus + gpus
            )
    return uses


def _ask_start(client: Client, partition: Partition, site: Site, shape: Sequence[str]) -> Start:
    words = [f"--partition={partition.name}"]
    words += [f"--comment={site.comment.example}"] if site.comment and site.comment.example else []
    # Of an option that is given twice, sbatch takes the last.
    result = client.ask("sbatch", "--test-only", *words, *shape, "--wrap=true")
    return start(result.stdout + result.stderr)


def fields_of(line: str) -> dict[str, str]:
    """Return the fields of a line of ``scontrol --oneliner show ...``.

    A value with blanks (a reason, an operating system) is cut after its first word.
    """
    return dict(re.findall(r"(?:^|\s)([A-Za-z_:]+)=(\S*)", line))


def _node(values: Mapping[str, str]) -> ClusterNode:
    counts = gpu_counts(values.get("Gres", ""))
    # MIXED+DRAIN is down. IDLE+POWERED_DOWN is idle: Slurm switches such a node on.
    state = values.get("State", "UNKNOWN")
    words = [word.rstrip(_FLAGS) for word in state.split("+")]
    is_gone = "*" in state or any(map(_GONE.fullmatch, words))
    return ClusterNode(
        name=values["NodeName"],
        partitions=_words(values.get("Partitions", "")),
        state="down" if is_gone else _STATES.get(words[0], "down"),
        cpus=int(values.get("CPUTot", 0)),
        memory=int(values.get("RealMemory", 0)),
        gpus=sum(counts.values()),
        gpus_used=gpus_in(values.get("GresUsed", "")),
        gpu_type=next(filter(None, counts), ""),
        arch=values.get("Arch", ""),
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.replace("(null)", "").split(",")))


def partitions(text: str) -> tuple[Partition, ...]:
    """Parse the output of ``scontrol --oneliner show partition``, in Slurm's order."""
    lines = (line for line in text.splitlines() if line.startswith("PartitionName="))
    return tuple(map(_partition, map(fields_of, lines)))


def _partition(values: Mapping[str, str]) -> Partition:
    return Partition(
        name=values["PartitionName"],
        default=values.get("Default") == "YES",
        available=values.get("State", "UP") == "UP",
        hosts="" if values.get("Nodes") == "(null)" else values.get("Nodes", ""),
        max_minutes=minutes(values.get("MaxTime", "UNLIMITED")),
        max_nodes=number(values.get("MaxNodes", "")),
        qos="" if values.get("QoS") in (None, "N/A") else values["QoS"],
    )


def limits_of(text: str, source: str) -> dict[str, Limits]:
    """Parse lines of ``sacctmgr --parsable2 show``: a name and its three limits, by that name."""
    by_name = {}
    for line in text.splitlines():
        name, running, submitted, tres = (*line.split("|"), "", "", "")[:4]
        by_name[name] = Limits(
            jobs_submitted=number(submitted),
            jobs_running=number(running),
            gpus=gpus_in(tres) if "gres/gpu" in tres else None,
            source=source,
        )
    return by_name


def limits(
    partition: Partition, site: Site | None, qos: Mapping[str, Limits], own: Mapping[str, Limits]
) -> Limits:
    """Return the limits of one user in a partition.

    Args:
        partition: the partition.
        site: the site file, whose limits come last; None: only Slurm's.
        qos: limits by quality of service.
        own: limits of the user by partition.
    """
    known = [qos.get(partition.qos), own.get(partition.name), own.get("")]
    known += [site.limits(partition.name)] if site else []
    values: dict[str, int] = {}
    sources: dict[str, None] = {}
    for name in ("jobs_submitted", "jobs_running", "gpus"):
        for each in filter(None, known):
            if name not in values and getattr(each, name) is not None:
                values[name] = getattr(each, name)
                sources[each.source] = None
    return Limits(**values, source=" and ".join(sources))


def start(text: str) -> Start:
    """Parse the output of ``sbatch --test-only``."""
    if match := _STARTS.search(text):
        return Start(at=match["at"], nodes=match["nodes"])
    prefix = r"^(?:sbatch: )?(?:error: )?(?:allocation failure: )?"
    lines = [re.sub(prefix, "", line) for line in text.splitlines() if line.strip()]
    return Start(refused="; ".join(dict.fromkeys(lines)) or "no answer")


def soonest(partitions: Sequence[PartitionState]) -> tuple[PartitionState, ...]:
    """Return the partitions where a job would start, the soonest first."""
    starts = [(each.start.at, each) for each in partitions if each.start and each.start.at]
    return tuple(each for _, each in sorted(starts, key=lambda pair: pair[0]))
