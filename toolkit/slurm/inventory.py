"""Ask a cluster how it is now."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence

from toolkit.model.overview import Queue, Standing, Start
from toolkit.model.site import Limits, Site, Use
from toolkit.slurm import overview, usage
from toolkit.slurm.client import Client, no_slurm


def ask(client: Client, site: Site, shape: Sequence[str] | None = None) -> tuple[Standing, ...]:
    """Every partition that this user may see, in Slurm's order.

    Args:
        client: the door to it.
        site: what is written of it.
        shape: options of sbatch; None: nobody wants to know where a job would start.

    Raises:
        SlurmUnreachableError: no Slurm answers.
    """
    said = client.ask("scontrol", "--oneliner", "show", "partition")
    if not said.ok:
        raise no_slurm(
            "Slurm does not show its partitions", "scontrol show partition", said.tail(3)
        )
    nodes = overview.nodes(client.ask("scontrol", "--oneliner", "--details", "show", "node").stdout)
    mine = usage.mine(client)
    qos, associations = accounts(client)
    found = []
    for queue in overview.queues(said.stdout):
        members = [node for node in nodes if queue.name in node.partitions]
        allowed = overview.limits(queue, site, qos, associations)
        found.append(
            overview.standing(
                queue,
                members,
                site,
                allowed,
                mine.get(queue.name, Use()),
                _start(client, site, queue, shape),
            )
        )
    return tuple(found)


def limits(client: Client, partition: str) -> dict[str, Limits]:
    """What Slurm lets this user have in a partition, by its name; empty where it sets no limit, or there is no accounting."""
    qos, associations = accounts(client)
    if not any(one != Limits(source=one.source) for one in (*qos.values(), *associations.values())):
        return {}
    said = client.ask("scontrol", "--oneliner", "show", "partition", partition)
    found = {
        queue.name: overview.limits(queue, Site(name="-"), qos, associations)
        for queue in overview.queues(said.stdout)
    }
    return {name: one for name, one in found.items() if one.source}


def accounts(client: Client) -> tuple[dict[str, Limits], dict[str, Limits]]:
    """Limits by quality of service, and of this user by partition; empty where there is no accounting."""
    name = pwd.getpwuid(os.getuid()).pw_name
    asked = ("sacctmgr", "--noheader", "--parsable2", "show")
    qos = client.ask(*asked, "qos", f"format={overview.QOS_FORMAT}")
    if not qos.ok:
        return {}, {}
    own = client.ask(
        *asked, "associations", f"user={name}", f"format={overview.ASSOCIATION_FORMAT}"
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
