"""Registries that find their entries by themselves: each module of a package is one entry.

A module is imported when its entry is asked for; the names are known without an import, which is
what help texts and completion need.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from toolkit.errors import ToolkitError

Entry = TypeVar("Entry")


def module_names(package: str) -> list[str]:
    """Return the names of a package's modules, sorted; subpackages are none."""
    entries = pkgutil.iter_modules(import_module(package).__path__)
    return sorted(entry.name for entry in entries if not entry.ispkg)


def modules(package: str) -> Iterator[ModuleType]:
    """Import the modules of a package, one after the other."""
    return (import_module(f"{package}.{name}") for name in module_names(package))


class Registry(Mapping[str, Entry]):
    """The entries of a package by name, sorted: the module ``horovod_gloo`` is ``horovod-gloo``.

    Subpackages are no entries; code that entries share goes there.

    Args:
        package: dotted name of the package.
        kind: what an entry is called, such as ``launcher``: each module has a ``LAUNCHER``, and a
            user chooses it by ``--launcher``.
        error: the error for a name that no entry has.
        is_offered: whether help texts and messages propose an entry (default: all).
    """

    def __init__(
        self,
        package: str,
        kind: str,
        error: type[ToolkitError],
        is_offered: Callable[[Entry], bool] = lambda _entry: True,
    ) -> None:
        self._package, self._kind, self._error = package, kind, error
        self._is_offered = is_offered

    @cached_property
    def _modules(self) -> dict[str, str]:
        return {name.replace("_", "-"): name for name in module_names(self._package)}

    def __getitem__(self, name: str) -> Entry:
        module = import_module(f"{self._package}.{self._modules[name]}")
        entry: Entry = getattr(module, self._kind.upper())
        return entry

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def offered(self) -> list[str]:
        """Return the names that users choose from; this imports all entries."""
        return [name for name, entry in self.items() if self._is_offered(entry)]

    def choose(self, name: str) -> Entry:
        """Return the entry that a user names.

        Raises:
            ToolkitError: of the registry's own class; it names the nearest entry.
        """
        if name not in self:
            raise self.unknown(name)
        return self[name]

    def unknown(self, name: str) -> ToolkitError:
        """Return the error for a name that no entry has."""
        names = self.offered()
        return self._error(
            f"there is no {self._kind} {name!r}",
            place=f"--{self._kind}",
            choices=names,
            value=name,
            next_step=f"one of {', '.join(names)}",
        )
