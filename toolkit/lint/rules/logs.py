"""Rules about the names and directories of logs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from toolkit.checks import Edit, Result, at, check
from toolkit.lint.script import LintCase, Option

_KNOWN = "%AabJjNnstux"  # %% is a percent sign
_PATTERN = re.compile(r"%(\d*)(.?)")
_LIKELY = {"i": "%j", "s": "%x"}


@check(
    "log-name",
    "patterns in names of logs are known",
    severity="warning",
    cause="the log gets another name than was meant",
    source="sbatch(1), filename pattern",
)
def check_log_name(case: LintCase) -> Iterator[Result]:
    """Find unknown patterns, and ``%s``, which is the step and not the job's name."""
    script = case.script
    for name in ("output", "error"):
        for directive, option in script.options(name):
            wrong = next(
                (
                    letter
                    for _, letter in _PATTERN.findall(option.value or "")
                    if letter not in _KNOWN or letter == "s"
                ),
                None,
            )
            if wrong:
                yield _finding(directive.line, directive.text, option, wrong)


def _finding(line: int, text: str, option: Option, letter: str) -> Result:
    what = (
        f"%{letter} is the step's number, of which a batch job has none"
        if letter == "s"
        else f"Slurm knows no pattern %{letter}"
    )
    likely = _LIKELY.get(letter)
    is_only = (
        text.count(f"%{letter}") == (option.value or "").count(f"%{letter}") and "%%" not in text
    )
    edits = [Edit(line=line, text=text.replace(f"%{letter}", likely))] if likely and is_only else []
    return at(
        line,
        f"{what} (in {option.value})",
        edits=edits,
        fix=f"likely meant: {likely}" if likely else "%x: job's name, %j: its number",
    )


@check(
    "log-directory",
    "the directory of the logs exists",
    severity="warning",
    cause="Slurm makes no directories: the job fails as soon as it starts, and has no log to say "
    "so",
    source="sbatch(1), --output",
)
def check_log_directory(case: LintCase) -> Iterator[Result]:
    """Find logs in a directory that is not beside the script."""
    script = case.script
    for name in ("output", "error"):
        for directive, option in script.options(name):
            parent = str(PurePosixPath(option.value or "").parent)
            if (
                parent not in (".", "/")
                and not any(sign in parent for sign in "%$")
                and not case.context.is_directory(parent)
            ):
                yield at(
                    directive.line,
                    f"the directory {parent} is not there",
                    fix=f"mkdir -p {parent} before sbatch",
                )
