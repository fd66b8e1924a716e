"""Rules about directives that sbatch does not read as they are meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from toolkit.checks import Edit, Result, at, check
from toolkit.errors import nearest
from toolkit.lint.script import LONG, Directive, Script, directive

# Several "#" are how people switch a directive off, and mean it.
_HIDDEN = re.compile(r"(?P<before>\s+#SBATCH|\s*#\s+SBATCH|#sbatch|#Sbatch)\s*(?P<rest>-.*)")


@check(
    "hidden-directive",
    "directives begin with #SBATCH",
    cause="sbatch knows a directive only by #SBATCH at the very beginning of the line; this is a "
    "comment",
    source="tried with Slurm 22.05",
)
def _hidden_directive(script: Script) -> Iterator[Result]:
    for number, line in enumerate(script.lines[: script.first - 1], 1):
        if (match := _HIDDEN.match(line)) is None:
            continue
        corrected = f"#SBATCH {match['rest']}"
        meant = directive(corrected)
        # With a blank after # it may be one that was switched off, or a remark.
        is_clear = not re.match(r"\s*#\s", match["before"]) and not meant.problem
        is_clear &= not meant.strays and all(option.name in LONG for option in meant.options)
        edits = [Edit(line=number, text=corrected)] if is_clear else []
        yield at(number, f"{line.strip()!r} is not a directive", edits=edits, fix=corrected)


@check(
    "late-directive",
    "directives come before the first command",
    cause="sbatch stops reading directives at the first command; this one is a comment, without a "
    "message",
    source="sbatch(1); tried with Slurm 22.05",
    fix="move it up, before the first command",
)
def _late_directive(script: Script) -> Iterator[Result]:
    first = script.first
    for late in script.directives:
        if late.effective:
            continue
        # Of two values of one option only the author knows which is meant.
        is_clear = not any(
            other.name == option.name and other.value != option.value
            for option in late.options
            for each in script.directives
            if each.line != late.line
            for other in each.options
        )
        moved = Edit(line=first, text=f"{late.text}\n{script.lines[first - 1]}")
        edits = [moved, Edit(line=late.line, text=None)] if is_clear else []
        message = f"{late.text.strip()} comes after the first command (line {first})"
        yield at(late.line, message, edits=edits)


@check(
    "stray-word",
    "every word of a directive belongs to an option",
    cause="sbatch refuses the script (Invalid directive found in batch script), or takes the = for "
    "a part of the value",
    source="tried with Slurm 22.05",
    fix="no blanks beside =, and double quotes around a value of several words",
)
def _stray_word(script: Script) -> Iterator[Result]:
    for written in script.directives:
        words = list(written.strays)
        words += [
            option.value for option in written.options if option.value and option.value[0] == "="
        ]
        if written.problem:
            yield at(written.line, written.problem)
        elif words and words[0].isascii():  # `dash` reports the others
            yield at(written.line, f"{' '.join(words)!r} belongs to no option")


@check(
    "unknown-option",
    "Slurm knows the options",
    cause="Slurm refuses the whole command",
    source="sbatch --help of Slurm 22.05 and 24.11",
)
def _unknown_option(script: Script) -> Iterator[Result]:
    # Unambiguous beginnings of a name are allowed, as they are there.
    for written in script.directives:
        for option in written.options:
            name = option.name
            is_long = option.written.startswith("--") and name.isascii()
            begun = [known for known in LONG if known.startswith(name)]
            if is_long and name not in LONG and len(begun) != 1:
                yield _unknown(name, written)


def _unknown(name: str, written: Directive) -> Result:
    close, option, edits = nearest(name, LONG), f"--{name}", []
    if close == name.replace("_", "-") and written.text.count(option) == 1:
        edits = [Edit(line=written.line, text=written.text.replace(option, f"--{close}"))]
    advice = f"close: --{close}" if close else ""
    return at(written.line, f"sbatch has no option {option}", edits=edits, fix=advice)


_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))|`[^`]*`|\$\(")
_PATTERNS = {
    "USER": "%u",
    "SLURM_JOB_ID": "%j",
    "SLURM_JOBID": "%j",
    "SLURM_JOB_NAME": "%x",
    "SLURM_ARRAY_TASK_ID": "%a",
}
_PATHS = ("output", "error", "input")


@check(
    "variable-in-directive",
    "no variables in directives",
    cause="no shell reads a directive: the name is taken literally, with its dollar sign",
    source="sbatch(1); tried with Slurm 22.05",
)
def _variable_in_directive(script: Script) -> Iterator[Result]:
    # In names of log files, those that Slurm has a pattern for can be fixed.
    for written in script.directives:
        for option in written.options if written.effective else ():
            match = _VARIABLE.search(option.value or "")
            if not match:
                continue
            name, edits = match[1] or match[2] or "", []
            fix = "write the value, or give the option to sbatch itself"
            is_only = written.text.count(match[0]) == (option.value or "").count(match[0])
            if is_only and option.name in _PATHS and name in _PATTERNS:
                fix = f"Slurm's own pattern: {_PATTERNS[name]}"
                variable = rf"\$(?:\{{{name}\}}|{name}\b)"
                text = re.sub(variable, _PATTERNS[name], written.text)
                edits = [Edit(line=written.line, text=text)]
            message = f"{match[0]} is not replaced in {option.written}"
            yield at(written.line, message, edits=edits, fix=fix)


_PATTERN = re.compile(r"(?<!%)(?:%%)*%\d*(?P<letter>[^%AabJjNntux\d])")


@check(
    "log-name",
    "patterns in names of logs are known",
    severity="warning",
    cause="the log gets another name than was meant",
    source="sbatch(1), filename pattern",
    fix="%x: the job's name, %j: its number",
)
def _log_name(script: Script) -> Iterator[Result]:
    for written, option in script.options("output", "error"):
        if match := _PATTERN.search(option.value or ""):
            yield at(written.line, f"a batch job has no pattern %{match['letter']}")


@check(
    "log-directory",
    "the directory of the logs exists",
    severity="warning",
    cause="Slurm makes no directories: the job fails as soon as it starts, and has no log to say "
    "so",
    source="sbatch(1), --output",
)
def _log_directory(script: Script) -> Iterator[Result]:
    for written, option in script.options("output", "error"):
        parent = str(PurePosixPath(option.value or "").parent)
        is_known = parent not in (".", "/") and not set(parent) & set("%$")
        if is_known and not script.context.is_directory(parent):
            fix = f"mkdir -p {parent} before sbatch"
            yield at(written.line, f"the directory {parent} is not there", fix=fix)


RULES = (
    _hidden_directive,
    _late_directive,
    _stray_word,
    _unknown_option,
    _variable_in_directive,
    _log_name,
    _log_directory,
)
