"""``conda activate`` in a shell that does not know it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.lint.calls import calls
from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "conda-activate",
    "error",
    "a batch script is no login shell and does not read ~/.bashrc: the environment is not activated, and the system's Python runs",
    "conda: Your shell has not been properly configured to use 'conda activate'",
    'before it: source "$(conda info --base)/etc/profile.d/conda.sh"',
)
_KNOWN = re.compile(
    r"profile\.d/(?:conda|mamba)\.sh|\b(?:conda|mamba|micromamba)\s{1,8}shell\b|shell\.bash\s{1,8}hook|\bbash_profile\b|\.bashrc\b|\.profile\b"
    r"|\b(?:__conda_setup|conda_init)\b"
)
# What another file does is not known.
_SOURCED = re.compile(r"(?:^|[\n;&|(])\s{0,80}(?:source|\.)\s{1,80}[^\s;&|)]")
_MODULE = re.compile(r"\bmodule\s{1,8}(?:load|add)\b|\bml\s")
_LOGIN = re.compile(r"#!.{0,200}\s-[a-z]{0,8}[li]")


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Find an activation before which nothing has defined the shell function."""
    del context
    if not script.is_batch or _LOGIN.match(script.lines[0]):
        return
    for call in calls(script, "conda", "mamba", "micromamba"):
        if call.words[1:2] == ("activate",) and not _is_known(script, call.line):
            yield RULE.at(
                call.line, f"the shell of a batch job does not know {call.program} activate"
            )
            return  # the others fail for the same reason


def _is_known(script: Script, line: int) -> bool:
    """Return whether a line before may have defined the function; what a module does is not known."""
    before = (command for command in script.commands if command.line <= line)
    patterns = ((_KNOWN, "text"), (_SOURCED, "text"), (_MODULE, "plain"))
    return any(
        pattern.search(getattr(command, part)) for command in before for pattern, part in patterns
    )
