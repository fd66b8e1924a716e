"""No module imports itself by way of others, and the picture of the layers has every room."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from benchmarks import layers

ROOT = Path(__file__).parent.parent.parent
# `toolkit.submit` is loaded at its first use, by the package itself.
LAZY = ("toolkit", "toolkit.api.functions")


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """Return what each module imports."""
    graph = layers.graph()
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


def test_no_module_imports_itself_by_way_of_others(imports: dict[str, set[str]]) -> None:
    assert not cycles(imports)


def test_a_cycle_is_found() -> None:
    loop = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert cycles(loop) == {frozenset("abc")}


def test_every_room_is_in_a_layer() -> None:
    rooms = {layers.room_of(module) for module in layers.graph().modules} - {None}
    assert rooms == {room for line in layers.layers() for room in line}


def test_an_import_that_runs_upward_is_counted() -> None:
    assert layers.upward({("model", "cli"): 2, ("cli", "model"): 1}) == {("model", "cli"): 2}


def test_arrows_that_others_replace_are_not_drawn() -> None:
    drawn = layers.reduced({("cli", "runs"): 1, ("runs", "model"): 1, ("cli", "model"): 1})
    assert drawn == [("cli", "runs"), ("runs", "model")]


def test_the_picture_has_every_room_in_its_layer() -> None:
    """`make layers` draws it again. An arrow is one that the import graph has."""
    text = layers.PAGE.read_text(encoding="utf-8")
    picture = text[text.index(layers.BEGIN) : text.index(layers.END)]
    rows = [re.findall(r'\["(.+?)"\]', part) for part in picture.split("subgraph")[1:]]
    assert rows == layers.layers()
    arrows = re.findall(r"^  (\w+) --> (\w+)$", picture, re.MULTILINE)
    known = {
        tuple(room.replace(".", "_") for room in pair) for pair in layers.edges(layers.graph())
    }
    assert arrows
    assert set(arrows) <= known


def test_the_tools_need_no_tests() -> None:
    """The documentation is built without them."""
    imported = {
        name
        for path in (ROOT / "tools").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom | ast.Import)
        for name in (getattr(node, "module", None), *(alias.name for alias in node.names))
    }
    assert not any(str(name).split(".")[0] == "tests" for name in imported)
    assert "tools.docs.lint_cases" in imported
