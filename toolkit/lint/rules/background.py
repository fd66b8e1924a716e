"""Jobs in the background that nobody waits for, or whose failure nobody sees."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "bare-wait",
    "error",
    "a bare wait always ends with 0, so the job succeeds whatever failed; without a wait the job ends at once and kills them",
    "NeMo-Run templates/slurm.sh.j2; bash(1)",
)
_BACKGROUND = re.compile(r"(?<![&>])&(?![&>])(?=\s*(?:$|\n|;|\)|done|#|\w))")
_BARE = re.compile(r"(?:^|[\n;])[ \t]*wait[ \t]*(?:$|[\n;#])")
_ANY = re.compile(r"(?:^|[\n;&|]|\bdo\b|\bthen\b)[ \t]*wait\b")


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Said where the wait is, or where the first process is left alone."""
    del context
    if not script.is_batch:
        return
    started = [
        (command, match)
        for command in script.commands
        for match in _BACKGROUND.finditer(command.plain)
    ]
    if not started:
        return
    bare = [
        (command, match) for command in script.commands for match in _BARE.finditer(command.plain)
    ]
    for command, match in bare:
        line = command.line_of(match.start() + len(match[0]) - len(match[0].lstrip()))
        yield RULE.at(
            line,
            "wait without a process id ends with 0 whatever happened",
            advice='for pid in "${pids[@]}"; do wait "$pid" || status=$?; done; exit "${status:-0}"',
        )
    if (
        not bare
        and not any(_ANY.search(command.plain) for command in script.commands)
        and not _goes_on(script)
    ):
        command, match = started[-1]
        yield RULE.at(
            command.line_of(match.start()),
            "nothing waits for what is started with &",
            advice='keep its id (pid=$!), and wait "$pid" at the end',
        )


def _goes_on(script: Script) -> bool:
    """Whether something runs in the foreground after the last background process: that keeps the job alive."""
    last = max(
        index for index, command in enumerate(script.commands) if _BACKGROUND.search(command.plain)
    )
    later = script.commands[last + 1 :]
    return any(
        re.match(r"\s*(?:srun|mpirun|python3?|torchrun|bash|sh|sleep|\./|/)", command.plain)
        for command in later
    )
