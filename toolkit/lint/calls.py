"""Calls of programs within a script's commands. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from toolkit.lint.options import LONG, SHORT, SRUN
from toolkit.lint.script import Command, Script

_BEFORE = (
    r"(?:^|[\n|&;(`{]|\b(?:then|do|else|exec|time|nohup|if|while|until)\s|!\s)\s*"
    r"(?:[A-Za-z_]\w*=(?:\$\(|[^\s$(])*\s+)*"
)
_END = re.compile(r"[|;&)`]|(?<!\\)\n")


class Call(NamedTuple):
    """A program that is started, with everything up to the end of its arguments.

    Attributes:
        command: that it is part of.
        program: its name.
        line: where it begins.
        text, bare, plain: of the call, as ``Command`` has them; from the program's name on.
        background: it is started with ``&``.
    """

    command: Command
    program: str
    line: int
    text: str
    bare: str
    plain: str
    background: bool

    @property
    def words(self) -> tuple[str, ...]:
        """Its words without quotes, as far as they are known without a shell."""
        try:
            return tuple(shlex.split(self.text.replace("\\\n", " ")))
        except ValueError:
            return tuple(self.text.replace("\\\n", " ").split())


def calls(script: Script, *programs: str) -> Iterator[Call]:
    """Yield every call of these programs, in the order of the script."""
    pattern = re.compile(
        _BEFORE
        + r"(?P<program>(?:[\w./~$-]*/)?(?:"
        + "|".join(map(re.escape, programs))
        + r"))(?=[\s;&|)]|$)",
        re.MULTILINE,
    )
    for command in script.commands:
        for match in pattern.finditer(command.plain):
            yield call_at(command, match.start("program"), match["program"].rsplit("/", 1)[-1])


def call_at(command: Command, start: int, program: str) -> Call:
    """Return the call that begins at a place of a command."""
    end = start
    while True:
        match = _END.search(command.plain, end)
        end = match.start() if match else len(command.plain)
        # "2>&1" and "&>" are no end of a command.
        if (
            not match
            or match[0] != "&"
            or not (command.plain[end - 1 : end] == ">" or command.plain[end + 1 : end + 2] == ">")
        ):
            break
        end += 1
    background = command.plain[end : end + 1] == "&" and command.plain[end : end + 2] != "&&"
    cut = slice(start, end)
    return Call(
        command,
        program,
        command.line_of(start),
        command.text[cut],
        command.bare[cut],
        command.plain[cut],
        background,
    )


def slurm_options(call: Call) -> tuple[list[tuple[str, str, str | None]], list[str]]:
    """Return the options of a call of srun, sbatch or salloc, and the command that it starts.

    An option is its long name, its name as written, and its value.
    """
    options: list[tuple[str, str, str | None]] = []
    rest = list(call.words[1:])
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, sign, value = word[2:].partition("=")
            takes = LONG.get(name) == "value" or (
                name in ("mpi", "cpu-bind", "mem-bind", "distribution", "relative", "multi-prog")
            )
            if not sign and takes and rest:
                value, sign = rest.pop(0), "="
            options.append((name, f"--{name}", value if sign else None))
        else:
            name = SHORT.get(word[1], word[1]) if word[1] not in "lKruXI" else word[1]
            takes = LONG.get(name) == "value" and not (call.program == "srun" and word[1] in "W")
            value = word[2:] or (rest.pop(0) if takes and rest else "")
            options.append((name, word[:2], value or None))
    return options, rest


def known_options(program: str) -> frozenset[str]:
    """Return the long options of srun, sbatch or salloc."""
    return (
        frozenset(LONG) | SRUN
        if program == "srun"
        else frozenset((*LONG, "no-shell", "bell", "no-bell", "kill-command", "immediate", "x11"))
    )
