"""Golden scripts: whole ones, what an option changes in them, and combinations of both."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from toolkit.config import package_directory
from toolkit.lint.linter import lint
from toolkit.lint.script import Context

GOLDEN = Path(__file__).parent / "golden" / "scripts"
# What an option changes in a whole script: the golden file is the difference.
VARIANTS = {
    **dict.fromkeys(("secret", "slurm-options", "sweep", "torchrun-unequal"), "torchrun"),
    "torchrun-elastic-requeue": "torchrun-elastic",
    **dict.fromkeys(("mpirun-sweep", "mpirun-requeue"), "mpirun"),
    **dict.fromkeys(("srun-file", "srun-interactive"), "srun"),
    "tensorflow-gpus": "tensorflow",
    "none-pty": "none",
}
# A launcher in a runtime or with an option, where both have whole golden scripts of their own.
COMPOSED = frozenset(
    "torchrun-requeue docker-srun docker-horovod-gloo pyxis-horovod pyxis-horovod-gloo "
    "conda-spawn conda-horovod conda-mpirun none-srun".split()
)


def assert_golden(name: str, text: str) -> None:
    """Compare a script with its golden file; of a combination, the lines that are its own.

    Of a program that the script carries verbatim, the golden file has the name.

    To renew the files after an intended change: UPDATE_GOLDEN=1, twice, since variants and
    combinations are compared with the whole scripts; then read the diff.
    """
    for program in sorted((package_directory("scripts") / "templates").glob("*.py")):
        text = text.replace(program.read_text(), f"<{program.name}>\n")
    path = GOLDEN / f"{name}.sbatch"
    if name in VARIANTS:
        path = GOLDEN / f"{name}.diff"
        text = _difference(GOLDEN / f"{VARIANTS[name]}.sbatch", text)
    elif name in COMPOSED:
        assert lint(text, Context(is_directory=bool)) == ()
        whole = {line for file in GOLDEN.glob("*.sbatch") for line in file.read_text().split("\n")}
        whole |= {
            line[1:] for file in GOLDEN.glob("*.diff") for line in file.read_text().split("\n")
        }
        path = GOLDEN / "composed" / f"{name}.txt"
        text = "".join(f"{line}\n" for line in text.splitlines() if line not in whole)
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def _difference(whole: Path, text: str) -> str:
    """Return what `diff --unified=0` prints about a whole script and another."""
    lines = difflib.unified_diff(
        whole.read_text().split("\n"), text.split("\n"), whole.name, "", n=0, lineterm=""
    )
    return "\n".join(lines) + "\n"
