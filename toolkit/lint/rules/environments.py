"""Rules about GPUs, containers and conda environments."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.checks import Edit, Result, at, check
from toolkit.lint.script import Script, call_at

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
    single = script.value("ntasks") == "1" or (script.value("ntasks-per-node") == "1")
    for directive, option in script.options("gpus-per-task"):
        if not single:
            yield at(directive.line, f"{option.written} gives every task GPUs of its own")
    for call in script.calls("srun"):
        if "--gpus-per-task" in call.plain and not (single or _ONE_TASK.search(call.plain)):
            yield at(call.line, "--gpus-per-task gives every task GPUs of its own")
    for line, match, _ in script.find(_BY_RANK):
        yield at(line, f"CUDA_VISIBLE_DEVICES is set from ${match[1]}")


_STARTED = re.compile(
    r"(?<![\w./-])(?P<program>(?:[\w.~-]{0,64}/){0,16}(?:singularity|apptainer))(?=[ \t])"
)
_ACTION = re.compile(r"[ \t](?:exec|run|shell)[ \t]")
_GIVEN = re.compile(r"--nv\b|--rocm\b|--nvccli\b|(?:APPTAINER|SINGULARITY)_(?:NV|NVCCLI|ROCM)=")
_IMAGE = re.compile(r"(?<!\S)\S{1,400}\.(?:sif|simg|img)\b|\$\{?(?i:\w*(?:image|sif))\b")
_OPTIONS = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")


@check(
    "no-nv",
    "containers get the job's GPUs",
    severity="warning",
    cause="the container has no driver of the GPUs: torch.cuda.is_available() is False, and "
    "training goes on on the CPU",
    source="Apptainer User Guide, GPU Support",
    fix="apptainer exec --nv image.sif ... (for AMD: --rocm)",
)
def _no_nv(script: Script) -> Iterator[Result]:
    # It is no fault if the script names the option somewhere.
    gres, known = script.value("gres") or "", ("0", "none")
    has_gpus = "gpu" in gres and not re.search(r"gpu(?::[\w-]{1,64})?:0\b", gres)
    if not (has_gpus or any((script.value(name) or "0") not in known for name in _OPTIONS)):
        return
    for place in script.find(_STARTED, "plain", "program") if not script.has(_GIVEN) else ():
        call = call_at(place)
        options = _IMAGE.split(call.text, maxsplit=1)[0]
        if _ACTION.search(call.plain) and "$" not in options:  # a variable may hold --nv
            yield at(place[0], f"the job has GPUs, and {call.program} is started without --nv")


_OF_RANKS = re.compile(
    r"\s*(?P<name>MASTER_ADDR|MASTER_PORT|WORLD_SIZE|(?:NCCL|GLOO|TORCH|HOROVOD)_[A-Z_]{1,64})="
    r"(?:\$\((?:[^()]|\([^()]*\))*\)|[^\s;&|$]|\$(?!\())*\s*"
)
_EXPORTS_ALL = re.compile(r"\bset\s[^\n;]{0,80}?(?:-[a-z]{0,8}a|allexport)\b")


@check(
    "export",
    "variables of the ranks are exported",
    cause="it stays in the batch shell: the ranks do not see it",
    source="bash(1), Environment; sbatch(1), --export",
)
def _export(script: Script) -> Iterator[Result]:
    commands = script.commands
    every = "\n".join(command.text for command in commands)
    if _EXPORTS_ALL.search(every) or _SOURCED.search(every):
        return
    for command in commands:
        match = _OF_RANKS.fullmatch(command.plain)
        if match and len(re.findall(rf"\b{match['name']}\b", every)) == 1:
            line = script.lines[command.line - 1]
            name = match.start("name")
            new = f"{line[:name]}export {line[name:]}"
            edits = [Edit(line=command.line, text=new)]
            message = f"{match['name']} is set and not exported"
            yield at(command.line, message, edits=edits, fix=new.strip())


# What another file or a module does is not known.
_SOURCED = re.compile(r"(?:^|[\n;&|(])\s{0,80}(?:source|\.)\s{1,80}[^\s;&|)]")
_DEFINES = re.compile(
    rf"{_SOURCED.pattern}|\bmodule\s{{1,8}}(?:load|add)\b|\bml\s|"
    r"\b(?:conda|mamba|micromamba)\s{1,8}shell\b|\bshell\.bash\s{1,8}hook|\b__conda_setup\b"
)
_LOGIN = re.compile(r"#!.{0,200}\s-[a-z]{0,8}[li]")


@check(
    "conda-activate",
    "conda activate is defined",
    cause="a batch script is no login shell and does not read ~/.bashrc: the environment is not "
    "activated, and the system's Python runs",
    source="conda: Your shell has not been properly configured to use 'conda activate'",
    fix='before it: source "$(conda info --base)/etc/profile.d/conda.sh"',
)
def _conda_activate(script: Script) -> Iterator[Result]:
    if not script.is_batch or _LOGIN.match(script.lines[0]):
        return
    places = (command.line for _, _, command in script.find(_DEFINES))
    first = min(places, default=len(script.lines) + 1)
    for call in script.calls("conda", "mamba", "micromamba"):
        if call.words[1:2] == ("activate",) and call.line < first:
            yield at(call.line, f"the shell of a batch job does not know {call.program} activate")
            return  # the others fail for the same reason


RULES = (
    _gpu_binding,
    _no_nv,
    _export,
    _conda_activate,
)
