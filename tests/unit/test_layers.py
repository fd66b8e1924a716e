"""No module imports itself by way of others, and ARCHITECTURE.md names every room."""

from __future__ import annotations

import graphlib
import re
import sys
from pathlib import Path

import grimp

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent.parent
# `toolkit.submit` is loaded at its first use, by the package itself.
LAZY = ("toolkit", "toolkit.api.functions")


def test_no_module_imports_itself_by_way_of_others():
    graph = grimp.build_graph("toolkit", exclude_type_checking_imports=True)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    imports[LAZY[0]].discard(LAZY[1])
    graphlib.TopologicalSorter(imports).prepare()  # raises an error that names the circle


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
