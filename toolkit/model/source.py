"""The features and imports of a training script that can be read without running it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Construction(NamedTuple):
    """A call of a class with keyword arguments, or with no arguments.

    Attributes:
        name: full name of the class: ``lightning.pytorch.Trainer``.
        line: of the call.
        keywords: keyword arguments; None: the value is not a number or a text.
        is_whole: these are all arguments: none is positional, and there is no ``**options``.
    """

    name: str
    line: int
    keywords: dict[str, int | str | None] = {}
    is_whole: bool = True


class Import(NamedTuple):
    """A top-level module that every run imports and none of the searched directories has.

    Attributes:
        name: of the module: ``cv2``.
        file: the file with the import, as messages show it.
        line: of the import.
        within: the import in full, since several packages share ``google``: ``google.protobuf``.
    """

    name: str
    file: str
    line: int
    within: str = ""


def _has_any(names: Iterable[str], modules: Iterable[str]) -> bool:
    starts = tuple(f"{module}." for module in modules)
    return any(f"{name}.".startswith(starts) for name in names)


class Source(NamedTuple):
    """A script and the modules of the user that it imports.

    Attributes:
        python: the script could be parsed as Python.
        imports: imported modules and their members: ``torch.distributed``,
            ``torch.nn.parallel.DistributedDataParallel``; ``libmpi`` of a program that is linked
            with it.
        calls: every function or class that is called, by its full name:
            ``torch.multiprocessing.spawn``, also if the script writes ``mp.spawn``.
        options: of its argparse, as they are typed: ``--dist-url`` -> a value follows; else it is a
            switch.
        constructions: the objects of imported classes that it makes.
        certain: imports by statements of the modules themselves, which every run executes.
        packages: imported packages that are not Python's own, but for files of the user that were
            read.
        texts: texts in it that name a rank's variable, and ``MASTER_ADDR=localhost`` if it sets
            that.
        where: module or member -> the file that imports it, if the script itself does not.
        needed: modules that the Python of the ranks must have.
        directories: those of local modules that the ranks would not see -> why they are needed.
        doubt: why a module that is missing may be available all the same; empty: no reason.
        sha256: of the script; empty: it cannot be read, or is too large for a script.
    """

    python: bool = False
    imports: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    options: dict[str, bool] = {}
    constructions: tuple[Construction, ...] = ()
    certain: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    where: dict[str, str] = {}
    needed: tuple[Import, ...] = ()
    directories: dict[str, str] = {}
    doubt: str = ""
    sha256: str = ""

    def imports_any(self, *modules: str) -> bool:
        """Return whether one of the modules, or a submodule of one, is imported."""
        return _has_any(self.imports, modules)

    def certainly_imports(self, *modules: str) -> bool:
        """Return whether every run imports one of the modules, or a submodule of one."""
        return _has_any(self.certain, modules)

    def calls_any(self, *names: str) -> bool:
        """Return whether a function or class of one of these names is called.

        A name may be qualified: ``DataParallel``, or more exactly ``multiprocessing.spawn``.
        """
        return any(
            call == name or call.endswith("." + name) for call in self.calls for name in names
        )

    def option(self, *names: str) -> str:
        """Return the option of one of these names, in which ``-`` and ``_`` are equal, or empty."""
        flags = (flag for flag in self.options if flag.lstrip("-").replace("_", "-") in names)
        return next(flags, "")
