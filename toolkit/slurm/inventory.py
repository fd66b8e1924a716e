"""Query the present state of a cluster."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Sequence

from toolkit.model.overview import PartitionState, Queue, Start
from toolkit.model.site import Limits, Site, Use
from toolkit.slurm import overview
from toolkit.slurm.client import Client
from toolkit.slurm.failures import no_slurm
from toolkit.slurm.parse import gpus_in, rows

USAGE_FORMAT = "%P|%t|%D|%b|%i"
_ENDING = ("CG", "CD", "F", "CA", "TO", "NF", "OOM", "BF", "DL", "PR")
_GIVEN = re.compile(r"\bGRES=(\S+)")


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
    answer = client.ask("scontrol", "--oneliner", "show", "partition")
    if not answer.ok:
        raise no_slurm(
            "Slurm does not show its partitions", "scontrol show partition", answer.tail(3)
        )
    nodes = overview.nodes(client.ask("scontrol", "--oneliner", "--details", "show", "node").stdout)
    own = user_usage(client)
    qos, associations = accounts(client)
    partitions = []
    for queue in overview.queues(answer.stdout):
        members = [node for node in nodes if queue.name in node.partitions]
        allowed = overview.limits(queue, site, qos, associations)
        partitions.append(
            overview.partition_state(
                queue,
                members,
                site,
                allowed,
                own.get(queue.name, Use()),
                _start(client, site, queue, shape),
            )
        )
    return tuple(partitions)


def limits(client: Client, partition: str) -> dict[str, Limits]:
    """Return Slurm's limits of this user in a partition, by its name.

    The result is empty if Slurm sets no limit, or there is no accounting.
    """
    qos, associations = accounts(client)
    known = (*qos.values(), *associations.values())
    if all(limits == Limits(source=limits.source) for limits in known):
        return {}
    answer = client.ask("scontrol", "--oneliner", "show", "partition", partition)
    by_name = {
        queue.name: overview.limits(queue, Site(name="-"), qos, associations)
        for queue in overview.queues(answer.stdout)
    }
    return {name: limits for name, limits in by_name.items() if limits.source}


def accounts(client: Client) -> tuple[dict[str, Limits], dict[str, Limits]]:
    """Return the limits by quality of service, and those of this user by partition.

    Both are empty if there is no accounting.
    """
    name = pwd.getpwuid(os.getuid()).pw_name
    command = ("sacctmgr", "--noheader", "--parsable2", "show")
    qos = client.ask(*command, "qos", f"format={overview.QOS_FORMAT}")
    if not qos.ok:
        return {}, {}
    own = client.ask(
        *command, "associations", f"user={name}", f"format={overview.ASSOCIATION_FORMAT}"
    )
    return overview.limits_of(qos.stdout, "Slurm's QOS"), overview.limits_of(
        own.stdout if own.ok else "", "Slurm's association"
    )


def _start(client: Client, site: Site, queue: Queue, shape: Sequence[str] | None) -> Start | None:
    if shape is None:
        return None
    comment = (
        (f"--comment={site.comment.example}",) if site.comment and site.comment.example else ()
    )
    given = {word.partition("=")[0] for word in shape}
    words = [
        word
        for word in (f"--partition={queue.name}", *comment)
        if word.partition("=")[0] not in given
    ]
    result = client.ask("sbatch", "--test-only", *words, *shape, "--wrap=true")
    return overview.start(result.stdout + result.stderr)


def user_usage(client: Client) -> dict[str, Use]:
    """Return the user's jobs and GPUs in each partition; empty if squeue fails."""
    result = client.ask(
        "squeue", "--noheader", "--array", f"--user={os.getuid()}", f"--format={USAGE_FORMAT}"
    )
    return (
        {}
        if not result.ok
        else parse_usage(
            result.stdout,
            lambda job: client.ask("scontrol", "--details", "show", "job", job).stdout,
        )
    )


def parse_usage(text: str, details: Callable[[str], str]) -> dict[str, Use]:
    """Parse lines of ``squeue --format=USAGE_FORMAT`` into the usage of each partition.

    A job that waits for one of several partitions counts in each.

    Args:
        text: output of squeue.
        details: function that returns scontrol's output for a job; it is called for jobs whose GPUs
            squeue does not print (those of ``--gpus``).
    """
    usage: dict[str, Use] = {}
    for partitions, state, nodes, gres, job in rows(text, USAGE_FORMAT):
        if state in _ENDING:
            continue
        gpus = 0
        if state != "PD":
            gpus = gpus_in(gres) * int(nodes) if gpus_in(gres) else _given(details(job))
        for name in partitions.split(","):
            before = usage.get(name, Use())
            usage[name] = Use(
                submitted=before.submitted + 1,
                running=before.running + (state != "PD"),
                gpus=before.gpus + gpus,
            )
    return usage


def _given(text: str) -> int:
    """Return the GPUs of a job from ``scontrol --details show job``, summed over its nodes."""
    return sum(gpus_in(gres) for gres in _GIVEN.findall(text))
