"""What a user has in a cluster now."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from toolkit.model.site import Use
from toolkit.slurm.client import Client
from toolkit.slurm.parse import gpu_counts

FORMAT = "%P|%t|%D|%b|%i"
_ENDING = ("CG", "CD", "F", "CA", "TO", "NF", "OOM", "BF", "DL", "PR")
_GIVEN = re.compile(r"\bGRES=(\S+)")


def mine(client: Client) -> dict[str, Use]:
    """Jobs and GPUs of ours in each partition; empty where squeue does not tell."""
    result = client.ask(
        "squeue", "--noheader", "--array", f"--user={os.getuid()}", f"--format={FORMAT}"
    )
    return (
        {}
        if not result.ok
        else uses(
            result.stdout,
            lambda job: client.ask("scontrol", "--details", "show", "job", job).stdout,
        )
    )


def uses(text: str, details: Callable[[str], str]) -> dict[str, Use]:
    """Lines of ``squeue --format=FORMAT`` by partition. A job that waits for one of several partitions counts in each.

    Args:
        text: what squeue said.
        details: what scontrol says of a job, for jobs whose GPUs squeue does not name (those of ``--gpus``).
    """
    found: dict[str, Use] = {}
    for line in text.splitlines():
        partitions, state, nodes, gres, job = line.split("|", 4)
        if state in _ENDING:
            continue
        gpus = 0
        if state != "PD":
            gpus = gpus_in(gres) * int(nodes) if gpus_in(gres) else _given(details(job))
        for name in partitions.split(","):
            before = found.get(name, Use())
            found[name] = Use(
                submitted=before.submitted + 1,
                running=before.running + (state != "PD"),
                gpus=before.gpus + gpus,
            )
    return found


def gpus_in(gres: str) -> int:
    """GPUs in a list of generic resources as any command writes it: ``gpu:v100:4(IDX:0-3)``, ``gres/gpu:2``, ``gres/gpu=8``."""
    return sum(gpu_counts(gres).values())


def _given(text: str) -> int:
    """GPUs that ``scontrol --details show job`` says a job was given, node by node."""
    return sum(gpus_in(gres) for gres in _GIVEN.findall(text))
