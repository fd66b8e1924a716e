"""Rules about the characters of a script, its syntax, and its directives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from toolkit.checks import Edit, Result, at, check
from toolkit.errors import nearest
from toolkit.lint.script import LONG, Script, directive


@check(
    "line-ending",
    "lines end as on Unix",
    cause="sbatch refuses it (batch script contains DOS line breaks), and bash takes the \\r for "
    "part of a word",
    source="sbatch of Slurm 22.05",
)
def _line_endings(script: Script) -> Iterator[Result]:
    # Reported once, at the first such line; fixed in all.
    bad = [number for number, line in enumerate(script.lines, 1) if line.endswith("\r")]
    if bad:
        edits = [Edit(line=number, text=script.lines[number - 1].rstrip("\r")) for number in bad]
        lines = f"{len(bad)} lines end" if len(bad) > 1 else "1 line ends"
        yield at(bad[0], f"{lines} as on Windows", edits=edits)


@check(
    "shebang",
    "the first line names the interpreter",
    cause="sbatch refuses a script whose first line does not name its interpreter",
    source="sbatch: This does not look like a batch script",
)
def _shebang(script: Script) -> Iterator[Result]:
    if script.is_batch and not script.lines[0].startswith("#!"):
        yield at(
            1,
            "the first line is not #!/bin/bash",
            edits=[Edit(line=1, text=f"#!/bin/bash\n{script.lines[0]}")],
        )


_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
_OPTION = re.compile(rf"(?<!\S)(?P<dash>-?[{_DASHES}]+-?)(?P<name>[A-Za-z][\w-]*)")
_QUOTED = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'")
# What may begin a text: a comment, a quote that does not end, straight or bent.
_TEXT = re.compile(r"(?<=.)[#\"'\\\u2018\u2019\u201c-\u201e]")
_SHORT = ("np", "al", "la", "mca")  # that mpirun and its like know with one hyphen
_NAMES = {
    "–": "an en dash",
    "—": "an em dash",
    "−": "a minus sign",
    "‐": "a typographic hyphen",
    "‑": "a no-break hyphen",
}


@check(
    "dash",
    "options begin with a hyphen",
    cause="sbatch and srun take such a word for something else than an option: they refuse it, or "
    "leave it out without a word",
    source="12 such lines in a published guide of a GPU cluster; sbatch 22.05: Invalid directive "
    "found in batch script",
)
def _dashes(script: Script) -> Iterator[Result]:
    places = [(each.line, each.text) for each in script.directives]
    for command in script.commands:
        places += enumerate(command.plain.split("\n"), command.line)
    for number, text in places:
        corrected = script.lines[number - 1]
        masked = _QUOTED.sub(lambda quoted: " " * len(quoted[0]), text)
        options = list(_OPTION.finditer(_TEXT.split(masked, maxsplit=1)[0]))
        for match in reversed(options):
            hyphens = "-" if len(match["name"]) == 1 or match["name"] in _SHORT else "--"
            corrected = corrected[: match.start()] + hyphens + corrected[match.start("name") :]
        if options:
            first = options[0]
            kind = _NAMES.get(first["dash"].strip("-")[:1], "a character that looks like a dash")
            edits = [Edit(line=number, text=corrected)]
            message = f"{first[0]} begins with {kind}"
            yield at(number, message, edits=edits, fix=corrected.strip())


@check(
    "syntax",
    "bash can parse the script",
    cause="bash stops here, and the job with it",
    source="bash -n",
)
def _syntax(script: Script) -> Iterator[Result]:
    for line, message in script.context.syntax:
        yield at(line, message)


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
        if match := _HIDDEN.match(line):
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
    for late in (each for each in script.directives if not each.effective):
        # Of two values of one option only the author knows which is meant.
        is_clear = not any(
            other.name == option.name and other.value != option.value
            for option in late.options
            for each in script.directives
            if each.line != late.line
            for other in each.options
        )
        moved = Edit(line=script.first, text=f"{late.text}\n{script.lines[script.first - 1]}")
        edits = [moved, Edit(line=late.line, text=None)] if is_clear else []
        yield at(
            late.line,
            f"{late.text.strip()} comes after the first command (line {script.first})",
            edits=edits,
        )


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
        values = (option.value for option in written.options if option.value)
        words = [*written.strays, *(value for value in values if value[0] == "=")]
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
        for name, option, _ in written.options:
            begun = [known for known in LONG if known.startswith(name)]
            is_known = name in LONG or len(begun) == 1
            if is_known or not option.startswith("--") or not option.isascii():
                continue
            close, edits = nearest(name, LONG), []
            if close == name.replace("_", "-") and written.text.count(option) == 1:
                edits = [Edit(line=written.line, text=written.text.replace(option, f"--{close}"))]
            yield at(
                written.line,
                f"sbatch has no option {option}",
                edits=edits,
                fix=f"close: --{close}" if close else "",
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
def _variable_in_directive(script: Script) -> Iterator[Result]:
    # In names of log files, those that Slurm has a pattern for can be fixed.
    for written, option in script.options():
        value = option.value or ""
        if match := _VARIABLE.search(value):
            name, edits = match[1] or match[2] or "", []
            fix = "write the value, or give the option to sbatch itself"
            is_only = written.text.count(match[0]) == value.count(match[0])
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
    _line_endings,
    _shebang,
    _dashes,
    _syntax,
    _hidden_directive,
    _late_directive,
    _stray_word,
    _unknown_option,
    _variable_in_directive,
    _log_name,
    _log_directory,
)
