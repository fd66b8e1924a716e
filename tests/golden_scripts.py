"""Golden scripts: torchrun's as a whole, and of each other script what differs from one like it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path

from toolkit.config import package_directory
from toolkit.lint.linter import lint
from toolkit.lint.script import Context

GOLDEN = Path(__file__).parent / "golden" / "scripts"
LEAST = 4  # fewer lines are repeated


def assert_golden(name: str, text: str, like: str = "", others: Mapping[str, str] = {}) -> None:
    """Compare a script with its golden file, and let the linter read it.

    The file of a script that is like another one has the lines that the other lacks, and after each
    @@ how many lines of the other they take the place of. A word in the lines that all scripts have
    so changes one golden file. Of lines that further scripts have, it has their number, and of a
    program that a script carries verbatim, the name.

    To renew the files after an intended change: UPDATE_GOLDEN=1; then read the diff.

    Args:
        name: of the golden file.
        text: of the script.
        like: the other script; empty: the whole script is in the file.
        others: further scripts by their names.
    """
    assert lint(text, Context(is_directory=bool)) == ()
    text, like = _without_programs(text), _without_programs(like)
    path = GOLDEN / f"{name}.sbatch"
    if like:
        path = GOLDEN / f"{name}.diff"
        known = {name: _without_programs(other) for name, other in others.items()}
        text = _difference(like.split("\n"), text.split("\n"), known)
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def _without_programs(text: str) -> str:
    for program in sorted((package_directory("scripts") / "templates").glob("*.py")):
        text = text.replace(program.read_text(), f"<{program.name}>\n")
    return text


def _difference(like: list[str], text: list[str], others: Mapping[str, str]) -> str:
    lines = []
    matcher = difflib.SequenceMatcher(None, like, text, autojunk=False)
    for kind, first, end, begin, stop in matcher.get_opcodes():
        if kind != "equal":
            lines += [f"@@ {end - first}", *_folded(text[begin:stop], others)]
    return "".join(f"{line}\n" for line in lines)


def _folded(lines: list[str], others: Mapping[str, str]) -> Iterator[str]:
    """Yield lines, with the number of those that another script has in the same order."""
    while lines:
        shared = {name: _shared(lines, f"\n{other}") for name, other in others.items()}
        name = max(shared, key=shared.__getitem__, default="")
        count = shared.get(name, 0)
        if count < LEAST:
            yield lines.pop(0)
        else:
            yield f"= {count} lines of {name}"
            del lines[:count]


def _shared(lines: list[str], other: str) -> int:
    counts = range(1, len(lines) + 1)
    starts = ("\n" + "\n".join([*lines[:count], ""]) for count in counts)
    return sum(1 for _ in takewhile(other.__contains__, starts))
