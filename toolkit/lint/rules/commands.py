"""Rules about shell commands."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.checks import Result, at, check
from toolkit.lint.script import Script

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
    if not script.is_batch or script.has(_EXPORT_F):
        return
    for command in script.commands:
        exported = _EXPORTED.match(command.bare)
        if exported:
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
    _early_expansion,
    _background,
    _secret,
)
