"""Golden scripts: whole ones, and combinations whose lines are those of whole ones."""

from __future__ import annotations

import os
from pathlib import Path

from toolkit.lint.linter import Context, lint
from toolkit.resources import package_directory

GOLDEN = Path(__file__).parent / "golden" / "scripts"
# A launcher in a runtime or with an option, where both have whole golden scripts of their own.
COMPOSED = frozenset(
    "torchrun-requeue docker-srun docker-horovod-gloo pyxis-horovod pyxis-horovod-gloo "
    "conda-spawn conda-horovod conda-mpirun none-srun".split()
)


def assert_golden(name: str, text: str) -> None:
    """Compare a script with its golden file; of a combination, the lines that are its own.

    Of a program that the script carries verbatim, the golden file has the name.

    To renew the files after an intended change: UPDATE_GOLDEN=1, twice, since the lines of
    combinations are compared with the whole scripts; then read the diff.
    """
    for program in sorted((package_directory("scripts") / "templates").glob("*.py")):
        text = text.replace(program.read_text(), f"<{program.name}>\n")
    path = GOLDEN / f"{name}.sbatch"
    if name in COMPOSED:
        assert lint(text, Context(is_directory=bool)) == ()
        whole = {line for file in GOLDEN.glob("*.sbatch") for line in file.read_text().split("\n")}
        path = GOLDEN / "composed" / f"{name}.txt"
        text = "".join(f"{line}\n" for line in text.splitlines() if line not in whole)
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
