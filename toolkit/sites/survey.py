"""Find out all that a live cluster tells of itself."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolkit import shell
from toolkit.errors import ToolkitError
from toolkit.model.overview import Met, Survey
from toolkit.model.site import Site
from toolkit.progress import Progress
from toolkit.slurm import inventory, overview
from toolkit.slurm.client import Client, no_slurm

_PATIENCE = 30  # seconds that a probe waits for a node, and `module avail` for its answer
_CONTAINERS = ("apptainer", "singularity")
# What a probe asks on a node; each part says what it is, for a node that lacks a program.
_PROBE = """\
echo "host $(hostname)"
nvidia-smi --query-gpu=driver_version,name --format=csv,noheader 2>/dev/null | sed 's/^/gpu /'
ip -o -4 addr show scope global 2>/dev/null | awk '{print "interface", $2}'
"""


def survey(client: Client, progress: Progress, *, probe: Sequence[str] | None = None) -> Survey:
    """Ask the cluster.

    Args:
        client: the door to it.
        progress: is told what happens.
        probe: further options of srun for a short job on a node of each partition with GPUs, such as ``--comment``; None: no jobs.

    Raises:
        SlurmUnreachableError: no Slurm answers.
    """
    progress.begin("slurm", "partitions, nodes, limits")
    partitions = client.ask("scontrol", "--oneliner", "show", "partition")
    if not partitions.ok:
        raise no_slurm(
            "Slurm does not show its partitions", "scontrol show partition", partitions.tail(3)
        )
    queues = overview.queues(partitions.stdout)
    nodes = overview.nodes(client.ask("scontrol", "--oneliner", "--details", "show", "node").stdout)
    config = configuration(client.ask("scontrol", "show", "config").stdout)
    qos, own = inventory.accounts(client)
    limits = {queue.name: overview.limits(queue, Site(name="-"), qos, own) for queue in queues}
    found = Survey(
        slurm=config.get("SLURM_VERSION", ""),
        cluster=config.get("ClusterName", ""),
        local=bool(client.access.prefix),
        plugins=config.get("JobSubmitPlugins", ""),
        queues=queues,
        nodes=nodes,
        mpi=client.mpi_types(),
        containers=tuple(name for name in _CONTAINERS if shell.which(name)),
        modules=_modules(),
        scratch=_scratch(os.environ),
        limits={name: one for name, one in limits.items() if one.source},
    )
    if probe is None:
        return found
    from msgspec.structs import replace

    with_gpus = [queue.name for queue in queues if any(node.gpus for node in found.members(queue))]
    return replace(found, met={name: _probe(client, progress, name, probe) for name in with_gpus})


def configuration(text: str) -> dict[str, str]:
    """The answer of ``scontrol show config``; what is not set is left out."""
    rows = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {
        name.strip(): value.strip()
        for name, _, value in rows
        if value.strip() not in ("", "(null)", "N/A")
    }


def _modules() -> tuple[str, ...] | None:
    """What ``module avail`` lists in a login shell; None: there is no such command."""
    try:
        said = shell.run(
            ("bash", "-lc", "type module >/dev/null 2>&1 && module -t avail 2>&1"),
            check=False,
            timeout=_PATIENCE,
        )
    except ToolkitError:
        return None
    return modules(said.stdout) if said.ok else None


def modules(text: str) -> tuple[str, ...]:
    """The answer of ``module -t avail``: names without their marks; headings end in a colon."""
    lines = map(str.strip, text.splitlines())
    names = (_unmarked(line) for line in lines if not line.endswith(":"))
    return tuple(
        sorted({name for name in names if name and " " not in name and not name.endswith("/")})
    )


def _unmarked(line: str) -> str:
    """Return a module's name without its mark: ``gcc/12.2`` of ``gcc/12.2(default)``."""
    return re.split(r"[(<]", line, maxsplit=1)[0].rstrip() if line.endswith((")", ">")) else line


def _scratch(environment: Mapping[str, str]) -> str:
    """``$SCRATCH`` where it is set, ``/scratch/$USER`` where it is there."""
    if environment.get("SCRATCH") and Path(environment["SCRATCH"]).is_dir():
        return "$SCRATCH"
    return "/scratch/$USER" if Path(os.path.expandvars("/scratch/$USER")).is_dir() else ""


def _probe(client: Client, progress: Progress, partition: str, options: Sequence[str]) -> Met:
    progress.begin("probe", f"a job of some seconds in {partition}")
    words = (
        "--nodes=1",
        "--ntasks=1",
        "--gres=gpu:1",
        "--time=2",
        f"--immediate={_PATIENCE}",
        f"--partition={partition}",
    )
    try:
        said = client.ask("srun", *words, *options, "bash", "-c", _PROBE)
    except ToolkitError as error:
        return Met(problem=error.cause)
    return met(said.stdout) if said.ok else Met(problem=" ".join(said.tail(2)) or "srun failed")


def met(text: str) -> Met:
    """What a probe said."""
    rows = [line.split(" ", 1) for line in text.splitlines() if " " in line]
    gpus = [value.partition(", ") for kind, value in rows if kind == "gpu"]
    interfaces = tuple(
        dict.fromkeys(value.split("@")[0] for kind, value in rows if kind == "interface")
    )
    return Met(
        host=next((value for kind, value in rows if kind == "host"), ""),
        gpus=tuple(name for _, _, name in gpus),
        driver=gpus[0][0] if gpus else "",
        interfaces=interfaces,
    )
