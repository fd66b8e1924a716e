"""Read modules as syntax trees, within bounds, whatever lies under their names."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

from toolkit.files import open_regular

LARGEST = 1 << 20  # bytes of a module; larger ones are generated
# What the parser raises: for broken or newer syntax, NUL bytes and unknown encodings, and depth.
_UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)


def parsed(path: Path) -> ast.Module | None:
    """Return the syntax tree of a module; None where it cannot be read: running it says why."""
    try:
        with open_regular(path) as stream:
            text = stream.read(LARGEST + 1)
        if len(text) > LARGEST:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parser warns of "\d", on standard error
            return ast.parse(text)
    except _UNREADABLE:
        return None
