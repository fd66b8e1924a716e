"""Words in a directive that belong to no option."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.lint.model import Context, Edit, Finding, Rule
from toolkit.lint.script import Directive, Script, blank_equals

RULE = Rule(
    "stray-word",
    "error",
    "sbatch refuses the script: Invalid directive found in batch script",
    "tried with Slurm 22.05",
)
_SPLIT = re.compile(r"#SBATCH\s+--\s+(?=[a-z])")
# Where the value ends is not known among quotes, straight or bent, and before a comment.
_UNCLEAR = re.compile(r"[\\\"'#\u2018\u2019\u201c-\u201e]")


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Blanks after ``--``, values of several words without quotes, quotes that do not close."""
    del context
    for directive in script.directives:
        if blank_equals(directive.text):
            continue  # found by the rule for these
        if directive.problem:
            yield RULE.at(directive.line, directive.problem)
        elif (
            directive.strays and directive.strays[0].isascii()
        ):  # others are found by the rule of dashes
            yield _finding(directive)


def _finding(directive: Directive) -> Finding:
    if _SPLIT.match(directive.text):
        mended = _SPLIT.sub("#SBATCH --", directive.text)
        return RULE.at(
            directive.line,
            "there is a blank between -- and the option's name",
            fix=[Edit(line=directive.line, text=mended)],
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
        mended = (
            f'#SBATCH {option.written}{"=" if option.written.startswith("--") else " "}"{value}"'
        )
        if len(directive.options) == 1 and not _UNCLEAR.search(directive.text, 1):
            return RULE.at(
                directive.line,
                f"{stray!r} is not part of the value",
                fix=[Edit(line=directive.line, text=mended)],
                advice=mended,
            )
    return RULE.at(
        directive.line,
        f"{stray!r} belongs to no option",
        advice="put a value of several words in double quotes",
    )
