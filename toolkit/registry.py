"""A registry that finds its entries by itself: each module of a package is one entry.

A module is imported when its entry is asked for; the names are known without an import, which is
what help texts and completion need.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TypeVar

Entry = TypeVar("Entry")


class Registry(Mapping[str, Entry]):
    """The entries of a package by name, sorted: the module ``horovod_gloo`` is ``horovod-gloo``.

    Subpackages are no entries; code that entries share goes there.

    Args:
        package: dotted name of the package.
        path: its ``__path__``.
        variable: the variable of each module that holds its entry.
    """

    def __init__(self, package: str, path: Iterable[str], variable: str) -> None:
        self._package = package
        self._path = path
        self._variable = variable

    @cached_property
    def _modules(self) -> dict[str, str]:
        names = sorted(
            module.name for module in pkgutil.iter_modules(self._path) if not module.ispkg
        )
        return {name.replace("_", "-"): name for name in names}

    def __getitem__(self, name: str) -> Entry:
        module = importlib.import_module(f"{self._package}.{self._modules[name]}")
        entry: Entry = getattr(module, self._variable)
        return entry

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __contains__(self, name: object) -> bool:
        return name in self._modules
