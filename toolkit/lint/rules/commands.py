"""Rules about shell commands."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.checks import Result, at, check
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
            offset = call.text.count("\n", 0, match.start())
            yield at(
                call.line + offset,
                f"${match[1]} is replaced before {call.program} starts the tasks",
                fix=f"{call.program} ... bash -c '... ${match[1]} ...'",
            )
    # A script that srun starts on every task may do so, and a function that is exported to tasks.
    if not script.is_batch:
        return
    has_functions = script.has(_EXPORT_F)
    for command in script.commands:
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
    if script.is_batch and script.has(_BACKGROUND, "plain"):
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


RULES = (
    _continuation,
    _assignment,
    _early_expansion,
    _background,
    _ssh,
    _kill_by_name,
    _secret,
)
