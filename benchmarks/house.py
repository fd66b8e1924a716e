"""Measure the code itself: `make house` holds each room of the package to its budget.

The budgets are in house.tsv: statements (Python's ``ast``) and modules of each room. To raise one
is a line in a diff, with its reason. It also prints how long functions are.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
BUDGETS = Path(__file__).with_suffix(".tsv")
LONGEST = 74  # lines


class Room(NamedTuple):
    """A room of the package: its name, and the most statements and modules that it may have."""

    name: str
    statements: int
    modules: int
    folders: tuple[str, ...]

    def holds(self, module: str) -> bool:
        """Return whether a module, named by its path, is in one of the room's folders.

        The folder ``toolkit`` stands for the modules at the top of the package.
        """
        folder = module.rpartition("/")[0]
        return any(
            folder == own or (own != "toolkit" and module.startswith(f"{own}/"))
            for own in self.folders
        )


def rooms() -> list[Room]:
    """Return the rooms in the table of budgets."""
    rows = [line.split("\t") for line in BUDGETS.read_text(encoding="utf-8").splitlines()[1:]]
    return [
        Room(name, int(statements), int(modules), tuple(folders.split()))
        for name, statements, modules, folders in rows
    ]


def tracked(folder: str) -> list[str]:
    """Return the files of a folder that git knows and that are there."""
    command = ["git", "ls-files", "-z", folder]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def parse_modules() -> dict[str, ast.Module]:
    """Return the modules of the package by their paths, parsed."""
    return {
        name: ast.parse((ROOT / name).read_bytes())
        for name in tracked("toolkit")
        if name.endswith(".py")
    }


def statements(module: ast.Module) -> int:
    """Return how many statements a module has."""
    return sum(isinstance(node, ast.stmt) for node in ast.walk(module))


def functions(modules: dict[str, ast.Module]) -> list[tuple[int, str]]:
    """Return the length in lines and the place of each function, the longest first."""
    lengths = [
        ((node.end_lineno or node.lineno) - node.lineno + 1, f"{name}:{node.lineno} {node.name}")
        for name, module in modules.items()
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return sorted(lengths, reverse=True)


def over_budget(modules: dict[str, ast.Module]) -> list[str]:
    """Print each room beside its budget, and return what is over it."""
    counts = {name: statements(module) for name, module in modules.items()}
    over = []
    print(f"{'room':14}{'statements':>11}{'budget':>8}{'modules':>9}{'budget':>8}")
    for room in rooms():
        own = [count for name, count in counts.items() if room.holds(name)]
        print(f"{room.name:14}{sum(own):11}{room.statements:8}{len(own):9}{room.modules:8}")
        if sum(own) > room.statements or len(own) > room.modules:
            over.append(f"{room.name} is over its budget in {BUDGETS.relative_to(ROOT)}")
    print(f"{'toolkit':14}{sum(counts.values()):11}{'':8}{len(counts):9}")
    unknown = [name for name in counts if not any(room.holds(name) for room in rooms())]
    return over + [f"{name} is in no room of {BUDGETS.relative_to(ROOT)}" for name in unknown]


def main() -> int:
    """Print all figures; return 1 if one is over its budget."""
    modules = parse_modules()
    over = over_budget(modules)
    tests = sum((ROOT / name).read_bytes().count(b"\n") for name in tracked("tests"))
    print(f"{'tests':14}{tests:11} lines")

    lengths = functions(modules)
    median, ninth = (lengths[int(len(lengths) * part)][0] for part in (0.5, 0.1))
    print(f"functions {len(lengths)}: median {median} lines, p90 {ninth}, longest {lengths[0]}")
    over += [f"{place} has {length} lines" for length, place in lengths if length > LONGEST]
    for line in over:
        print(f"over       {line}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
