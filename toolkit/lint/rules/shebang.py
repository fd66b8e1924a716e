"""The first line."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.lint.model import Context, Edit, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "shebang",
    "error",
    "sbatch refuses a script whose first line does not name its interpreter",
    "sbatch: This does not look like a batch script",
)


def check(script: Script, context: Context) -> Iterator[Finding]:
    """A script for sbatch that does not begin with ``#!``."""
    del context
    if script.is_batch and not script.lines[0].startswith("#!"):
        yield RULE.at(
            1,
            "the first line is not #!/bin/bash",
            fix=[Edit(line=1, text=f"#!/bin/bash\n{script.lines[0]}")],
        )
