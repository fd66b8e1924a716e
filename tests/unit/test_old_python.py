"""Code that runs on nodes or in images, whose Python may be as old as 3.6 or 3.8."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import toolkit

_HOME = Path(toolkit.__file__).parent
_PLACES = (
    *("scripts/templates", "scripts/report", "images/checks"),
    *("doctor/scripts", "bench/inside"),
)
_IMAGE = sorted(path for place in _PLACES for path in _HOME.glob(f"{place}/*.py"))

# What has no syntax of its own, and came with 3.9, 3.10 and 3.11.
_NAMES = {
    *"removeprefix removesuffix is_relative_to readlink to_thread randbytes".split(),
    *"pairwise anext aiter bit_count strict hardlink_to".split(),
    *"chdir TaskGroup ExceptionGroup UTC batched".split(),
}


def newer(source: str) -> Iterator[str]:
    """Yield what of a program Python 3.8 lacks."""
    for node in ast.walk(ast.parse(source, feature_version=(3, 8))):
        names = {getattr(node, field, None) for field in ("attr", "id", "arg")}
        names |= {each.name for each in getattr(node, "names", ()) if isinstance(each, ast.alias)}
        yield from (name for name in names if name in _NAMES)
        # A union of dictionaries; numbers and sets are joined by names.
        sides = (getattr(node, field, None) for field in ("left", "right", "value"))
        is_union = isinstance(getattr(node, "op", None), ast.BitOr)
        if is_union and any(isinstance(side, ast.Dict | ast.DictComp) for side in sides):
            yield "| of dictionaries"


@pytest.mark.parametrize("path", _IMAGE, ids=lambda path: path.name)
def test_what_scripts_carry_into_images_runs_on_python_3_8(path):
    assert list(newer(path.read_text())) == []
