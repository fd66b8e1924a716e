"""`toolkit cluster show`: a cluster as it is now, any that Slurm's commands reach."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click
from msgspec.structs import asdict

from toolkit.cli import console
from toolkit.cli.lazy import cluster_option
from toolkit.cli.options import NODES
from toolkit.cli.shared import gpus_option, json_option, site_option
from toolkit.model.base import Model
from toolkit.model.site import PartitionState
from toolkit.planning.cluster import find_cluster
from toolkit.planning.settings import chosen
from toolkit.slurm.client import Client
from toolkit.slurm.cluster import partition_states, soonest


@click.command("show")
@click.option(
    "--nodes",
    "-N",
    metavar="N",
    type=NODES,
    help="Ask where a job of so many nodes would start soonest.",
)
@gpus_option("GPUs on each node of this job.", smallest=0)
@click.option("--ntasks-per-node", type=click.IntRange(1), help="Ranks on each node of this job.")
@click.option(
    "--cpus-per-task", "-c", type=click.IntRange(1), help="CPUs for each rank of this job."
)
@click.option("--time", "-t", metavar="TIME", help="Time limit of this job.")
@click.option("--account", "-A", metavar="NAME", help="Account of this job.")
@click.option("--qos", "-q", metavar="NAME", help="Quality of service of this job.")
@click.option(
    "--constraint", "-C", metavar="LIST", help="Features that the nodes of this job must have."
)
@click.option(
    "--comment",
    metavar="TEXT",
    help="Slurm's comment of this job (default: the site's own example, if it requires one).",
)
@site_option("The cluster (default auto, as for `toolkit run`).")
@json_option
@cluster_option()
def show(
    nodes: int | str | None,
    gpus: int | None,
    site: str | None,
    as_json: bool,
    **more: int | str | None,
) -> None:
    """Show partitions, free GPUs, limits, and how much of them you use.

    It works on any cluster, also on the one of `toolkit cluster up`. With the shape of a job, it
    asks Slurm where the job would start soonest (sbatch --test-only; nothing is submitted).

    \b
    Examples:
      toolkit cluster show
      toolkit cluster show --nodes 2 --gpus 4 --time 1:00:00
      toolkit cluster show --json
    """
    asked = {
        "nodes": str(nodes).replace(":", "-") if nodes else None,
        "gres": f"gpu:{gpus}" if gpus else None,
    }
    asked |= {
        name.replace("_", "-"): str(value) for name, value in more.items() if value is not None
    }
    shape = [f"--{name}={value}" for name, value in asked.items() if value is not None]
    place = find_cluster(site or chosen(Path.cwd()).site)
    partitions = partition_states(Client(place.access), place.site, shape or None)
    if as_json:
        console.out_json(
            {"site": place.site.name, "partitions": [_whole(partition) for partition in partitions]}
        )
        return
    for line in _lines(partitions, " ".join(shape)):
        console.out(line)


def _whole(value: Any) -> Any:
    """Return a model with all of its keys, also those with default values."""
    if not isinstance(value, Model):
        return value
    return {name: _whole(part) for name, part in asdict(value).items()}


def _lines(partitions: Sequence[PartitionState], shape: str) -> Iterator[str]:
    header = (
        "PARTITION",
        "GPUS PER NODE",
        "IDLE",
        "MIXED",
        "FULL",
        "DOWN",
        "FREE GPUS",
        "TIME",
        "YOUR JOBS",
        "RUNNING",
        "YOUR GPUS",
    )
    rows = [
        (
            partition.settings.name
            + "*" * partition.settings.default
            + ("" if partition.settings.available else " (off)"),
            f"{partition.gpus_per_node} {partition.gpu}".strip()
            if partition.gpus_per_node
            else "-",
            *(partition.idle, partition.mixed, partition.full, partition.down),
            f"{partition.gpus_free} of {partition.gpus}" if partition.gpus else "-",
            _limit(partition),
            _of(partition.use.submitted, partition.limits.jobs_submitted),
            _of(partition.use.running, partition.limits.jobs_running),
            _of(partition.use.gpus, partition.limits.gpus) if partition.gpus_per_node else "-",
        )
        for partition in partitions
    ]
    yield console.table(header, rows)
    sources = ", ".join(
        dict.fromkeys(
            partition.limits.source for partition in partitions if partition.limits.source
        )
    )
    if sources:
        yield f"limits: {sources}"
    if shape:
        yield ""
        yield from _starts(partitions, shape)


def _of(used: int, limit: int | None) -> str:
    return f"{used} of {limit}" if limit is not None else str(used)


def _limit(partition: PartitionState) -> str:
    minutes = partition.settings.max_minutes
    if minutes is None:
        return "no limit"
    return re.sub(" days?, ", "-", str(timedelta(minutes=minutes)))  # as Slurm writes it


def _starts(partitions: Sequence[PartitionState], shape: str) -> Iterator[str]:
    """Yield the partitions where a job would start, the soonest first.

    Those where it would never start come last.
    """
    able = soonest(partitions)
    rows = [
        (partition.settings.name, _when(partition.start.at), partition.start.nodes)
        for partition in able
        if partition.start
    ]
    rows += [
        (partition.settings.name, "never", partition.start.refused)
        for partition in partitions
        if partition.start and not partition.start.at
    ]
    yield f"a job of {shape}, as Slurm guesses now:"
    yield console.table(("PARTITION", "STARTS", "WHERE, OR WHY NOT"), rows)
    if able:
        yield f"next: toolkit run --partition {able[0].settings.name} ..."


def _when(at: str) -> str:
    try:
        soon = datetime.fromisoformat(at) <= datetime.now() + timedelta(minutes=1)
    except ValueError:
        soon = False
    return "now" if soon else at.replace("T", " ")
