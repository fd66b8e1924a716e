"""Find the modules of a package."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType


def module_names(package: str) -> list[str]:
    """Return the names of a package's modules, sorted; subpackages are none."""
    entries = pkgutil.iter_modules(import_module(package).__path__)
    return sorted(entry.name for entry in entries if not entry.ispkg)


def modules(package: str) -> Iterator[ModuleType]:
    """Import the modules of a package, one after the other."""
    return (import_module(f"{package}.{name}") for name in module_names(package))
