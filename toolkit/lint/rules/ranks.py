"""Rules about nodes, ranks and their GPUs, and how ranks meet."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.checks import Result, at, check
from toolkit.lint.script import Script, is_conditional

_ONE_TASK = re.compile(r"\s(?:-n\s?|--ntasks[= ])1(?!\S)")
_BY_RANK = re.compile(
    r"\bCUDA_VISIBLE_DEVICES=[\"']?\$\{?(LOCAL_RANK|SLURM_LOCALID|RANK|SLURM_PROCID)\b"
)


@check(
    "gpu-binding",
    "ranks see all GPUs of their node",
    severity="warning",
    cause="each rank sees one GPU only, so NCCL cannot reach its peers directly, and a rank that "
    "picks by its local rank finds no such device",
    source="torchx; a guide on Slurm and PyTorch: unhandled system error",
    fix="--gres=gpu:N or --gpus-per-node=N; let the rank choose by LOCAL_RANK",
)
def _gpu_binding(script: Script) -> Iterator[Result]:
    single = script.value("ntasks") == "1" or script.value("ntasks-per-node") == "1"
    for directive, option in () if single else script.options("gpus-per-task"):
        yield at(directive.line, f"{option.written} gives every task GPUs of its own")
    for call in script.calls("srun"):
        if "--gpus-per-task" in call.plain and not (single or _ONE_TASK.search(call.plain)):
            yield at(call.line, "--gpus-per-task gives every task GPUs of its own")
    for line, match, _ in script.find(_BY_RANK):
        yield at(line, f"CUDA_VISIBLE_DEVICES is set from ${match[1]}")


_FORMS = (
    (  # A hostlist of the script's own names is right; of Slurm's list, it is the list again.
        re.compile(
            r"\bscontrol\s+show\s+(?:nodelist|nodes?|hostlist(?=\s+[\"']?\$\{?SLURM_))\b"
            r"(?=\s+[\"']?\$)"
        ),
        "this does not list the names of hosts",
        "scontrol show hostnames",
    ),
    (
        re.compile(
            r"--(?:world[_-]size|nproc[_-]per[_-]node|nnodes)[= ][\"']?\$\{?SLURM_TASKS_PER_NODE\b"
        ),
        "$SLURM_TASKS_PER_NODE is a text such as 4(x2)",
        "$SLURM_NTASKS, or $SLURM_NTASKS_PER_NODE",
    ),
    (
        re.compile(r"\bhostname\s+(?:--ip-address|-i|-I|--all-ip-addresses)\b"),
        "a host can have several addresses, and this prints all of them",
        'the name itself: scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1',
    ),
    (
        re.compile(r"\s-H[ =]?[\"']?\$\{?SLURM_(?:JOB_)?NODELIST\b"),
        "$SLURM_JOB_NODELIST is a short form such as gpu[12-13]",
        "scontrol show hostnames, and :slots after each",
    ),
)


@check(
    "slurm-variable",
    "Slurm's variables are used as what they are",
    cause="the program gets a text where it wants a number or a host's name",
    source="sbatch(1), output environment variables; scontrol(1)",
)
def _slurm_variable(script: Script) -> Iterator[Result]:
    for pattern, message, fix in _FORMS:
        for line, _, _ in script.find(pattern, "bare"):
            yield at(line, message, fix=fix)


_RANKS_OPTION = re.compile(r"\s(?:-np|-n|--np|--num-proc)[ =](\d+)\b")


@check(
    "rank-count",
    "launchers start as many ranks as Slurm",
    severity="warning",
    cause="nodes or GPUs that were asked for stay idle, or the launcher finds too few slots",
    source="a published guide asks for 4 tasks on 2 nodes and starts 2",
    fix="leave it to Slurm, or use $SLURM_NTASKS",
)
def _rank_count(script: Script) -> Iterator[Result]:
    tasks = script.tasks
    for call in script.calls("horovodrun", "mpirun", "mpiexec") if tasks else ():
        match = _RANKS_OPTION.search(call.plain)
        if match and int(match[1]) != tasks:
            yield at(
                call.line, f"{call.program} starts {match[1]} ranks, the job has {tasks} tasks"
            )


_LAUNCHER = re.compile(r"\btorchrun\b|\btorch\.distributed\.(?:run|launch)\b")
_NODES_OPTION = re.compile(r"--nnodes[= ]\s{0,8}[\"']?(\d{1,6})(?=[\s\"'\\]|$)")


@check(
    "node-count",
    "launchers start on as many nodes as Slurm",
    cause="torchrun waits for nodes that never come, or each node trains alone",
    source="pytorch.org: torchrun --nnodes",
    fix="--nnodes=$SLURM_NNODES",
)
def _node_count(script: Script) -> Iterator[Result]:
    least, most = script.nodes or (0, 0)
    for command in script.commands if most else ():
        is_several = _LAUNCHER.search(command.text) and "--standalone" not in command.text
        # The first one: what follows the program is its own.
        match = _NODES_OPTION.search(command.text) if is_several else None
        if match and not least <= int(match[1]) <= most:
            yield at(
                command.line_of(match.start()),
                f"torchrun gets --nnodes={match[1]}, and the job has --nodes="
                f"{script.value('nodes')}",
            )


# Names of functions and scripts, too: run_torchrun.
_AGAIN = re.compile(r"\$0|\$\{0\}|BASH_SOURCE|torchrun|torch\.distributed\.(?:run|launch)")


@check(
    "lone-launcher",
    "launchers start on every node",
    cause="the batch script runs on the first node only: the other nodes stay idle, and the "
    "launcher waits for them or trains alone",
    source="sbatch(1); pytorch.org: torchrun is to be started once on each node",
    fix='srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1 torchrun ...',
)
def _lone_launcher(script: Script) -> Iterator[Result]:
    # It is no fault if srun starts the script itself.
    nodes, _ = script.nodes or (1, 1)
    if nodes < 2 or any(_AGAIN.search(call.text) for call in script.calls("srun")):
        return
    for command in script.commands:
        for call in command.calls("torchrun", "python", "python3"):
            words, number = call.words, call.line - command.line
            before = command.plain.split("\n")[number - 1] if number else ""
            is_module = words[1:2] == ("-m",) and _LAUNCHER.fullmatch("".join(words[2:3]))
            # After a backslash another program starts this one.
            is_continued = before.rstrip(" \t").endswith("\\") or is_conditional(command)
            if (is_module or call.program == "torchrun") and not is_continued:
                yield at(call.line, f"{call.program} starts on the first of {nodes} nodes only")


_HERE = r"(?:localhost|127\.\d{1,3}\.\d{1,3}\.\d{1,3}|\[?::1\]?|0\.0\.0\.0)(?=[:\s\"'/\\;&|)]|$)"
_MEETING = re.compile(
    r"(?:\bMASTER_ADDR=|--(?:master[_-]addr|rdzv[_-]endpoint|dist-url|init-method)[= ])"
    rf"[\"']?(?:tcp://)?(?P<place>{_HERE})"
)
_CHOSEN = re.compile(r"\bMASTER_ADDR=[\"']?\$[({]")


@check(
    "local-rendezvous",
    "ranks do not meet at localhost",
    cause="each node looks for the others on itself: the job hangs until its time is over",
    source="pytorch.org: the rendezvous endpoint is a host that all nodes reach",
    fix='MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
)
def _local_rendezvous(script: Script) -> Iterator[Result]:
    # It is no fault if it is only for the case of one node.
    nodes, _ = script.nodes or (1, 1)
    if nodes < 2 or any(script.find(_CHOSEN)):
        return
    for line, match, command in script.find(_MEETING, group="place"):
        if "--standalone" not in command.text and not is_conditional(command):
            yield at(line, f"ranks of several nodes are to meet at {match['place']}")


_SIZE = re.compile(
    r"(?:\bWORLD_SIZE=|--world[_-]size[= ])[\"']?(?P<size>\d{1,7})(?=[\s\"';&|)\\]|$)"
)
_OWN = re.compile(rf"{_LAUNCHER.pattern}|\bdeepspeed\b|\baccelerate\b")


@check(
    "world-size",
    "WORLD_SIZE is the number of ranks",
    cause="ranks wait for others that never come, or some are left out",
    source="pytorch.org: WORLD_SIZE is the number of all ranks",
    fix="WORLD_SIZE=$SLURM_NTASKS",
)
def _world_size(script: Script) -> Iterator[Result]:
    # With one task on each node, the script may start ranks by itself.
    tasks = script.tasks
    if tasks is None or script.number("ntasks-per-node") == 1 or any(script.find(_OWN)):
        return
    for line, match, _ in script.find(_SIZE, group="size"):
        if int(match["size"]) != tasks:
            yield at(line, f"WORLD_SIZE is {match['size']}, and the job has {tasks} tasks")


# Among the options before the program; a value of an option may follow it.
_CPUS = re.compile(
    r"\S+(?:\s+[-$\"'](?:\"[^\"]*\"|[^\s\"])*(?:\s+[^-$\"'\s]\S*)?)*?"
    r"\s+(?:--cpus-per-task|--overlap|-c[= ]?\"?(?:\d|\$\{?\w*CPU))"
)


@check(
    "step-cpus",
    "steps get the job's CPUs",
    severity="warning",
    cause="from Slurm 22.05 to 23.02 a step does not inherit --cpus-per-task: each task has one "
    "CPU",
    source="Slurm's CHANGELOG, slurm-22.05.md and slurm-23.11.md",
    fix='srun --cpus-per-task="$SLURM_CPUS_PER_TASK"',
)
def _step_cpus(script: Script) -> Iterator[Result]:
    asked = script.value("cpus-per-task") or "1"
    if asked == "1" or any("SRUN_CPUS_PER_TASK" in command.text for command in script.commands):
        return
    for call in script.calls("srun"):
        if not _CPUS.match(call.bare.replace("\\\n", "  ")):
            yield at(call.line, f"this step gets 1 CPU for each task, not {asked}")


_PORT = re.compile(
    r"(?:\b(?:MASTER_)?PORT=|--(?:master[_-]port|port|dashboard-port|rdzv[_-]port)[= ]|"
    r"--(?:rdzv[_-]endpoint|dist-url|init-method|address)[= ]\S{0,200}?:|tcp://[^\s\"']{0,200}?:)"
    r"\"?(?P<port>\d{4,5})\b"
)


@check(
    "fixed-port",
    "ports differ between jobs",
    severity="warning",
    cause="two jobs on one node, or a job and the one before it, meet at the same port: address "
    "already in use",
    source="pytorch#116974; ray#59551",
    fix="MASTER_PORT=$((61000 + SLURM_JOB_ID % 4536))",
)
def _fixed_port(script: Script) -> Iterator[Result]:
    for line, match, _ in script.find(_PORT, "bare", "port"):
        yield at(line, f"port {match['port']} is the same for every job")


RULES = (
    _gpu_binding,
    _slurm_variable,
    _rank_count,
    _node_count,
    _lone_launcher,
    _local_rendezvous,
    _world_size,
    _step_cpus,
    _fixed_port,
)
