"""The one reader of a user's program: what it imports, calls and defines. Nothing is run.

``python_file`` reads one file; here its imports are followed through the files of the user, as
Python would follow them. What none of these brings, the Python of the ranks must have.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from toolkit import module_search as modules
from toolkit.files import open_regular
from toolkit.model.case import Case
from toolkit.model.source import Import, Shown, Source
from toolkit.python_file import ImportStatement, PythonFile, Strength

_MOST_SCRIPT = 16 << 20  # bytes of a script that is hashed
_MOST_FILE = 1 << 20  # bytes of a file that is parsed; larger ones are generated
_MOST_BYTES = 2 << 20  # of all files: a second of parsing
_MOST_FILES = 200
_MOST_NEAR = 50  # files, of which the ranks do not find the last ones
_MOST_NAMES = 200  # modules that are looked for where the ranks do not search
_MOST_DIRECTORIES = 50  # that are searched
_SHEBANG = re.compile(rb"#![^\n]{0,200}python[\d.]*\s")
# Names of shared objects in an ELF are strings that end with a NUL byte.
_LIBMPI = re.compile(rb"\0lib(?:mpi|mpich|mpi_cxx|mpicxx|mpi_mpifh)\.so(?:\.\d+)?\0")
# Options of Python, and how many words each is.
_OPTIONS = {**dict.fromkeys(("-u", "-B", "-O", "-s", "-E"), 1), "-W": 2, "-X": 2}


class PythonCommand(NamedTuple):
    """The parts of a command ``python [OPTION...] SCRIPT|-m MODULE [ARGUMENT...]``."""

    options: tuple[str, ...]
    script: str
    module: str
    arguments: tuple[str, ...]


def python_command(words: Sequence[str]) -> PythonCommand | None:
    """Return the parts of a command that runs Python; None if it runs no script or module."""
    if not words or not is_python(words[0]):
        return None
    start = 1
    while words[start : start + 1] and words[start] in _OPTIONS:
        start += _OPTIONS[words[start]]
    options, rest = tuple(words[1:start]), tuple(words[start:])
    if len(rest) > 1 and rest[0] == "-m":
        return PythonCommand(options, "", rest[1], rest[2:])
    is_script = bool(rest) and rest[0].endswith(".py") and not rest[0].startswith("-")
    return PythonCommand(options, rest[0], "", rest[1:]) if is_script else None


def is_python(word: str) -> bool:
    """Return whether a word names a Python interpreter: ``python``, ``/usr/bin/python3.11``."""
    name = word.rpartition("/")[2]
    version = name.removeprefix("python").replace(".", "")
    return name.startswith("python") and (not version or version.isdecimal())


def read(case: Case) -> Source:
    """Read the program of a case, and the files of the user that it imports.

    Python itself reports what cannot be read, with the line.
    """
    target, directory = case.target, Path(case.target.cwd)
    if not target.is_program:
        script = Path(target.folder) / target.name
        return _read(case, script, directory if case.job.python_module else _root(script))
    command = python_command((target.script, *case.job.arguments))
    if command is None:
        return Source()
    if command.module:
        file = modules.module_file(command.module, directory)
        source = _read(case, file, directory) if file else Source()
    else:
        script = directory / command.script
        source = _read(case, script, _root(script))
    # No launcher is chosen by what a program runs.
    return Source(needed=source.needed, directories=source.directories, doubt=source.doubt)


def _root(script: Path) -> Path:
    """Return the directory that Python searches first: where a script really is, behind links."""
    return Path(os.path.realpath(script)).parent


def _read(case: Case, script: Path, root: Path) -> Source:
    """Read a program whose modules Python searches first in one directory."""
    data = _bytes(script, _MOST_SCRIPT + 1)
    if data is None:
        return Source()
    sha256 = hashlib.sha256(data).hexdigest() if len(data) <= _MOST_SCRIPT else ""
    file = _parse(script, data, is_main=True)
    if file is None:
        is_mpi = data.startswith(b"\x7fELF") and _LIBMPI.search(data)
        return Source(imports=("libmpi",) if is_mpi else (), sha256=sha256)
    modules.entries.cache_clear()
    reader = _Reader(case, script)
    search = case.job.env.get("PYTHONPATH", case.site.environment.get("PYTHONPATH", ""))
    reader.search((str(root), *filter(None, search.split(":"))))
    packages = script.relative_to(root).parts[:-1] if script.is_relative_to(root) else ()
    reader.queue = dict.fromkeys(modules.files(root, packages), Strength.CERTAIN)
    reader.add(script, file, Strength.CERTAIN)
    reader.follow()
    return reader.source()._replace(sha256=sha256)


class _Reader:
    """Follows the imports of a program.

    Attributes:
        directories: that the ranks search, in their order.
        queue: files that are still to be read, and how surely they are imported.
        files: what each file shows; None: it cannot be read.
        size: bytes of the files.
        missing: the imports that no file of the ranks satisfies, and their files.
        nearby: where modules are that the ranks do not find; None: not here.
        unread: packages and modules that are imported, and of which no file was read.
        shown: directories that the ranks would not see, and what for.
        doubt: why imports may find modules that cannot be foreseen; empty: there is no reason.
    """

    def __init__(self, case: Case, script: Path) -> None:
        self.script, self.directory = script, Path(case.target.cwd)
        self.binds = case.binds
        self.known = frozenset(case.python.modules) if case.python else frozenset()
        own = (case.target.cwd, case.target.folder, case.run)
        trees = modules.work_trees(Path(case.target.folder), self.directory)
        self.visible = [*map(Path, own), *(Path(tree.path) for tree in trees)]
        self.directories: list[Path] = []
        self.queue: dict[Path, Strength] = {}
        self.files: dict[Path, PythonFile | None] = {}
        self.size = 0
        self.missing: list[tuple[Path, ImportStatement]] = []
        self.nearby: dict[str, Path | None] = {}
        self.unread: set[str] = set()
        self.shown: dict[Path, str] = {}
        self.doubt = ""

    def follow(self) -> None:
        """Read what is imported, the surest first, so that each file is read once."""
        while self.queue:
            path = max(self.queue, key=self.queue.__getitem__)
            most = _MOST_FILES if self.queue[path] > Strength.ABSENT else _MOST_NEAR
            if len(self.files) >= most or self.size > _MOST_BYTES:
                break
            strength = self.queue.pop(path)
            data = _bytes(path, _MOST_FILE + 1) or b""
            self.size += len(data)
            self.add(path, _parse(path, data), strength)
        self.unread |= {path.stem for path in self.queue}

    def add(self, path: Path, file: PythonFile | None, strength: Strength) -> None:
        """Add a file that was read, and follow its imports."""
        self.files[path] = file
        if file is None:
            self.unread.add(path.stem)
            return
        if strength > Strength.ABSENT:
            self.doubt = self.doubt or file.doubt
            self.search(file.search)
        for each in file.imports:
            self.enqueue(path, each._replace(strength=min(strength, each.strength)))

    def enqueue(self, path: Path, statement: ImportStatement) -> None:
        """Have the files read that Python runs for an import of a file."""
        strength, parts = statement.strength, statement.module.split(".")
        if statement.level > len(path.parents) or parts == ["__main__"]:
            return
        if statement.level:
            directory = path.parents[statement.level - 1]
        elif place := modules.find(parts[0], self.directories):
            directory = place.parent
            self.show(place, f"{self.name(path)} imports {parts[0]}")
        else:
            self.missing.append((path, statement))
            place, strength = self.near(parts[0]), Strength.ABSENT
            if place is None or place.parent != self.directory:
                self.unread.add(parts[0])
                return
            directory = place.parent
        above = [*filter(None, parts)]
        files = modules.files(directory, above)
        for name in statement.names:
            files += modules.files(directory, (*above, name))
        if not files and not statement.level:
            self.unread.add(above[0])
        for file in files:
            if file not in self.files:
                self.queue[file] = max(strength, self.queue.get(file, strength))

    def search(self, paths: Iterable[str]) -> None:
        """Add directories to those that the ranks search."""
        for text in paths:
            path = self.on_host(Path(os.path.normpath(self.directory / text)))
            if modules.is_directory(path) and not modules.is_system(path):
                self.add_directory(path)
            elif modules.is_file(path) or modules.is_system(path) or not self.is_visible(path):
                # An archive, a directory of the image, or one that only the nodes have.
                self.doubt = self.doubt or f"what {path} holds for the ranks is not known here"

    def add_directory(self, path: Path) -> None:
        """Search a directory, too, which may hold what was missing."""
        if path not in self.directories and len(self.directories) < _MOST_DIRECTORIES:
            self.directories.append(path)
            missing, self.missing = self.missing, []
            for again in missing:
                self.enqueue(*again)

    def is_visible(self, path: Path) -> bool:
        """Return whether the ranks see a path under its own name, without a further bind."""
        bound = (Path(bind.source) for bind in self.binds)
        return modules.is_below(path, (*self.visible, *bound, *self.shown))

    def on_host(self, path: Path) -> Path:
        """Return what of the host the ranks see at a path; the path itself if nothing is bound."""
        fitting = [bind for bind in self.binds if path.is_relative_to(bind.target)]
        nearest = max(fitting, key=lambda bind: len(bind.target), default=None)
        return Path(nearest.source) / path.relative_to(nearest.target) if nearest else path

    def near(self, name: str) -> Path | None:
        """Return where a module is that the ranks do not find."""
        if name in self.known or name in sys.stdlib_module_names:
            return None
        if name not in self.nearby and len(self.nearby) < _MOST_NAMES:
            self.nearby[name] = modules.find_elsewhere(
                name, self.script.parent, self.directory, self.directories
            )
        return self.nearby.get(name)

    def show(self, place: Path, reason: str) -> None:
        """Note the directory of a module if the ranks would not see it."""
        for path in (place, Path(os.path.realpath(place))):
            wanted = path if Path.home().is_relative_to(path.parent) else path.parent
            if not (self.is_visible(path) or modules.is_system(wanted)):
                self.shown[wanted] = reason

    def name(self, path: Path) -> str:
        """Return how messages name a file."""
        directory = self.directory
        return str(path.relative_to(directory)) if path.is_relative_to(directory) else str(path)

    def needed(self) -> Iterator[Import]:
        """Yield the modules that the Python of the ranks must have, each by its surest import."""
        names: set[str] = set()
        for path, statement in sorted(self.missing, key=lambda each: -each[1].strength):
            name = statement.module.partition(".")[0]
            if name not in names and statement.strength > Strength.OPTIONAL:
                names.add(name)
                place = self.near(name)
                yield Import(
                    name=name,
                    file=self.name(path),
                    line=statement.line,
                    is_certain=statement.strength is Strength.CERTAIN,
                    elsewhere=str(place.parent) if place else "",
                    within=".".join((statement.module, *statement.names[:1])),
                )

    def source(self) -> Source:
        """Return what was read, of all files together."""
        files = {self.name(path): file for path, file in self.files.items() if file}
        imports = [
            (name, path, statement.strength)
            for path, file in files.items()
            for statement in file.imports
            for name in statement.members
        ]
        own = {name for name, path, _ in imports if path == self.name(self.script)}
        options = {option.flag: option for file in files.values() for option in file.options}
        return Source(
            python=True,
            imports=_sorted(name for name, _, _ in imports),
            calls=_sorted(name for file in files.values() for name in file.calls),
            options=tuple(options.values()),
            constructions=tuple(made for file in files.values() for made in file.constructions),
            certain=_sorted(name for name, _, how in imports if how is Strength.CERTAIN),
            packages=_sorted(self.unread - sys.stdlib_module_names),
            texts=_sorted(text for file in files.values() for text in file.texts),
            where={name: path for name, path, _ in imports if name not in own},
            needed=tuple(self.needed()),
            directories=tuple(Shown(str(path), reason) for path, reason in self.shown.items()),
            doubt=self.doubt,
        )


def _parse(path: Path, data: bytes, *, is_main: bool = False) -> PythonFile | None:
    """Return what a file shows; None if it is no Python, too large, or broken."""
    if len(data) > _MOST_FILE or not (path.suffix == ".py" or _SHEBANG.match(data)):
        return None
    file = PythonFile(str(path), is_main)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # The parser warns of "\d", on standard error.
            file.read(ast.parse(data))
    # Broken or newer syntax, NUL bytes and unknown encodings, and depth.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return file


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def _bytes(path: Path, most: int) -> bytes | None:
    """Return the first bytes of a regular file; None if it cannot be read."""
    try:
        with open_regular(path) as stream:
            return stream.read(most)
    except OSError:
        return None
