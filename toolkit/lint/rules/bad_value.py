"""Values that sbatch cannot read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.script import Script, blank_equals

RULE = Rule(
    "bad-value", "error", "sbatch refuses the script", "tried with Slurm 22.05, 24.11 and 26.05"
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


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Every value of a directive that does not have the form of its option."""
    del context
    for name, (form, example) in _FORMS.items():
        for directive, option in script.options(name):
            if blank_equals(directive.text):
                continue  # found by the rule for these
            if option.value is None:
                yield RULE.at(directive.line, f"{option.written} needs a value", advice=example)
            elif not re.fullmatch(form, option.value, re.IGNORECASE) and option.value.isascii():
                yield RULE.at(
                    directive.line,
                    f"{option.value!r} is no value of {option.written}",
                    advice=example,
                )
