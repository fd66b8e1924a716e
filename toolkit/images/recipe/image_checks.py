"""The checks that an image carries, and the variables that it must have. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import chain

from toolkit.images.recipe.block import CHECKS, CheckCall, Step
from toolkit.images.recipe.quoting import quote_word

# Variables of Apptainer and of the shell, not of an image.
_RUNTIME = re.compile(
    r"(APPTAINER|SINGULARITY)_|(HOME|PWD|OLDPWD|SHLVL|PROMPT_COMMAND|PS1|TERM|_)$"
)
_FORKED = "forked.py"  # runs the checks of Python
_RUNNER = f"""\
#!/bin/sh
# Proves this image: runs every check and says of each, in one line, how it came out. \
Ends with 1 if one failed.
cd {CHECKS} || exit 1
export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
newline='
'
status=0
check() {{
    name=$1
    shift
    if output=$("$@" </dev/null 2>&1); then outcome=passed; else outcome=failed; status=1; fi
    printf '%s\\n' "$output"
    printf 'toolkit-check: %s %s: %s\\n' "$name" "$outcome" "${{output##*"$newline"}}"
}}
"""


def list_modules(outputs: Iterable[Step]) -> tuple[str, ...]:
    """Return the modules that scripts can import, as the steps name them."""
    return tuple(dict.fromkeys(chain.from_iterable(output.imports for output in outputs)))


def list_checks(outputs: Iterable[Step]) -> tuple[CheckCall, ...]:
    """Return the checks of an image: one for all imports, then those of the steps."""
    known = tuple(outputs)
    packages = tuple(dict.fromkeys(chain.from_iterable(output.installed for output in known)))
    arguments = (*list_modules(known), *(("--of", *packages) if packages else ()))
    imports = CheckCall(
        name="imports",
        command=f"imports.py {' '.join(map(quote_word, arguments))}",
        scripts=("imports.py",),
        is_python=True,
    )
    of_steps = chain.from_iterable(output.checks for output in known)
    return (*((imports,) if arguments else ()), *of_steps)


def check_files(
    calls: Iterable[CheckCall], modules: Iterable[str], scripts: Mapping[str, str]
) -> dict[str, str]:
    """Return the files of an image's checks: path -> text.

    Args:
        calls: the checks.
        modules: those that checks of Python find imported.
        scripts: the text of every file of ``images/checks``, by name.
    """
    known = tuple(calls)
    names = {script for call in known for script in call.scripts}
    names |= {_FORKED for call in known if call.is_python}
    files = {f"{CHECKS}/{name}": scripts[name] for name in sorted(names)}
    return {**files, f"{CHECKS}/run": runner(known, modules)}


def runner(calls: Iterable[CheckCall], modules: Iterable[str], directory: str = CHECKS) -> str:
    """Return the script that runs checks in an image, and prints the result of each.

    Args:
        calls: the checks.
        modules: those that checks of Python find imported.
        directory: where the image has the scripts.
    """
    known = tuple(calls)
    forked = [quote_word(f"{call.name} {call.command}") for call in known if call.is_python]
    words = " ".join(("python3", _FORKED, quote_word(" ".join(modules)), *forked))
    lines = [f"check {call.name} {call.command}" for call in known if not call.is_python]
    if forked:
        begin = f"{words} </dev/null & forked=$!  # beside the others"
        lines = [begin, *lines, 'wait "$forked" || status=1']
    text = "".join(f"{line}\n" for line in lines)
    return f"{_RUNNER.replace(CHECKS, directory)}{text}exit $status\n"


def promised_variables(
    base: Mapping[str, str], own: Mapping[str, str], path: Iterable[str]
) -> dict[str, str]:
    """Return the variables that an image must have.

    The values matter only of those that are lists of directories.

    Args:
        base: the variables of its base; a recipe may replace them.
        own: those of its recipe.
        path: the directories that the recipe puts before the image's PATH.
    """
    promised = {name: value for name, value in base.items() if not _RUNTIME.match(name)}
    promised |= own
    if "PATH" not in own:
        promised["PATH"] = ":".join(filter(None, (*path, base.get("PATH"))))
    return promised


def list_missing(promised: Mapping[str, str], variables: Mapping[str, str]) -> list[str]:
    """Return what an image lacks of the variables that were promised, for people."""
    missing = [f"the variable {name} is not set" for name in promised if name not in variables]
    for name in (name for name in promised if name.endswith("PATH") and name in variables):
        parts = variables[name].split(":")
        lost = [part for part in promised[name].split(":") if part and part not in parts]
        missing += [f"{name} lacks {part}" for part in lost]
    return missing
