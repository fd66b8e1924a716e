"""Golden scripts: torchrun's as a whole, and of each other script what differs from one like it."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from toolkit.config import package_directory
from toolkit.lint.linter import lint
from toolkit.lint.script import Context

GOLDEN = Path(__file__).parent / "golden" / "scripts"


def assert_golden(name: str, text: str, like: str = "", other: str = "") -> None:
    """Compare a script with its golden file, and let the linter read it.

    The file of a script that is like another one has the lines that the other lacks, and after each
    @@ how many lines of the other they take the place of. A word in the lines that all scripts have
    so changes one golden file. Of a program that a script carries verbatim, it has the name.

    To renew the files after an intended change: UPDATE_GOLDEN=1; then read the diff.

    Args:
        name: of the golden file.
        text: of the script.
        like: the other script; empty: the whole script is in the file.
        other: a script whose lines are not repeated either.
    """
    assert lint(text, Context(is_directory=bool)) == ()
    text, like, other = map(_without_programs, (text, like, other))
    path = GOLDEN / f"{name}.sbatch"
    if like:
        path = GOLDEN / f"{name}.diff"
        text = _difference(like.split("\n"), text.split("\n"), frozenset(other.split("\n")))
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def _without_programs(text: str) -> str:
    for program in sorted((package_directory("scripts") / "templates").glob("*.py")):
        text = text.replace(program.read_text(), f"<{program.name}>\n")
    return text


def _difference(like: list[str], text: list[str], known: frozenset[str]) -> str:
    lines = []
    matcher = difflib.SequenceMatcher(None, like, text, autojunk=False)
    for kind, first, end, begin, stop in matcher.get_opcodes():
        own = [line for line in text[begin:stop] if line not in known]
        if kind != "equal" and (own or not known):
            lines += [f"@@ {end - first}", *own]
    return "".join(f"{line}\n" for line in lines)
