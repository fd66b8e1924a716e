"""Rules about shell commands: quoting, processes, secrets, containers and conda environments."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.checks import Edit, Result, at, check
from toolkit.lint.script import Script

_OPTION_FIRST = re.compile(r"\s*(--?[A-Za-z][\w-]*)(?:[ =]|$)")


@check(
    "continuation",
    "commands over several lines are joined",
    cause="the command ended on the line before; this is run as a command of its own",
    source="a published guide's script of submitit",
    fix="end the line before with a backslash, and nothing after it",
)
def _continuation(script: Script) -> Iterator[Result]:
    for command in script.commands:
        if match := _OPTION_FIRST.match(command.plain):
            yield at(command.line, f"this line begins with an option: {match[1]}")


# MASTER PORT=1, name = value, PORT= 1, PATH=/home/$USER /bin:$PATH
_BLANKS = re.compile(
    r"\s*(?:(?:export\s+)?[A-Z]+(?: [A-Z]+)+=|[A-Za-z_]\w* += *\S|"
    r"(?:export\s+)?[A-Z_][A-Z0-9_]*= +[^\s\"'#]+$|"
    r"export\s+(?P<name>\w*PATH)=\S+ +/\S*:\$\{?(?P=name)\b)"
)


@check(
    "assignment",
    "no blanks in assignments",
    cause="the shell takes the first word for a command, or gives the variable only a part of its "
    "value",
    source="a published guide's scripts",
    fix="no blanks around =, in the name and in the value",
)
def _assignment(script: Script) -> Iterator[Result]:
    for command in script.commands:
        if _BLANKS.match(command.plain):
            name = command.text.partition("=")[0].strip()
            yield at(command.line, f"there is a blank in the assignment of {name}")


_OF_TASK = re.compile(
    r"\$\{?(SLURM_PROCID|SLURM_LOCALID|SLURM_NODEID|SLURMD_NODENAME|SLURM_TASK_PID|PMI_RANK|"
    r"PMIX_RANK|OMPI_COMM_WORLD_(?:LOCAL_)?RANK)\b"
)
_EXPORTED = re.compile(
    r"^\s*export\s+(?P<name>\w+)=\S*?\$\{?(?P<variable>SLURM_PROCID|SLURM_LOCALID|SLURM_NODEID)\b"
)

_EXPORT_F = re.compile(r"\bexport -f\b")


@check(
    "early-expansion",
    "the batch shell does not expand tasks' variables",
    cause="the batch shell replaces it once, with its own value: every rank gets that of rank 0",
    source="ml-engineering, slurm/users.md",
)
def _early_expansion(script: Script) -> Iterator[Result]:
    # They are found in the arguments of srun and mpirun unless single quotes protect them, and in
    # exports of a batch script.
    for call in script.calls("srun", "mpirun", "mpiexec"):
        match = _OF_TASK.search(call.bare)
        if match:
            yield at(
                call.line_of(match.start()),
                f"${match[1]} is replaced before {call.program} starts the tasks",
                fix=f"{call.program} ... bash -c '... ${match[1]} ...'",
            )
    # A script that srun starts on every task may do so, and a function that is exported to tasks.
    has_functions = any(script.find(_EXPORT_F))
    for command in script.commands if script.is_batch else ():
        exported = _EXPORTED.match(command.bare)
        if exported and not (has_functions and command.bare[0].isspace()):
            yield at(
                command.line,
                f"{exported['name']} is set once, in the batch shell, from ${exported['variable']}",
                fix="set it in what srun starts",
            )


_BACKGROUND = re.compile(r"(?<![&>])&(?![&>])(?=\s*(?:$|\n|;|\)|done|#|\w))")
_BARE = re.compile(r"(?:^|[\n;])[ \t]*(?P<wait>wait)[ \t]*(?:$|[\n;#])")


@check(
    "bare-wait",
    "background processes are waited for by their ids",
    cause="a bare wait always ends with 0, so the job succeeds whatever failed",
    source="NeMo-Run templates/slurm.sh.j2; bash(1)",
    fix='for pid in "${pids[@]}"; do wait "$pid" || status=$?; done; exit "${status:-0}"',
)
def _background(script: Script) -> Iterator[Result]:
    if script.is_batch and any(script.find(_BACKGROUND, "plain")):
        for line, _, _ in script.find(_BARE, "plain", "wait"):
            yield at(line, "wait without a process id ends with 0 whatever happened")


@check(
    "ssh",
    "no processes are started by ssh",
    severity="warning",
    cause="what it starts is not part of the job: it has none of its variables and limits, and "
    "may outlive it; many sites forbid it",
    source="a published guide's script for MultiWorkerMirroredStrategy",
    fix="srun --nodes=1 --ntasks=1 --nodelist=<node> ..., or one srun for all",
)
def _ssh(script: Script) -> Iterator[Result]:
    for call in script.calls("ssh") if script.is_batch else ():
        yield at(call.line, "processes on the nodes are started by ssh")


@check(
    "kill-by-name",
    "no processes are killed by name",
    severity="warning",
    cause="on a shared node it also ends your other jobs",
    source="scripts for vLLM and Ollama on a shared cluster",
    fix='pid=$! after the start, and kill "$pid" (or trap it)',
)
def _kill_by_name(script: Script) -> Iterator[Result]:
    for call in script.calls("pkill", "killall"):
        yield at(call.line, f"{call.program} ends processes by their name")


_ARGUMENT = re.compile(
    r"--(?:[\w.]*[._-])?(?:token|password|passwd|secret|api[_-]?key)[= ](?P<value>[\"']?[^\s\"']+)",
    re.IGNORECASE,
)
_VARIABLE = re.compile(
    r"\b(?P<name>\w*(?:TOKEN|PASSWORD|SECRET|API_?KEY))=[\"']?(?P<value>[^\s\"'$;]{6,})"
)
_KNOWN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|nvapi-[\w-]{20,}|ghp_[A-Za-z0-9]{20,}|glpat-[\w-]{16,})"
)


@check(
    "secret",
    "no secrets on command lines",
    cause="everybody on the machine sees it in the process list, and everybody who may read the "
    "script or its log",
    source="proc(5); a published guide starts Jupyter with the user's name as its token",
    fix="read it from a file of mode 0600, or set the variable before sbatch",
)
def _secret(script: Script) -> Iterator[Result]:
    # The value itself is not repeated.
    for line, match, _ in script.find(_ARGUMENT):
        yield at(line, f"{match[0].split('=')[0].split()[0]} is given on the command line")
    for line, match, _ in script.find(_VARIABLE):
        if not match["value"].startswith(("/", "~", "`")):
            yield at(line, f"the value of {match['name']} is written in the script")
    for line, _, command in script.find(_KNOWN):
        if not _VARIABLE.search(command.text):
            yield at(line, "a token is written in the script")


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
    if any(script.find(_GIVEN)):
        return
    for line, match, command in script.find(_STARTED, "plain", "program"):
        call = command.call_at(match)
        options = _IMAGE.split(call.text, maxsplit=1)[0]
        if _ACTION.search(call.plain) and "$" not in options:  # a variable may hold --nv
            yield at(line, f"the job has GPUs, and {call.program} is started without --nv")


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
    every = "\n".join(command.text for command in script.commands)
    if _EXPORTS_ALL.search(every) or _SOURCED.search(every):
        return
    for command in script.commands:
        match = _OF_RANKS.fullmatch(command.plain)
        if match and len(re.findall(rf"\b{match['name']}\b", every)) == 1:
            name, line = match["name"], script.lines[command.line - 1]
            new = line.replace(name, f"export {name}", 1)
            edits = [Edit(line=command.line, text=new)]
            yield at(command.line, f"{name} is set and not exported", edits=edits, fix=new.strip())


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
    first = next((command.line for _, _, command in script.find(_DEFINES)), len(script.lines) + 1)
    for call in script.calls("conda", "mamba", "micromamba"):
        if call.words[1:2] == ("activate",) and call.line < first:
            yield at(call.line, f"the shell of a batch job does not know {call.program} activate")
            return  # the others fail for the same reason


RULES = (
    _continuation,
    _assignment,
    _early_expansion,
    _background,
    _ssh,
    _kill_by_name,
    _secret,
    _no_nv,
    _export,
    _conda_activate,
)
