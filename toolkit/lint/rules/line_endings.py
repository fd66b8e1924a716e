"""Line ends of another system."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.lint.model import Context, Edit, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "line-ending",
    "error",
    "sbatch refuses it (batch script contains DOS line breaks), and bash takes the \\r for part of a word",
    "sbatch of Slurm 22.05",
)


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Said once, at the first such line; mended in all."""
    del context
    bad = [number for number, line in enumerate(script.lines, 1) if line.endswith("\r")]
    if bad:
        edits = [Edit(line=number, text=script.lines[number - 1].rstrip("\r")) for number in bad]
        lines = f"{len(bad)} lines end" if len(bad) > 1 else "1 line ends"
        yield RULE.at(bad[0], f"{lines} as on Windows", fix=edits)
