"""Follow the imports of a script through its own modules; collect what they need beyond these."""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from toolkit.imports import search
from toolkit.imports.evaluate import Context
from toolkit.imports.places import (
    Bound,
    is_below,
    is_broad,
    is_system,
    list_nearby,
    map_to_host,
    normalize_path,
)
from toolkit.imports.scan import ImportStatement, Scan, Strength, scan
from toolkit.imports.search import Place
from toolkit.model.source import Import, Imports, Shown

_MOST_FILES = 200
_MOST_BYTES = 2 << 20  # a second of parsing


class Entry(NamedTuple):
    """The program of the ranks.

    Attributes:
        file: that is run as ``__main__``.
        root: the directory that Python searches first.
        packages: files that are run before it: the ``__init__.py`` of its packages.
    """

    file: Path
    root: Path
    packages: tuple[Path, ...] = ()


class Surroundings(NamedTuple):
    """The surroundings of a program on the ranks.

    Attributes:
        directory: working directory of the ranks.
        home: of the user.
        search: what PYTHONPATH names for the ranks.
        others: what it names here, and the ranks do not get.
        visible: directories that the ranks see under the same path.
        binds: what they see elsewhere.
        known: modules of their Python; None: they are not known.
        version: of their Python; None: it is not known.
    """

    directory: Path
    home: Path
    search: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    visible: tuple[Path, ...] = ()
    binds: tuple[Bound, ...] = ()
    known: Collection[str] | None = None
    version: tuple[int, ...] | None = None


def collect_imports(entry: Entry, around: Surroundings) -> Imports:
    """Return what a program imports; nothing where it cannot be read."""
    walk = _Walk(entry, around, roots=[entry.root])
    walk.add_roots(list(around.search))
    for package in entry.packages:
        walk.push(package, Strength.CERTAIN)
    walk.push(entry.file, Strength.CERTAIN)
    walk.run()
    return walk.result()


@dataclass
class _Walk:
    """The state of a walk.

    Attributes:
        roots: the search path, as far as it is known.
        queue: files that are still to be read, and how surely each is imported.
        reached: how surely each file that was read is imported.
        missing: the imports whose module was not found, by module.
        shown: directories outside of what the ranks see, and what for.
    """

    entry: Entry
    around: Surroundings
    roots: list[Path] = field(default_factory=list)
    queue: list[tuple[Path, Strength]] = field(default_factory=list)
    reached: dict[Path, Strength] = field(default_factory=dict)
    trees: dict[Path, ast.Module | None] = field(default_factory=dict)
    listings: dict[Path, list[str]] = field(default_factory=dict)
    missing: dict[str, tuple[Path, ImportStatement, Strength]] = field(default_factory=dict)
    shown: dict[Path, str] = field(default_factory=dict)
    doubt: str = ""
    size: int = 0

    def run(self) -> None:
        """Read files until none is left; a new directory may hold what was missing."""
        known = len(self.roots)
        while self.queue:
            self.read(*self.queue.pop(0))
            if not self.queue and len(self.roots) > known:
                known = len(self.roots)
                again, self.missing = self.missing, {}
                for file, statement, strength in again.values():
                    self.absolute(file, statement, strength)

    def push(self, file: Path, strength: Strength) -> None:
        """Have a file read, unless it was and nothing new would be learned."""
        if self.reached.get(file, -1) < strength:
            self.reached[file] = strength
            self.queue.append((file, strength))

    def read(self, file: Path, strength: Strength) -> None:
        """Read a file and follow its imports."""
        scan_result = self.scanned(file)
        self.doubt = self.doubt or scan_result.doubt
        self.add_roots(scan_result.paths)
        for statement in scan_result.imports:
            weakest = min(strength, statement.strength)
            if statement.level:
                self.relative(file, statement, weakest)
            else:
                self.absolute(file, statement, weakest)

    def scanned(self, file: Path) -> Scan:
        """Return what a file shows; nothing beyond the bounds, and where it cannot be read."""
        if file not in self.trees:
            self.size += _size(file)
            within = len(self.trees) < _MOST_FILES and self.size <= _MOST_BYTES
            self.trees[file] = search.parse(file) if within else None
        tree = self.trees[file]
        around, is_main = self.around, file == self.entry.file
        context = Context(str(file), str(around.directory), is_main, around.version)
        try:
            return scan(tree, context) if tree else Scan()
        except RecursionError:
            return Scan()

    def add_roots(self, paths: list[str]) -> None:
        """Add directories to the search path."""
        for text in paths:
            path = map_to_host(normalize_path(text, self.around.directory), self.around.binds)
            if path in self.roots:
                continue
            if search.is_directory(path) and not is_system(path):
                self.roots.append(path)
            elif search.is_file(path) or is_system(path) or not is_below(path, self.around.visible):
                # An archive, a directory of the image, or one that only the nodes have.
                self.doubt = self.doubt or f"what {path} holds for the ranks is not known here"

    def absolute(self, file: Path, statement: ImportStatement, strength: Strength) -> None:
        """Follow an import along the search path."""
        name, *parts = statement.module.split(".")
        if name == "__main__":
            return
        place = search.find(name, self.roots, self.listings)
        if place is None:
            before = self.missing.get(name)
            if before is None or before[2] < strength:
                self.missing[name] = (file, statement, strength)
            return
        self.show(place, f"{self.name(file)} imports {name}")
        for submodule in (*place.files, *_submodules(place, tuple(parts), statement.names)):
            self.push(submodule, strength)

    def relative(self, file: Path, statement: ImportStatement, strength: Strength) -> None:
        """Follow an import within a package."""
        directory = file.parent
        for _ in range(statement.level - 1):
            directory = directory.parent
        place = Place(directory, (), directory)
        parts = tuple(statement.module.split(".")) if statement.module else ()
        for submodule in _submodules(place, parts, statement.names):
            self.push(submodule, strength)

    def show(self, place: Place, reason: str) -> None:
        """Note a directory that the ranks must see for a module, if they would not see it."""
        bound = (*self.around.visible, *(bind.source for bind in self.around.binds))
        for path in (place.path, Path(os.path.realpath(place.path))):
            if is_below(path, (*bound, *self.shown)):
                continue
            above = place.root if path == place.path else path.parent
            wanted = path if is_broad(above, self.around.home) else above
            if not is_system(wanted):
                self.shown[wanted] = reason

    def name(self, file: Path) -> str:
        """Return how messages name a file."""
        directory = self.around.directory
        return str(file.relative_to(directory)) if file.is_relative_to(directory) else str(file)

    def result(self) -> Imports:
        """Return the imports that are missing, and the directories that ranks must see."""
        names = [
            Import(
                name=name,
                file=self.name(file),
                line=statement.line,
                is_certain=strength is Strength.CERTAIN,
                elsewhere=self.elsewhere(name),
                within=".".join((statement.module, *statement.names[:1])),
            )
            for name, (file, statement, strength) in self.missing.items()
            if strength is not Strength.OPTIONAL and name.isidentifier()
        ]
        shown = tuple(Shown(path=str(path), reason=reason) for path, reason in self.shown.items())
        return Imports(names=tuple(names), directories=shown, doubt=self.doubt)

    def elsewhere(self, name: str) -> str:
        """Return a directory that holds a module which the ranks would not find."""
        around = self.around
        if around.known is None or name in around.known:
            return ""
        others = [normalize_path(text, around.directory) for text in around.others if text]
        near = [
            *list_nearby(self.entry.file.parent, around.home),
            *list_nearby(around.directory, around.home),
        ]
        places = [root for root in dict.fromkeys((*others, *near)) if root not in self.roots]
        for root in places:
            place = search.find(name, [root], self.listings)
            if place and (place.files or search.holds_python(place.path)):
                return str(root)
        sites = around.home.glob(".local/lib/python3*/site-packages")
        return next((str(site) for site in sites if search.find(name, [site], self.listings)), "")


def _submodules(place: Place, parts: tuple[str, ...], names: tuple[str, ...]) -> Iterator[Path]:
    """Return the files of a package that an import runs; names that it takes may be submodules."""
    yield from search.list_submodules(place, parts)
    for name in names:
        if name.isidentifier():
            yield from search.list_submodules(place, (*parts, name))


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
