"""The names in the package index of packages that bring a module: ``distributions.toml``."""

from __future__ import annotations

import sys
from functools import lru_cache

from toolkit.config import package_directory
from toolkit.files import read_toml
from toolkit.model.base import Model
from toolkit.units import numbers


class Module(Model, frozen=True, kw_only=True):
    """A module whose distribution has another name."""

    distribution: str
    source: str


class Standard(Model, frozen=True, kw_only=True):
    """A module of the standard library that not every Python 3 has.

    Attributes:
        since: the first version that has it.
        until: the first version that no longer has it.
        distribution: that brings it to the other versions.
        source: where that is documented.
    """

    since: str = ""
    until: str = ""
    distribution: str = ""
    source: str


class Written(Model, frozen=True, kw_only=True):
    """The whole file. ``own``: names that people give modules of their own."""

    own: tuple[str, ...]
    modules: dict[str, Module]
    standard: dict[str, Standard]


@lru_cache(maxsize=1)
def read_distributions() -> Written:
    """Return what the file says."""
    return read_toml(package_directory("imports") / "distributions.toml", Written)


def find_distribution(module: str, within: str = "") -> str:
    """Return what pip is asked for; empty for names of the user's own code, and of what pip lacks.

    Args:
        module: top-level module.
        within: the import in full: ``google.protobuf.text_format``.
    """
    known = read_distributions()
    parts = within.split(".")
    for count in range(len(parts), 1, -1):
        if entry := known.modules.get(".".join(parts[:count])):
            return entry.distribution
    if module in known.standard:
        return known.standard[module].distribution
    if module in known.modules:
        return known.modules[module].distribution
    if module in known.own or module in sys.stdlib_module_names or module.startswith("_"):
        return ""
    return module.replace("_", "-")


def is_known(module: str) -> bool:
    """Return whether a name is surely that of a package or of the standard library."""
    known = read_distributions()
    return any(
        module in names for names in (known.modules, known.standard, sys.stdlib_module_names)
    )


def explain_standard(module: str, version: str) -> str:
    """Return why a standard module is not in a version of Python; empty where it could be."""
    known = read_distributions().standard.get(module)
    if known is None:
        is_standard = module in sys.stdlib_module_names
        text = f"{module} is of the standard library, and this Python lacks it"
        return text if is_standard else ""
    if known.since and numbers(version) < numbers(known.since):
        return f"Python has {module} since {known.since}"
    if known.until and numbers(version) >= numbers(known.until):
        return f"Python has no {module} since {known.until}"
    return ""
