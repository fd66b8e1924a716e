"""Launchers of torch.distributed: torchrun's agents, tasks of Slurm, and scripts that fork."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toolkit.errors import LauncherMismatchError, ToolkitError, UsageError
from toolkit.launchers.base import Launcher, default, require, sockets
from toolkit.launchers.trainers import (
    AGENT_ENVIRONMENT,
    TRAINERS,
    lightning_findings,
    trainer_environment,
)
from toolkit.model.case import Case
from toolkit.model.plan import Launch
from toolkit.units import compare

_RESTARTS = 3  # default of an elastic run
_FRAMEWORK = "torch.distributed"


def _check_torchrun(case: Case) -> Iterator[ToolkitError]:
    """Require torch, and in an environment of the host the program torchrun.

    That is not there before torch 1.10.
    """
    yield from require("torch", case)
    yield from lightning_findings(case)
    if case.environment is not None and not case.environment.torchrun:
        yield LauncherMismatchError(
            f"there is no program torchrun in {case.environment.name}",
            place="--launcher",
            next_step="--launcher srun does without it",
        )


def _torchrun(case: Case) -> Launch:
    """Start one agent on each node, with the CPUs of all its ranks.

    The agents meet at the first node. Their arguments that depend on the job (addresses, port) are
    in the template. With a range of nodes the run is elastic, which is a template of its own: it
    goes on with the nodes that are left when one is lost. A rank's exit code is lost on the way:
    torchrun itself always exits with 1 and reports the code in its summary.
    """
    job, (least, most) = case.job, case.job.node_range
    own = _fill(case, _openmmlab(case, "pytorch"))
    is_elastic, is_unequal = least != most, bool(job.gpus_by_node)
    usual = _RESTARTS if is_elastic else 0
    restarts = usual if job.max_restarts is None else job.max_restarts
    script = (case.target.script,) if case.target.is_python else ("--no-python", case.target.script)
    if job.python_module:
        script = ("-m", job.python_module)
    return default(
        case,
        {
            **AGENT_ENVIRONMENT,
            # Agents that start ranks again hang where these share the agents' own store.
            **({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if restarts else {}),
            **trainer_environment(case),
            **sockets(case, "GLOO", "NCCL"),
        },
        template="torchrun-elastic" if is_elastic else None,
        options=(
            *(() if is_elastic else (f"--nnodes={most}",)),
            *(() if is_unequal else (f"--nproc-per-node={case.ranks_per_node}",)),
            *((f"--max-restarts={restarts}",) if restarts else ()),
            "--tee=3",
        ),
        directives=(("no-kill", ""), ("requeue", "")) if is_elastic else (),
        program=(*script, *own, *job.arguments),
        task_is_rank=False,
        labels_lines=True,
        **({"cpus_per_task": None} if is_unequal else {}),
    )


TORCHRUN = Launcher(
    "torchrun",
    "one torchrun agent per node starts the node's ranks; for torch.distributed",
    launch=_torchrun,
    check=_check_torchrun,
    framework=_FRAMEWORK,
    modules=(_FRAMEWORK, *TRAINERS),
    is_elastic=True,
    is_unequal=True,
    is_per_node=True,
    options=("max_restarts",),
    starters=("torchrun",),
    rank_variables=("RANK",),
)


# Arguments that a launcher fills in where the script defines them and the user has not: the names
# that scripts give an option, and its value. What a task learns when it starts (its number, where
# the others are) is a variable, which the job's script expands; None is for a switch.
Arguments = dict[tuple[str, ...], str | None]

_INIT: Arguments = {("dist-url", "init-method", "dist-init"): "$INIT_METHOD"}
_ADDRESS: Arguments = {
    ("master-addr", "master-ip"): "$MASTER_ADDR",
    ("master-port",): "$MASTER_PORT",
}
_RANKS: Arguments = {
    ("rank",): "$SLURM_PROCID",
    ("local-rank",): "$SLURM_LOCALID",
    ("world-size",): "$SLURM_STEP_NUM_TASKS",
}


def _backend(case: Case) -> Arguments:
    """Return the argument for Gloo in a job without GPUs: the default of most scripts is NCCL."""
    return {} if case.job.most_gpus else {("dist-backend", "backend"): "gloo"}


def _openmmlab(case: Case, name: str) -> Arguments:
    """Return the argument that tells scripts of OpenMMLab what starts their ranks.

    Without it each of them trains alone.
    """
    return {("launcher",): name} if case.source.imports_any("mmengine", "mmcv") else {}


def _filled(case: Case, arguments: Arguments) -> dict[str, Any]:
    """Return the words of the program: the script, what is filled in, the user's own arguments."""
    filled, first = _fill(case, arguments), len(case.command)
    return {
        "program": (*case.command, *filled, *case.job.arguments),
        "filled": tuple(range(first, first + len(filled))),
    }


def _fill(case: Case, arguments: Arguments) -> list[str]:
    """Return the words of the arguments that are filled in."""
    words, given = [], {word.partition("=")[0] for word in case.job.arguments}
    for names, value in arguments.items():
        option = case.source.option(*names)
        takes_value = case.source.options.get(option)
        if not option or takes_value != (value is not None) or option in given:
            continue
        words += [option] if value is None else [option, value]
    return words


def _check_srun(case: Case) -> Iterator[ToolkitError]:
    """Require torch in the image, and a path that torch can read out of a URL."""
    yield from require("torch", case)
    yield from lightning_findings(case)
    wrong = next((sign for sign in "#?" if sign in case.run), None)
    if case.job.init == "file" and wrong is not None:
        yield UsageError(
            f"torch.distributed cannot read a file:// address with {wrong!r} in it: {case.run}",
            place="--init",
            next_step="--init env, or run from another directory",
        )


def _srun(case: Case) -> Launch:
    """Start one task for each rank, for which the script sets the variables of torch.distributed.

    RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and NODE_RANK are the step's numbers; a variable
    that is already set stays. ``--init`` decides how the ranks meet: ``env`` gives MASTER_ADDR and
    MASTER_PORT, ``tcp`` and ``file`` do not. INIT_METHOD has the address in all three.
    """
    init = case.job.init or "env"
    meeting = _INIT | _ADDRESS if init == "env" else _INIT
    return default(
        case,
        {**trainer_environment(case), **sockets(case, "GLOO", "NCCL")},
        init=init,
        **_filled(case, meeting | _RANKS | _backend(case) | _openmmlab(case, "slurm")),
    )


SRUN = Launcher(
    "srun",
    "Slurm starts every rank and tells it who it is; for torch.distributed without torchrun",
    launch=_srun,
    check=_check_srun,
    framework=_FRAMEWORK,
    modules=(_FRAMEWORK, *TRAINERS),
    options=("init",),
    rank_variables=("RANK", "SLURM_PROCID"),
)

_NODES = ("nodes", "nnodes", "num-nodes", "num-machines")
_NODE_RANK = ("rank", "node-rank", "machine-rank", "nr")
_RANKS_PER_NODE = ("nprocs", "nproc-per-node", "num-gpus", "gpus-per-node", "ngpus-per-node")
_SWITCH = ("multiprocessing-distributed",)


def _spawn(case: Case) -> Launch:
    """Start the script once on each node, with the CPUs of all the ranks that it forks.

    RANK and WORLD_SIZE count nodes, as PyTorch's ImageNet example has it; NPROC_PER_NODE is the
    number of ranks to fork. Other scripts read NODE_RANK, NNODES, MASTER_ADDR, MASTER_PORT or
    INIT_METHOD.
    """
    node: Arguments = {
        _NODES: "$SLURM_STEP_NUM_NODES",
        _NODE_RANK: "$SLURM_NODEID",
        _RANKS_PER_NODE: str(case.ranks_per_node),
    }
    return default(
        case,
        sockets(case, "GLOO", "NCCL"),
        task_is_rank=False,
        init="tcp",
        **_filled(case, {_SWITCH: None} | _INIT | _ADDRESS | _world(case) | node | _backend(case)),
    )


def _world(case: Case) -> Arguments:
    """Return the argument for the size of the world.

    Scripts that are given their node's number multiply the world by their ranks; the others run on
    one node only.
    """
    if case.source.option(*_NODE_RANK) or case.source.option(*_SWITCH):
        return {("world-size",): "$SLURM_STEP_NUM_NODES"}
    return {("world-size",): str(case.ranks_per_node)} if case.nodes == 1 else {}


SPAWN = Launcher(
    "spawn",
    "Slurm starts the script once on each node, and the script forks its ranks (mp.spawn)",
    launch=_spawn,
    check=lambda case: require("torch", case),
    framework=_FRAMEWORK,
    is_per_node=True,
)

RECORDS = "nccl_trace_rank_"  # the number of the rank follows; below the directory of reports
_ENTRIES = "2000"  # the default of newer versions
_FIRST, _RENAMED = "2.5", "2.9"  # torch warns of the older names since it has others


def flight_recorder(case: Case) -> dict[str, str]:
    """Return the settings of torch's flight recorder for ranks with GPUs, which cost nothing.

    It keeps NCCL's last collectives of each rank, and writes them down at a timeout. Source:
    docs.pytorch.org, torch_nccl_environment_variables, and getCvarString of c10d.
    """
    version = case.manifest.frameworks.get("torch", "") if case.manifest else ""
    if not case.job.most_gpus or (version and compare(version, _FIRST) < 0):
        return {}
    is_renamed = version and compare(version, _RENAMED) >= 0
    size = "TORCH_FR_BUFFER_SIZE" if is_renamed else "TORCH_NCCL_TRACE_BUFFER_SIZE"
    file = "TORCH_FR_DUMP_TEMP_FILE" if is_renamed else "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
    return {
        size: _ENTRIES,
        file: f"{case.run}/report/{RECORDS}",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
