"""Rules about the characters of a script, and its syntax."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.checks import Edit, Result, at, check
from toolkit.lint.script import Script


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
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
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
            is_short = len(match["name"]) == 1 or match["name"] in _SHORT
            hyphens = "-" if is_short else "--"
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


RULES = (
    _line_endings,
    _shebang,
    _dashes,
    _syntax,
)
