"""Collect the facts that a live cluster reports."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolkit import shell
from toolkit.errors import ToolkitError
from toolkit.model.overview import NodeProbe, Survey
from toolkit.model.site import Site
from toolkit.shell import Progress
from toolkit.slurm import inventory, overview
from toolkit.slurm.client import Client
from toolkit.slurm.failures import no_slurm

_PATIENCE = 30  # seconds that a probe waits for a node, and `module avail` for its answer
_CONTAINERS = ("apptainer", "singularity")
# Each line of output begins with its kind, since a node may lack one of the programs.
_PROBE = """\
echo "host $(hostname)"
nvidia-smi --query-gpu=driver_version,name --format=csv,noheader 2>/dev/null | sed 's/^/gpu /'
ip -o -4 addr show scope global 2>/dev/null | awk '{print "interface", $2}'
"""


def survey(client: Client, progress: Progress, *, probe: Sequence[str] | None = None) -> Survey:
    """Query the cluster.

    Args:
        client: of the cluster.
        progress: shows the steps.
        probe: further options of srun for a short job on a node of each partition with GPUs, such
            as ``--comment``; None: no jobs.

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
    facts = Survey(
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
        limits={name: known for name, known in limits.items() if known.source},
    )
    if probe is None:
        return facts
    from msgspec.structs import replace

    with_gpus = [queue.name for queue in queues if any(node.gpus for node in facts.members(queue))]
    return replace(
        facts, probes={name: _probe(client, progress, name, probe) for name in with_gpus}
    )


def configuration(text: str) -> dict[str, str]:
    """Parse the output of ``scontrol show config``, without the values that are not set."""
    rows = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {
        name.strip(): value.strip()
        for name, _, value in rows
        if value.strip() not in ("", "(null)", "N/A")
    }


def _modules() -> tuple[str, ...] | None:
    """Return the modules that a login shell lists; None if it has no command ``module``."""
    try:
        result = shell.run(
            ("bash", "-lc", "type module >/dev/null 2>&1 && module -t avail 2>&1"),
            check=False,
            timeout=_PATIENCE,
        )
    except ToolkitError:
        return None
    return modules(result.stdout) if result.ok else None


def modules(text: str) -> tuple[str, ...]:
    """Parse the output of ``module -t avail`` into names without their marks.

    Headings end in a colon.
    """
    lines = map(str.strip, text.splitlines())
    names = (_unmarked(line) for line in lines if not line.endswith(":"))
    return tuple(
        sorted({name for name in names if name and " " not in name and not name.endswith("/")})
    )


def _unmarked(line: str) -> str:
    """Return a module's name without its mark: ``gcc/12.2`` of ``gcc/12.2(default)``."""
    return re.split(r"[(<]", line, maxsplit=1)[0].rstrip() if line.endswith((")", ">")) else line


def _scratch(environment: Mapping[str, str]) -> str:
    """Return ``$SCRATCH`` if it is set, ``/scratch/$USER`` if that exists, else an empty text."""
    if environment.get("SCRATCH") and Path(environment["SCRATCH"]).is_dir():
        return "$SCRATCH"
    return "/scratch/$USER" if Path(os.path.expandvars("/scratch/$USER")).is_dir() else ""


def _probe(client: Client, progress: Progress, partition: str, options: Sequence[str]) -> NodeProbe:
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
        result = client.ask("srun", *words, *options, "bash", "-c", _PROBE)
    except ToolkitError as error:
        return NodeProbe(problem=error.cause)
    return (
        parse_probe(result.stdout)
        if result.ok
        else NodeProbe(problem=" ".join(result.tail(2)) or "srun failed")
    )


def parse_probe(text: str) -> NodeProbe:
    """Parse the output of a probe."""
    rows = [line.split(" ", 1) for line in text.splitlines() if " " in line]
    gpus = [value.partition(", ") for kind, value in rows if kind == "gpu"]
    interfaces = tuple(
        dict.fromkeys(value.split("@")[0] for kind, value in rows if kind == "interface")
    )
    return NodeProbe(
        host=next((value for kind, value in rows if kind == "host"), ""),
        gpus=tuple(name for _, _, name in gpus),
        driver=gpus[0][0] if gpus else "",
        interfaces=interfaces,
    )
