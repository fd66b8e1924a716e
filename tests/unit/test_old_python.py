"""Code that runs on nodes or in images, whose Python may be as old as 3.6 or 3.8."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import toolkit

_HOME = Path(toolkit.__file__).parent
_PLACES = (
    *("scripts/templates", "scripts/report", "images/checks"),
    *("doctor/scripts", "bench/inside"),
)
_IMAGE = sorted(path for place in _PLACES for path in _HOME.glob(f"{place}/*.py"))

# What has no syntax of its own, by the version that brought it.
_NAMES = {
    (3, 7): {"fromisoformat", "capture_output", "breakpoint", "get_running_loop", "time_ns"},
    (3, 8): {"missing_ok", "dirs_exist_ok", "posonlyargs", "cached_property", "prod", "create_server"},
    (3, 9): {"removeprefix", "removesuffix", "is_relative_to", "readlink", "to_thread", "randbytes"},
    (3, 10): {"pairwise", "anext", "aiter", "bit_count", "strict", "hardlink_to"},
    (3, 11): {"chdir", "TaskGroup", "ExceptionGroup", "UTC", "batched"},
}  # fmt: skip


def newer(source: str, version: tuple[int, int]) -> list[str]:
    """What of a program a version of Python lacks."""
    lacking = {name for since, names in _NAMES.items() if since > version for name in names}
    found = []
    for node in ast.walk(ast.parse(source, feature_version=version)):
        names = {getattr(node, field, None) for field in ("attr", "id", "arg")}
        names |= {
            alias.name for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias)
        }
        found += sorted(name for name in names if isinstance(name, str) and name in lacking)
        if version < (3, 9) and _is_union(node):
            found.append("| of dictionaries")
    return found


def _is_union(node: ast.AST) -> bool:
    """Whether it may be of dictionaries: numbers and sets are joined by names and braces of others."""
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.BitOr) and isinstance(node.value, ast.Dict | ast.DictComp)
    sides = [node.left, node.right] if isinstance(node, ast.BinOp) else []
    return any(isinstance(side, ast.Dict | ast.DictComp) for side in sides)


@pytest.mark.parametrize("path", _IMAGE, ids=lambda path: path.name)
def test_what_scripts_carry_into_images_runs_on_python_3_8(path):
    assert newer(path.read_text(), (3, 8)) == []
