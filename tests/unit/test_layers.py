"""No module imports itself by way of others, and ARCHITECTURE.md names every room."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import grimp
import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent.parent
# `toolkit.submit` is loaded at its first use, by the package itself.
LAZY = ("toolkit", "toolkit.api.functions")


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """Return what each module imports."""
    graph = grimp.build_graph("toolkit", exclude_type_checking_imports=True)
    result = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    result[LAZY[0]] = result[LAZY[0]] - {LAZY[1]}
    return result


def reachable(imports: dict[str, set[str]], start: str) -> set[str]:
    """Return the modules that a module imports, directly or by way of others."""
    result: set[str] = set()
    waiting = [start]
    while waiting:
        new = imports[waiting.pop()] - result
        result |= new
        waiting += new
    return result


def cycles(imports: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the sets of modules that import each other."""
    reached = {module: reachable(imports, module) for module in imports}
    return {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in imports
        if module in reached[module]
    }


def test_no_module_imports_itself_by_way_of_others(imports):
    assert not cycles(imports)


def test_the_architecture_names_every_room():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    rooms = [
        f"{contract['containers'][0]}.{room}".removeprefix("toolkit.")
        for contract in contracts
        for line in contract["layers"]
        for room in line.split(" | ")
    ]
    table = {name for line in text.splitlines() for name in re.findall(r"`([\w.]+)`", line[:90])}
    assert {*rooms} - {"__main__", "images"} <= table
