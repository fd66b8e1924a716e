"""The packages that bring modules, where their names differ: ``packages.toml``."""

from __future__ import annotations

import sys
from functools import lru_cache

from toolkit.config import package_directory
from toolkit.files import read_toml
from toolkit.model.base import Model
from toolkit.model.source import Import
from toolkit.units import numbers


class Packages(Model, frozen=True, kw_only=True):
    """The content of ``packages.toml``.

    Attributes:
        own: names that people give modules of their own.
        modules: module -> ``distribution`` on the index, and the ``source`` of that.
        standard: modules that some versions of Python lack -> ``since`` or ``until`` a version, and
            the ``distribution`` that brings it to the others, if there is one.
    """

    own: tuple[str, ...]
    modules: dict[str, dict[str, str]]
    standard: dict[str, dict[str, str]]


@lru_cache
def read_packages() -> Packages:
    """Return the content of the file."""
    return read_toml(package_directory("rules") / "packages.toml", Packages)


def find_package(needed: Import) -> str:
    """Return what pip is asked for; empty: the user's own code, or nothing that pip has."""
    known, parts = read_packages(), needed.within.split(".")
    for count in range(len(parts), 1, -1):  # several packages share the name google
        if package := known.modules.get(".".join(parts[:count])):
            return package["distribution"]
    name = needed.name
    if package := known.standard.get(name) or known.modules.get(name):
        return package.get("distribution", "")
    is_own = name in known.own or name in sys.stdlib_module_names or name.startswith("_")
    return "" if is_own else name.replace("_", "-")


def is_known(name: str) -> bool:
    """Return whether a name is surely that of a package or of the standard library."""
    known = read_packages()
    return any(name in names for names in (known.modules, known.standard, sys.stdlib_module_names))


def explain_standard(name: str, version: str) -> str:
    """Return why a version of Python lacks a module of the standard library; empty: not known."""
    if name not in read_packages().standard:
        is_standard = name in sys.stdlib_module_names
        return f"{name} is of the standard library, and this Python lacks it" if is_standard else ""
    known = read_packages().standard[name]
    if "since" in known and numbers(version) < numbers(known["since"]):
        return f"Python has {name} since {known['since']}"
    if "until" in known and numbers(version) >= numbers(known["until"]):
        return f"Python has no {name} since {known['until']}"
    return ""
