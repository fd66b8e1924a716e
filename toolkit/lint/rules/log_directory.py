"""Directories of logs that are not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "log-directory",
    "warning",
    "Slurm makes no directories: the job fails as soon as it starts, and has no log to say so",
    "sbatch(1), --output",
)


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Logs in a directory that is not beside the script."""
    for name in ("output", "error"):
        for directive, option in script.options(name):
            parent = str(PurePosixPath(option.value or "").parent)
            if (
                parent not in (".", "/")
                and not any(sign in parent for sign in "%$")
                and not context.is_directory(parent)
            ):
                yield RULE.at(
                    directive.line,
                    f"the directory {parent} is not there",
                    advice=f"mkdir -p {parent} before sbatch",
                )
