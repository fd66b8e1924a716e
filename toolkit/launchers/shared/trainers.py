"""Trainers above torch.distributed: which launcher their documentation wants, and their shapes.

Lightning, Accelerate, Transformers and DeepSpeed call torch.distributed where the script does not
show it. All take over what torchrun tells ranks. Under Slurm, Lightning's documentation wants a
task of Slurm for each device, whose numbers it reads by itself (``SLURMEnvironment``); torchrun
remains for what one task per device cannot do.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from toolkit.errors import LauncherMismatchError, ToolkitError
from toolkit.model.case import Case
from toolkit.model.source import Construction, Source

TRAINERS = (
    "accelerate",
    "deepspeed",
    "fairscale",
    "lightning",
    "pytorch_lightning",
    "torchtitan",
    "transformers",
)
_LIGHTNING = ("lightning", "pytorch_lightning", "lightning_fabric")
_LIGHTNING_CLASSES = ("Trainer", "Fabric", "LightningCLI")
_CLI = "--trainer."  # begins LightningCLI's options for its Trainer
# From variables that begin so, Lightning takes the arguments that a script leaves out. LightningCLI
# leaves none out. Fabric takes them before those of the script.
_PREFIXES = {"Trainer": "PL_TRAINER_", "Fabric": "LT_"}
_SHAPE = ("devices", "num_nodes")
# SLURMEnvironment takes jobs of these names for shells of a user, in which each rank is alone.
_INTERACTIVE_NAMES = ("bash", "interactive")


def uses_torch_distributed(source: Source) -> bool:
    """Return whether a script uses torch.distributed, by itself or through a trainer."""
    return source.imports_any("torch.distributed", *TRAINERS)


def srun_reason(case: Case) -> str:
    """Return why a script wants a task of Slurm for each device; empty if it does not."""
    least, most = case.job.node_range
    if least != most or case.job.gpus_by_node or case.job.max_restarts:
        return ""
    source = case.source
    if _uses_lightning(source):
        name = next(name for name in _LIGHTNING if source.imports_any(name))
        return f"imports {name}, which takes each task of Slurm for a rank"
    if source.imports_any("deepspeed") and source.option("local-rank"):
        return "imports deepspeed and has --local_rank, which torchrun does not fill in"
    return ""


def environment(case: Case) -> dict[str, str]:
    """Return variables that tell trainers of the job what the script does not tell them.

    Without GPUs, Accelerate (and the Trainer of Transformers, which uses it) needs one: it looks
    for GPUs, finds none, and takes no notice of the other ranks: each trains alone, and nothing
    says so. Lightning gets the job's devices and nodes, as far as they are left out.
    """
    has_accelerate = case.source.imports_any("accelerate", "transformers", "trl")
    is_on_cpus = not (case.job.most_gpus or case.job.gpus_by_node)
    variables = {"ACCELERATE_USE_CPU": "true"} if has_accelerate and is_on_cpus else {}
    return variables | _lightning_environment(case)


def _lightning_environment(case: Case) -> dict[str, str]:
    """Return the variables for the arguments that Trainer(...) or Fabric(...) leaves out."""
    values = {"num_nodes": case.nodes, "devices": case.ranks_per_node}
    if case.ranks == 1 or not _has_fixed_shape(case):
        return {}
    made = [each for each in case.source.constructions if _is_lightning(each)]
    variables = {
        f"{prefix}{name.upper()}": str(value)
        for kind, prefix in _PREFIXES.items()
        for name, value in values.items()
        if _is_left_out(name, [each for each in made if each.name.endswith(f".{kind}")])
    }
    has_fabric = any(each.name.endswith(".Fabric") for each in made)
    # Fabric without .launch() is for `fabric run`, which tells the script so; with .launch() it
    # refuses that.
    is_for_cli = has_fabric and not case.source.calls_any("launch")
    return {**variables, "LT_CLI_USED": "1"} if is_for_cli else variables


def _is_left_out(name: str, made: Sequence[Construction]) -> bool:
    """Return whether the variable of an argument is taken, and takes the place of no argument."""
    if any(each.name.endswith(".Fabric") for each in made):
        return all(each.is_whole and name not in each.keywords for each in made)
    return any(name not in each.keywords for each in made)


def _has_fixed_shape(case: Case) -> bool:
    least, most = case.job.node_range
    return least == most and not case.job.gpus_by_node


class _Shape(NamedTuple):
    """Devices and nodes of a Trainer; None if the script does not tell."""

    devices: int | None
    nodes: int | None


def lightning_findings(case: Case) -> list[ToolkitError]:
    """Return what of Lightning's settings contradicts the job, as far as the script tells.

    Some of Lightning's strategies report the contradiction when they start. Others do not: the
    ranks wait for each other for ever, or each trains alone.
    """
    if not _uses_lightning(case.source):
        return []
    findings: list[ToolkitError] = []
    if case.job.job_name in _INTERACTIVE_NAMES:
        cause = f"Lightning takes a job of the name {case.job.job_name} for a shell"
        findings.append(
            LauncherMismatchError(
                f"{cause}, in which every rank is alone",
                place="--job-name",
                next_step="another name, such as train",
            )
        )
    if _has_fixed_shape(case):
        findings += _shape_findings(case)
    return findings


def _shape_findings(case: Case) -> list[ToolkitError]:
    made = [each for each in case.source.constructions if _is_lightning(each)]
    if len(made) != 1:
        return []  # several, of which one trains, or one that another file configures
    (trainer,), ranks = made, case.ranks_per_node
    shape = _shape(trainer, case)
    name, findings = trainer.name.rpartition(".")[2], list[ToolkitError]()
    if shape.nodes not in (None, case.nodes):
        cause = f"{name}(num_nodes={shape.nodes}) in line {trainer.line} is for {shape.nodes} nodes"
        findings.append(
            LauncherMismatchError(
                f"{cause.replace(' 1 nodes', ' 1 node')}, and the job has {case.nodes}",
                place="--nodes",
                next_step=f"num_nodes={case.nodes} in the script, or --nodes {shape.nodes}",
            )
        )
    if shape.devices not in (None, ranks):
        cause = f"{name}(...) in line {trainer.line} has {shape.devices} devices on each node"
        findings.append(
            LauncherMismatchError(
                f"{cause.replace(' 1 devices', ' 1 device')}, and the job {ranks} ranks",
                place="--ntasks-per-node",
                next_step=f"devices={ranks} in the script, or --ntasks-per-node {shape.devices}",
            )
        )
    return findings


def _shape(trainer: Construction, case: Case) -> _Shape:
    """Return the shape of a Trainer, with Lightning's defaults for what is left out."""
    is_cli, given = trainer.name.endswith("CLI"), trainer.keywords
    is_whole = trainer.is_whole
    if is_cli:
        names = {word.partition("=")[0] for word in case.job.arguments}
        is_whole = "trainer_defaults" not in given and not names & {"-c", "--config"}
        given = _cli_settings(case.job.arguments)
    settings: dict[str, int | str | None] = (
        {"num_nodes": 1, "devices": "auto", **_variables(trainer, case), **given}
        if is_whole
        else given
    )
    devices, nodes = (_number(settings.get(name)) for name in ("devices", "num_nodes"))
    if devices in ("auto", -1):
        is_on_cpus = settings.get("accelerator") == "cpu" or not case.job.most_gpus
        devices = 1 if is_on_cpus else case.job.most_gpus
    return _Shape(
        devices if isinstance(devices, int) and devices > 0 else None,
        nodes if isinstance(nodes, int) else None,
    )


def _variables(trainer: Construction, case: Case) -> dict[str, int | str | None]:
    """Return what variables say of a Trainer's shape; None: the user's value is not known."""
    prefix = _PREFIXES.get(trainer.name.rpartition(".")[2])
    if prefix is None:
        return {}
    values: dict[str, str | None] = {**_lightning_environment(case), **case.job.env}
    values |= dict.fromkeys(case.job.pass_env)
    names = {f"{prefix}{name.upper()}": name for name in _SHAPE}
    return {name: values[variable] for variable, name in names.items() if variable in values}


def _cli_settings(arguments: Sequence[str]) -> dict[str, int | str | None]:
    """Return what the arguments of a script with LightningCLI set of its Trainer."""
    words = [part for word in arguments for part in word.split("=", 1)]
    return {
        name.removeprefix(_CLI): value for name, value in pairwise(words) if name.startswith(_CLI)
    }


def _number(value: int | str | None) -> int | str | None:
    is_number = isinstance(value, str) and value.removeprefix("-").isdecimal()
    return int(value) if value and is_number else value


def _uses_lightning(source: Source) -> bool:
    """Return whether Lightning starts the training: not if only its modules are used."""
    if not source.imports_any(*_LIGHTNING):
        return False
    trainers = [each for each in source.constructions if each.name.endswith("Trainer")]
    return not trainers or any(_is_lightning(each) for each in trainers)


def _is_lightning(made: Construction) -> bool:
    package, _, name = made.name.rpartition(".")
    return package.partition(".")[0] in _LIGHTNING and name in _LIGHTNING_CLASSES
