"""Pure rooms compute: they read no environment, no clock and no files, and start nothing.

What a pure function needs is an argument, so that it can be tested with values alone. Facts of the
machine are gathered by the rooms at the edge (shell, files, slurm, planning/case.py, ...).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

# Rooms and modules below toolkit/ that are pure, and the modules of these rooms that are not.
PURE = (
    *("model/", "launchers/", "explain/", "lint/", "rules/", "images/recipe/", "images/sif/"),
    *("planning/plan.py", "planning/sweep.py", "scripts/render.py", "runtimes/base.py"),
    *("slurm/parse.py", "slurm/hostlist.py", "slurm/queue.py", "hostsetup/decide.py"),
    *("localcluster/config.py", "localcluster/shape.py", "checks.py", "errors.py", "meanings.py"),
    *("quoting.py", "text.py", "units.py"),
)
EDGES = (
    "explain/gather.py",
    "images/recipe/catalogue.py",
    "images/recipe/importers/",
    "images/recipe/library.py",
    "images/recipe/sources.py",
    "images/sif/file.py",
    "lint/files.py",
    "rules/files.py",
    "rules/image.py",
)

# Modules whose import alone means that something outside is read, started or waited for.
MODULES = {
    *"fcntl glob http multiprocessing os pwd random requests secrets select shutil socket".split(),
    *"subprocess tempfile threading time toolkit.files toolkit.shell urllib.request".split(),
}
FUNCTIONS = {"open", "input", "print", "Path.cwd", "Path.home"}
# Methods of a path, or of a class of dates, that look at the machine.
METHODS = {
    *"absolute chmod exists expanduser is_dir is_file is_symlink iterdir lstat mkdir now".split(),
    *"open read_bytes read_text rename resolve rglob stat today touch unlink utcnow".split(),
    *"write_bytes write_text".split(),
}


def impurities(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each access to the machine in the source of a module."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            yield from ((node.lineno, name) for name in sorted(names & MODULES))
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in FUNCTIONS or (
                isinstance(node.func, ast.Attribute) and node.func.attr in METHODS
            ):
                yield node.lineno, called


def modules() -> list[str]:
    """Return the paths below toolkit/ of the modules that must be pure."""
    paths = [str(file.relative_to(ROOT / "toolkit")) for file in (ROOT / "toolkit").rglob("*.py")]
    return sorted(path for path in paths if path.startswith(PURE) and not path.startswith(EDGES))


@pytest.mark.parametrize("path", modules())
def test_a_pure_module_does_not_touch_the_machine(path):
    assert not list(impurities((ROOT / "toolkit" / path).read_text(encoding="utf-8"))), path
