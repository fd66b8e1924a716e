"""Lines that look like directives, and are comments."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.lint.model import Context, Edit, Finding, Rule
from toolkit.lint.options import LONG
from toolkit.lint.script import Script, parse

RULE = Rule(
    "hidden-directive",
    "error",
    "sbatch knows a directive only by #SBATCH at the very beginning of the line; this is a comment",
    "tried with Slurm 22.05",
)
# Several "#" are how people switch a directive off, and mean it.
_HIDDEN = re.compile(r"(?P<before>\s+#SBATCH|\s*#\s+SBATCH|#sbatch|#Sbatch)\s*(?P<rest>-.*)")


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Every such line before the first command."""
    del context
    first = script.commands[0].line if script.commands else len(script.lines) + 1
    for number, line in enumerate(script.lines[: first - 1], 1):
        found = _HIDDEN.match(line)
        if found:
            mended = f"#SBATCH {found['rest']}"
            fix = [Edit(line=number, text=mended)] if _is_meant(found, mended) else []
            yield RULE.at(number, f"{line.strip()!r} is not a directive", fix=fix, advice=mended)


def _is_meant(found: re.Match[str], mended: str) -> bool:
    """Return whether the line can only be a directive; with a blank after # it may be one that was switched off, or a remark."""
    (directive,) = parse(mended).directives
    is_readable = (
        not directive.problem
        and not directive.strays
        and all(option.name in LONG for option in directive.options)
    )
    return is_readable and not re.match(r"\s*#\s", found["before"])
