"""Launchers of torch.distributed: torchrun's agents, tasks of Slurm, scripts that fork; trainers.

Lightning, Accelerate, Transformers and DeepSpeed call torch.distributed where the script does not
show it. All take over what torchrun tells ranks. Under Slurm, Lightning's documentation wants a
task of Slurm for each device, whose numbers it reads by itself (``SLURMEnvironment``); torchrun
remains for what one task per device cannot do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from typing import Any

from toolkit.errors import LauncherMismatchError, ToolkitError, UsageError
from toolkit.launchers.base import Launcher, default, require, sockets
from toolkit.model.case import Case, Construction, Source
from toolkit.model.run import Launch
from toolkit.units import compare, counted

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


def wants_task_per_device(case: Case) -> str:
    """Return why a script wants a task of Slurm for each device; empty if it does not."""
    least, most = case.job.node_range
    if least != most or case.job.gpus_by_node or case.job.max_restarts:
        return ""
    source = case.source
    if _uses_lightning(source):
        name = next(name for name in _LIGHTNING if source.imports_any(name))
        return f"imports {name}, which takes each task of Slurm for a rank"
    if source.imports_any("ignite.distributed"):
        return "imports ignite.distributed, which takes each task of Slurm for a rank"
    if source.imports_any("deepspeed") and source.option("local-rank"):
        return "imports deepspeed and has --local_rank, which torchrun does not fill in"
    return ""


def trainer_environment(case: Case) -> dict[str, str]:
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


def lightning_findings(case: Case) -> Iterator[ToolkitError]:
    """Yield what of Lightning's settings contradicts the job, as far as the script tells.

    Some of Lightning's strategies report the contradiction when they start. Others do not: the
    ranks wait for each other for ever, or each trains alone.
    """
    if not _uses_lightning(case.source):
        return
    if case.job.job_name in _INTERACTIVE_NAMES:
        yield LauncherMismatchError(
            f"Lightning takes a job of the name {case.job.job_name} for a shell, "
            "in which every rank is alone",
            place="--job-name",
            next_step="another name, such as train",
        )
    made = [each for each in case.source.constructions if _is_lightning(each)]
    # Of several, one trains; or another file configures the one.
    if not _has_fixed_shape(case) or len(made) != 1:
        return
    (trainer,), ranks = made, case.ranks_per_node
    (devices, nodes), name = _shape(trainer, case), trainer.name.rpartition(".")[2]
    if nodes is not None and nodes != case.nodes:
        yield LauncherMismatchError(
            f"{name}(num_nodes={nodes}) in line {trainer.line} is for "
            f"{counted(nodes, 'node')}, and the job has {case.nodes}",
            place="--nodes",
            next_step=f"{_setting(name, 'num_nodes', case.nodes)}, or --nodes {nodes}",
        )
    if devices is not None and devices != ranks:
        yield LauncherMismatchError(
            f"{name}(...) in line {trainer.line} has {counted(devices, 'device')} on each "
            f"node, and the job {ranks} ranks",
            place="--ntasks-per-node",
            next_step=f"{_setting(name, 'devices', ranks)}, or --ntasks-per-node {devices}",
        )


def _setting(name: str, key: str, value: int) -> str:
    return f"{_CLI}{key} {value}" if name.endswith("CLI") else f"{key}={value} in the script"


def _shape(trainer: Construction, case: Case) -> tuple[int | None, int | None]:
    """Return the devices and nodes of a Trainer, by default Lightning's; None: not known."""
    given, is_whole, kind = trainer.keywords, trainer.is_whole, trainer.name.rpartition(".")[2]
    if kind.endswith("CLI"):
        names = {word.partition("=")[0] for word in case.job.arguments}
        is_whole = "trainer_defaults" not in given and not names & {"-c", "--config"}
        # What the arguments of a script with LightningCLI set of its Trainer.
        words = [part for word in case.job.arguments for part in word.split("=", 1)]
        given = {
            name.removeprefix(_CLI): value
            for name, value in pairwise(words)
            if name.startswith(_CLI)
        }
    settings: dict[str, int | str | None] = {}
    if is_whole:
        variables = {**_lightning_environment(case), **case.job.env}
        settings = {"num_nodes": 1, "devices": "auto"}
        for name in _SHAPE if kind in _PREFIXES else ():
            variable = f"{_PREFIXES[kind]}{name.upper()}"
            known = {name: variables[variable]} if variable in variables else {}
            # Of a variable that is passed on, the value is not known.
            settings |= {name: None} if variable in case.job.pass_env else known
    settings |= given
    devices, nodes = (
        int(value) if isinstance(value, str) and value.removeprefix("-").isdecimal() else value
        for value in map(settings.get, _SHAPE)
    )
    if devices in ("auto", -1):
        is_on_cpus = settings.get("accelerator") == "cpu" or not case.job.most_gpus
        devices = 1 if is_on_cpus else case.job.most_gpus
    return (
        devices if isinstance(devices, int) and devices > 0 else None,
        nodes if isinstance(nodes, int) else None,
    )


def _uses_lightning(source: Source) -> bool:
    """Return whether Lightning starts the training: not if only its modules are used."""
    if not source.imports_any(*_LIGHTNING):
        return False
    trainers = [each for each in source.constructions if each.name.endswith("Trainer")]
    return not trainers or any(_is_lightning(each) for each in trainers)


def _is_lightning(made: Construction) -> bool:
    package, _, name = made.name.rpartition(".")
    return package.partition(".")[0] in _LIGHTNING and name in _LIGHTNING_CLASSES


_COMMAND = ("accelerate", "launch")
# What each node learns when it starts; the job's script expands it.
_MEETING = (
    *("--machine_rank", "$SLURM_NODEID"),
    *("--main_process_ip", "$MASTER_ADDR", "--main_process_port", "$MASTER_PORT"),
)
# Words by which the user says what is launched; without them several processes are plain data
# parallel.
_KINDS = ("--config_file", "--multi_gpu", "--use_fsdp", "--use_deepspeed", "--use_megatron_lm")
# What is set for agents, which are torchrun's.
AGENT_ENVIRONMENT = {
    # An agent that ends after the first one finds its store closed and prints a stack trace, in
    # healthy runs.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    # Each line of a rank starts with its number, as srun --label does it: "3| epoch 1".
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${rank}| ",
}


def launches(case: Case) -> str:
    """Return the claim to the command `accelerate launch`; empty: it is another one."""
    is_command = (case.target.name, *case.job.arguments[:1]) == _COMMAND
    return "launch starts ranks by itself" if is_command else ""


def _check_accelerate(case: Case) -> Iterator[ToolkitError]:
    """Require accelerate, and a command or a script that it can launch."""
    yield from require("accelerate", case)
    yield from lightning_findings(case)
    if case.target.is_program and not launches(case):
        yield LauncherMismatchError(
            f"the launcher accelerate starts Python scripts, not the program {case.target.script}",
            place="--launcher",
            next_step="--launcher none, or: -- accelerate launch SCRIPT",
        )


def _accelerate(case: Case) -> Launch:
    """Start one agent on each node, with its number and the address of the first.

    It serves commands with a configuration file of Accelerate, which torchrun cannot read:
    ``toolkit run --nodes 2 -- accelerate launch --config_file fsdp.yaml train.py``. The numbers of
    the job come first, and the user's own words after them. For DeepSpeed no other node is called:
    each has an agent of its own.
    """
    is_program, is_many = case.target.is_program, case.ranks > 1
    words = case.job.arguments[1:]
    if not is_program:
        module = case.job.python_module
        words = (*(("-m", module) if module else (case.target.script,)), *case.job.arguments)
    # The words before the script may say what is launched.
    before = takewhile(lambda word: not word.endswith(".py"), words)
    has_kind = is_program and any(word.partition("=")[0] in _KINDS for word in before)
    options = (
        *(("--multi_gpu",) if is_many and not has_kind else ()),
        f"--num_machines={case.nodes}",
        f"--num_processes={case.ranks}",
        "--rdzv_backend=static",
        "--deepspeed_multinode_launcher=standard",
        *(("--tee=3",) if is_many else ()),
    )
    begin = (*_COMMAND, *options, *_MEETING)
    return default(
        case,
        {
            # Without it, and without GPUs, each rank is alone.
            **({} if case.job.most_gpus else {"ACCELERATE_USE_CPU": "true"}),
            **trainer_environment(case),
            **AGENT_ENVIRONMENT,
            **sockets(case, "GLOO", "NCCL"),
        },
        template="spawn",
        program=(*begin, *words),
        filled=tuple(range(len(begin) - len(_MEETING), len(begin))),
        task_is_rank=False,
        labels_lines=is_many,
        init="tcp",
    )


ACCELERATE = Launcher(
    "accelerate",
    "accelerate launch on each node starts the node's ranks; for its configuration files",
    launch=_accelerate,
    check=_check_accelerate,
    framework="accelerate",
    is_per_node=True,
    takes_programs=True,
    commands=_COMMAND[:1],
    starters=("accelerate",),
    rank_variables=("RANK",),
)


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
    can=frozenset(("elastic", "unequal", "pty", "max_restarts")),
    is_per_node=True,
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
    filled, first = _fill(case, arguments), len(case.command)
    return {
        "program": (*case.command, *filled, *case.job.arguments),
        "filled": tuple(range(first, first + len(filled))),
    }


def _fill(case: Case, arguments: Arguments) -> list[str]:
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
    can=frozenset(("pty", "init")),
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
