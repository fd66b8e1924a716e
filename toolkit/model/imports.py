"""What a script imports, as far as it can be read without running it."""

from __future__ import annotations

from toolkit.model.base import Model


class Import(Model, frozen=True, kw_only=True):
    """A top-level module that neither the script's own code nor a directory that it names holds.

    Attributes:
        name: of the module: ``cv2``.
        file: that imports it, as messages show it.
        line: of the import.
        is_certain: the import is executed in every run; else it may never be.
        elsewhere: a directory that the ranks do not search and that holds such a module; empty: none
            was found.
        within: the import in full, since several packages share ``google``: ``google.protobuf``.
    """

    name: str
    file: str
    line: int
    is_certain: bool = True
    elsewhere: str = ""
    within: str = ""


class Shown(Model, frozen=True, kw_only=True):
    """A directory that the ranks must see, and what for."""

    path: str
    reason: str


class Imports(Model, frozen=True, kw_only=True):
    """The imports of a script and of the local modules that it imports.

    Attributes:
        names: modules that the Python of the ranks must have.
        directories: outside of the working directory and the script's, where local modules are.
        doubt: why a module that was not found may be there all the same; empty: there is no reason.
        python: path of the interpreter that the command names; empty: the first on PATH.
    """

    names: tuple[Import, ...] = ()
    directories: tuple[Shown, ...] = ()
    doubt: str = ""
    python: str = ""
