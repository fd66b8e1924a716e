"""Rules about directives that sbatch does not read as they are meant."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.checks import Edit, Result, at, check
from toolkit.errors import nearest
from toolkit.lint.calls import calls, known_options, slurm_options
from toolkit.lint.options import LONG
from toolkit.lint.script import Directive, LintCase, Script, blank_equals, parse

# Several "#" are how people switch a directive off, and mean it.
_HIDDEN = re.compile(r"(?P<before>\s+#SBATCH|\s*#\s+SBATCH|#sbatch|#Sbatch)\s*(?P<rest>-.*)")


@check(
    "hidden-directive",
    "directives begin with #SBATCH",
    cause="sbatch knows a directive only by #SBATCH at the very beginning of the line; this is a "
    "comment",
    source="tried with Slurm 22.05",
)
def check_hidden_directive(case: LintCase) -> Iterator[Result]:
    """Find such lines before the first command."""
    script = case.script
    first = script.commands[0].line if script.commands else len(script.lines) + 1
    for number, line in enumerate(script.lines[: first - 1], 1):
        match = _HIDDEN.match(line)
        if match:
            corrected = f"#SBATCH {match['rest']}"
            edits = [Edit(line=number, text=corrected)] if _is_meant(match, corrected) else []
            yield at(number, f"{line.strip()!r} is not a directive", edits=edits, fix=corrected)


def _is_meant(match: re.Match[str], corrected: str) -> bool:
    """Return whether the line can only be a directive.

    With a blank after # it may be one that was switched off, or a remark.
    """
    (directive,) = parse(corrected).directives
    is_readable = (
        not directive.problem
        and not directive.strays
        and all(option.name in LONG for option in directive.options)
    )
    return is_readable and not re.match(r"\s*#\s", match["before"])


@check(
    "late-directive",
    "directives come before the first command",
    cause="sbatch stops reading directives at the first command; this one is a comment, without a "
    "message",
    source="sbatch(1); tried with Slurm 22.05",
    fix="move it up, before the first command",
)
def check_late_directive(case: LintCase) -> Iterator[Result]:
    """Find directives that sbatch does not read."""
    script = case.script
    late = [directive for directive in script.directives if not directive.effective]
    if not late:
        return
    first = script.commands[0].line
    for directive in late:
        moved = Edit(line=first, text=f"{directive.text}\n{script.lines[first - 1]}")
        edits = [moved, Edit(line=directive.line, text=None)]
        yield at(
            directive.line,
            f"{directive.text.strip()} comes after the first command (line {first})",
            edits=[] if _contradicts(script, directive) else edits,
        )


def _contradicts(script: Script, late: Directive) -> bool:
    """Return whether another directive gives one of its options another value.

    Only the author knows which is meant.
    """
    others = [
        option for each in script.directives if each.line != late.line for option in each.options
    ]
    return any(
        other.name == option.name and other.value != option.value
        for option in late.options
        for other in others
    )


@check(
    "blank-equals",
    "no blanks beside the = of an option",
    cause="sbatch takes the = itself for the value, or an empty value, and what follows for "
    "something else",
    source="getopt_long(3); tried with Slurm 22.05",
)
def check_blank_equals(case: LintCase) -> Iterator[Result]:
    """Find ``--job-name = train``; within quotes it is text."""
    script = case.script
    for directive in script.directives:
        if match := blank_equals(directive.text):
            text = directive.text
            fixed = f"{text[: match.end('name')]}={text[match.end() :]}"
            edits = [Edit(line=directive.line, text=fixed)] if _is_sound(directive, fixed) else []
            message = f"there is a blank beside the = of {match['name']}"
            yield at(directive.line, message, edits=edits, fix=fixed)


def _is_sound(directive: Directive, fixed: str) -> bool:
    """Return whether the corrected line has the same options as before, now with their values."""
    (after,) = parse(fixed).directives
    names = [option.name for option in directive.options]
    return not after.problem and [option.name for option in after.options] == names


_SPLIT = re.compile(r"#SBATCH\s+--\s+(?=[a-z])")
# Where the value ends is not known among quotes, straight or bent, and before a comment.
_UNCLEAR = re.compile(r"[\\\"'#\u2018\u2019\u201c-\u201e]")


@check(
    "stray-word",
    "every word of a directive belongs to an option",
    cause="sbatch refuses the script: Invalid directive found in batch script",
    source="tried with Slurm 22.05",
)
def check_stray_word(case: LintCase) -> Iterator[Result]:
    """Find blanks after ``--``, values of several words without quotes, and open quotes."""
    script = case.script
    for directive in script.directives:
        if blank_equals(directive.text):
            continue  # found by the rule for these
        if directive.problem:
            yield at(directive.line, directive.problem)
        elif (
            directive.strays and directive.strays[0].isascii()
        ):  # others are found by the rule of dashes
            yield _finding(directive)


def _finding(directive: Directive) -> Result:
    if _SPLIT.match(directive.text):
        corrected = _SPLIT.sub("#SBATCH --", directive.text)
        return at(
            directive.line,
            "there is a blank between -- and the option's name",
            edits=[Edit(line=directive.line, text=corrected)],
        )
    option = directive.options[-1] if directive.options else None
    stray = " ".join(directive.strays)
    if (
        option is not None
        and option.value
        and not option.value.startswith("=")
        and option.name in ("job-name", "comment")
    ):
        value = f"{option.value} {stray}"
        corrected = (
            f'#SBATCH {option.written}{"=" if option.written.startswith("--") else " "}"{value}"'
        )
        if len(directive.options) == 1 and not _UNCLEAR.search(directive.text, 1):
            return at(
                directive.line,
                f"{stray!r} is not part of the value",
                edits=[Edit(line=directive.line, text=corrected)],
                fix=corrected,
            )
    return at(
        directive.line,
        f"{stray!r} belongs to no option",
        fix="put a value of several words in double quotes",
    )


@check(
    "unknown-option",
    "Slurm knows the options",
    cause="Slurm refuses the whole command",
    source="sbatch --help and srun --help of Slurm 22.05 and 24.11",
)
def check_unknown_option(case: LintCase) -> Iterator[Result]:
    """Find unknown options in directives, and in calls of srun, sbatch and salloc.

    Unambiguous beginnings of a name are allowed, as they are there.
    """
    script = case.script
    for directive in script.directives:
        for option in directive.options:
            if option.written.startswith("--") and option.name.isascii():
                yield from _unknown("sbatch", option.name, directive.line, script)
    for call in calls(script, "srun", "sbatch", "salloc"):
        for name, written, _ in slurm_options(call)[0]:
            if written.startswith("--") and name.isascii():
                yield from _unknown(call.program, name, call.line, script)


def _unknown(program: str, name: str, line: int, script: Script) -> Iterator[Result]:
    known = known_options(program)
    begun = sorted({each.replace("_", "-") for each in known if name and each.startswith(name)})
    if name in known or not name or len(begun) == 1:
        return
    if begun:
        advice = f"one of --{', --'.join(begun)}"
        yield at(line, f"--{name} may be several options of {program}", fix=advice)
        return
    close = nearest(name, known)
    text = script.lines[line - 1]
    dashed = name.replace("_", "-")
    right = (
        close
        if close and (dashed in (close, f"n{close}") or dashed.removeprefix("num-") == close)
        else None
    )
    if dashed == "num-tasks-per-node":
        close = right = "ntasks-per-node"
    written = re.compile(rf"(?<![^\s])--{re.escape(name)}(?![\w-])")
    places = len(written.findall(text))  # more than one: the others may be the program's own
    edits = [Edit(line=line, text=written.sub(f"--{right}", text))] if right and places == 1 else []
    yield at(
        line,
        f"{program} has no option --{name}",
        edits=edits,
        fix=f"close: --{close}" if close else "",
    )


_TIME = r"(?:\d+-\d{1,2}(?::\d{1,2}){0,2}|\d+(?::\d{1,2}){0,2}|UNLIMITED|INFINITE)"
_NUMBER = r"\d+"
# option -> (what a value looks like, what to write)
_FORMS = {
    "time": (_TIME, "--time=2:00:00, or minutes, or days-hours"),
    "time-min": (_TIME, "--time-min=2:00:00"),
    "nodes": (r"\d+[kKmM]?(?:-\d+[kKmM]?)?(?:[,:]\S+)?", "--nodes=2, or --nodes=1-4"),
    "ntasks": (_NUMBER, "--ntasks=4"),
    "ntasks-per-node": (_NUMBER, "--ntasks-per-node=4"),
    "tasks-per-node": (_NUMBER, "--ntasks-per-node=4"),
    "cpus-per-task": (_NUMBER, "--cpus-per-task=8"),
    "mem": (r"\d+(?:[KMGT]B?)?", "--mem=16G"),
    "gres": (
        r"(?:[\w.]+(?:[:/][\w.-]+)*(?::\d+[KMGT]?)?(?:\([^)]*\))?,?)+|none",
        "--gres=gpu:4, or --gres=gpu:v100:4; Slurm takes gpu=4 since 23.11 only",
    ),
}


@check(
    "bad-value",
    "values have the form of their option",
    cause="sbatch refuses the script",
    source="tried with Slurm 22.05, 24.11 and 26.05",
)
def check_bad_value(case: LintCase) -> Iterator[Result]:
    """Find values of directives that do not have the form of their option."""
    script = case.script
    for name, (form, example) in _FORMS.items():
        for directive, option in script.options(name):
            if blank_equals(directive.text):
                continue  # found by the rule for these
            if option.value is None:
                yield at(directive.line, f"{option.written} needs a value", fix=example)
            elif not re.fullmatch(form, option.value, re.IGNORECASE) and option.value.isascii():
                yield at(
                    directive.line,
                    f"{option.value!r} is no value of {option.written}",
                    fix=example,
                )


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
def check_variable_in_directive(case: LintCase) -> Iterator[Result]:
    """Find variables in directives.

    In names of log files, those that Slurm has a pattern for can be fixed.
    """
    script = case.script
    for directive in script.directives:
        for option in directive.options if directive.effective else ():
            match = _VARIABLE.search(option.value or "")
            if not match:
                continue
            name = match[1] or match[2] or ""
            is_only = directive.text.count(match[0]) == (option.value or "").count(match[0])
            pattern = _PATTERNS.get(name) if option.name in _PATHS and is_only else None
            if pattern:
                corrected = re.sub(
                    r"\$(?:\{" + name + r"\}|" + name + r"\b)", pattern, directive.text
                )
                yield at(
                    directive.line,
                    f"{match[0]} is not replaced in {option.written}",
                    edits=[Edit(line=directive.line, text=corrected)],
                    fix=f"Slurm's own pattern: {pattern}",
                )
            else:
                yield at(
                    directive.line,
                    f"{match[0]} is not replaced in {option.written}",
                    fix="write the value, or give the option to sbatch itself",
                )
