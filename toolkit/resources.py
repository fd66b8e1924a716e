"""The files that are shipped with the toolkit.

In a checkout they are in its top directory, in an installed wheel under ``toolkit/data``.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def shipped(kind: str) -> Path:
    """Return ``recipes``, ``containers``, ``jobs`` or ``docs`` of this installation."""
    installed = _PACKAGE / "data" / kind
    return installed if installed.is_dir() else _PACKAGE.parent / kind


def is_shipped(path: Path) -> bool:
    """Return whether a file came with this installation, and is trusted as its code is."""
    places = (_PACKAGE, *(shipped(kind) for kind in ("recipes", "containers", "jobs")))
    return any(path.is_relative_to(place) for place in places)


def package_directory(kind: str) -> Path:
    """Return a data directory of the package: ``sites`` or ``scripts/templates``."""
    return _PACKAGE / kind
