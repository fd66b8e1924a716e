"""Slurm's variables taken for something else, and lists of hosts that nobody has expanded."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.lint.model import Context, Edit, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "slurm-variable",
    "error",
    "the program gets a text where it wants a number or a host's name",
    "sbatch(1), output environment variables; scontrol(1)",
)
_TASKS = re.compile(r"\$\{?SLURM_(?:NTASKS|TASKS)_PER_NODE\b")
_COUNT_OPTION = re.compile(
    r"--(?:world[_-]size|nproc[_-]per[_-]node|nnodes)[= ][\"']?\$\{?SLURM_TASKS_PER_NODE\b"
)
_SHOW = re.compile(r"\bscontrol\s+show\s+(nodelist|hostlist|nodes?)\b(?=\s+[\"']?\$)")
_ADDRESS = re.compile(r"\bhostname\s+(?:--ip-address|-i|-I|--all-ip-addresses)\b")
_HOSTS = re.compile(r"\s-H[ =]?[\"']?\$\{?SLURM_(?:JOB_)?NODELIST\b")


def check(script: Script, context: Context) -> Iterator[Finding]:
    """What is read from Slurm in a form that the reader does not expect."""
    del context
    for command in script.commands:
        for match in _COUNT_OPTION.finditer(command.bare):
            yield RULE.at(
                command.line_of(match.start()),
                "$SLURM_TASKS_PER_NODE is a text such as 4(x2)",
                advice="$SLURM_NTASKS, or $SLURM_NTASKS_PER_NODE",
            )
        for match in _SHOW.finditer(command.bare):
            line = command.line_of(match.start())
            mended = _SHOW.sub(
                "scontrol show hostnames", command.text.split("\n")[line - command.line]
            )
            yield RULE.at(
                line,
                f"scontrol show {match[1]} does not list the names of hosts",
                fix=[Edit(line=line, text=mended)],
                advice="scontrol show hostnames",
            )
        for match in _ADDRESS.finditer(command.bare):
            yield RULE.at(
                command.line_of(match.start()),
                "a host can have several addresses, and this prints all of them",
                advice='the name itself: scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1',
            )
        for match in _HOSTS.finditer(command.bare):
            yield RULE.at(
                command.line_of(match.start()),
                "$SLURM_JOB_NODELIST is a short form such as gpu[12-13]",
                advice="scontrol show hostnames, and :slots after each",
            )
