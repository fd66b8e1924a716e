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
from functools import lru_cache
from itertools import islice
from pathlib import Path

from toolkit import git
from toolkit.files import open_regular
from toolkit.model.case import Case, Import, Source
from toolkit.python_file import ImportStatement, PythonFile

_MOST_SCRIPT = 16 << 20  # bytes of a script that is hashed
_MOST_FILE = 1 << 20  # bytes of a file that is parsed; larger ones are generated
_MOST_BYTES = 2 << 20  # of all files: a second of parsing
_MOST_FILES = 200
_MOST_NAMES = 200  # modules that are looked for where the ranks do not search
_SHEBANG = re.compile(rb"#![^\n]{0,200}python[\d.]*\s")
# Names of shared objects in an ELF are strings that end with a NUL byte.
_LIBMPI = re.compile(rb"\0lib(?:mpi|mpich|mpi_cxx|mpicxx|mpi_mpifh)\.so(?:\.\d+)?\0")
_MOST_ENTRIES = 5000  # of a directory that is listed
_COMPILED = (".so", ".pyc", ".pyx")
_BESIDE = ("", "src", "lib", "python")  # where people keep modules of their own
_LEVELS = 5  # of directories, from that of the script up
# What an image has itself: nothing of the host is put over it.
_SYSTEM = (
    *("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/opt", "/proc", "/sys", "/dev"),
    *("/run", "/boot", "/var/lib"),
)
# Options of Python, and how many words each is.
_OPTIONS = {**dict.fromkeys(("-u", "-B", "-O", "-s", "-E"), 1), "-W": 2, "-X": 2}


def python_command(
    words: Sequence[str],
) -> tuple[tuple[str, ...], str, str, tuple[str, ...]] | None:
    """Return the options, the script, the module and the arguments of a command.

    It is ``python [OPTION...] SCRIPT|-m MODULE [ARGUMENT...]``; return None for any other.
    """
    if not words or not is_python(words[0]):
        return None
    start = 1
    while words[start : start + 1] and words[start] in _OPTIONS:
        start += _OPTIONS[words[start]]
    options, rest = tuple(words[1:start]), tuple(words[start:])
    if len(rest) > 1 and rest[0] == "-m":
        return options, "", rest[1], rest[2:]
    is_script = bool(rest) and rest[0].endswith(".py") and not rest[0].startswith("-")
    return (options, rest[0], "", rest[1:]) if is_script else None


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
        root = directory if case.job.python_module else None
        return _read(case, Path(target.folder) / target.name, root)
    command = python_command((target.script, *case.job.arguments))
    if command is None:
        return Source()
    _, name, module, _ = command
    script = module_file(module, directory) if module else directory / name
    source = _read(case, script, directory if module else None) if script else Source()
    # No launcher is chosen by what a program runs.
    return Source(needed=source.needed, directories=source.directories, doubt=source.doubt)


def _read(case: Case, script: Path, root: Path | None = None) -> Source:
    """Read a program, whose modules Python searches first in one directory.

    It is where the script really is, behind links, or for a module the working directory.
    """
    root = root or Path(os.path.realpath(script)).parent
    data = _bytes(script, _MOST_SCRIPT + 1)
    if data is None:
        return Source()
    sha256 = hashlib.sha256(data).hexdigest() if len(data) <= _MOST_SCRIPT else ""
    file = _parse(script, data, is_main=True)
    if file is None:
        is_mpi = data.startswith(b"\x7fELF") and _LIBMPI.search(data)
        return Source(imports=("libmpi",) if is_mpi else (), sha256=sha256)
    _entries.cache_clear()
    reader = _Reader(case, script, root)
    packages = script.relative_to(root).parts[:-1] if script.is_relative_to(root) else ()
    reader.queue = dict.fromkeys(module_files(root, packages), True)
    reader.add(script, file, is_certain=True)
    reader.follow()
    reader.follow_nearby()
    return reader.source()._replace(sha256=sha256)


class _Reader:
    """Follows the imports of a program.

    Attributes:
        directories: that the ranks search, in their order.
        queue: files that are still to be read, and whether every run imports them.
        files: what each file shows; None: it cannot be read.
        size: bytes of the files.
        missing: the imports that no file of the ranks satisfies, and their files.
        nearby: modules that are only where a changed search path may lead.
        unread: packages and modules that are imported, and of which no file was read.
        shown: directories that the ranks would not see, and what for.
        doubt: why imports may find modules that cannot be foreseen; empty: there is no reason.
    """

    def __init__(self, case: Case, script: Path, root: Path) -> None:
        self.script, self.directory = script, Path(case.target.cwd)
        self.known = {*(case.python.modules if case.python else ()), *sys.stdlib_module_names}
        trees = work_trees(Path(case.target.folder), self.directory)
        own = (case.target.cwd, case.target.folder, case.run)
        self.visible = [*map(Path, (*own, *trees, *(bind.source for bind in case.binds)))]
        self.directories = [root]
        self.queue: dict[Path, bool] = {}
        self.files: dict[Path, PythonFile | None] = {}
        self.size = 0
        self.missing: list[tuple[Path, ImportStatement]] = []
        self.nearby: set[str] = set()
        self.unread: set[str] = set()
        self.shown: dict[Path, str] = {}
        is_packages = any("-packages" in f"{bind.source}:{bind.target}" for bind in case.binds)
        self.doubt = "a directory of packages is bound by --bind" if is_packages else ""
        search = (case.site.environment | case.job.env).get("PYTHONPATH", "")
        for text in filter(None, search.split(":")):
            path = Path(os.path.normpath(self.directory / text))
            if os.path.isdir(path) and not _is_system(path):
                self.directories.append(path)
            else:  # An archive, a directory of the image, or one that only the nodes have.
                self.doubt = f"what {path} holds for the ranks is not known here"

    def follow(self) -> None:
        """Read what is imported, the certain first, so that each file is read once."""
        while self.queue and len(self.files) < _MOST_FILES and self.size <= _MOST_BYTES:
            path = max(self.queue, key=self.queue.__getitem__)
            is_certain = self.queue.pop(path)
            data = _bytes(path, _MOST_FILE + 1) or b""
            self.size += len(data)
            self.add(path, _parse(path, data), is_certain=is_certain)
        self.unread |= {path.stem for path in self.queue}

    def follow_nearby(self) -> None:
        """Search for what is missing where a program that changes the search path may find it.

        Of any other program, its modules there only tell how it is started.
        """
        doubt, shown = self.doubt, dict(self.shown)
        places = [*_nearby(self.script.parent, self.directory)]
        for path, statement in self.missing[:_MOST_NAMES]:
            name = statement.module.partition(".")[0]
            place = None if name in self.known else find_module(name, places)
            statement = statement._replace(is_certain=statement.is_certain and bool(doubt))
            if place is not None and self.enqueue(path, statement, place):
                self.unread.discard(name)
                self.nearby.add(name)
        self.follow()
        if not doubt:
            self.doubt, self.shown, self.nearby = doubt, shown, set()

    def add(self, path: Path, file: PythonFile | None, *, is_certain: bool) -> None:
        """Add a file that was read, and follow its imports."""
        self.files[path] = file
        if file is None:
            self.unread.add(path.stem)
            return
        self.doubt = self.doubt or file.doubt
        for each in file.imports:
            statement = each._replace(is_certain=is_certain and each.is_certain)
            top = each.module.partition(".")[0]
            place = find_module(top, self.directories) if top and not each.level else None
            if each.level or place:
                self.enqueue(path, statement, place)
            elif top != "__main__":
                self.unread.add(top)
                self.missing.append((path, statement))

    def enqueue(self, path: Path, statement: ImportStatement, place: Path | None) -> bool:
        """Have the files read that Python runs for an import of a file; return whether it has code.

        Args:
            path: of the file.
            statement: the import.
            place: of the module that it names first; None: it is relative to the file.
        """
        above = [*filter(None, statement.module.split("."))]
        if place is not None:
            directory = place.parent
        elif statement.level <= len(path.parents):
            directory = path.parents[statement.level - 1]
        else:
            return False
        files = module_files(directory, above)
        for name in statement.names:
            files += module_files(directory, (*above, name))
        if place and not files:
            self.unread.add(above[0])
        # A directory may only be called like a package: tensorflow/, with scripts for it.
        is_code = bool(files) or (place is not None and place.is_file())
        if place and (is_code or place.parent in self.directories):
            self.show(place, f"{self.name(path)} imports {above[0]}")
        for file in files:
            if file not in self.files:
                self.queue[file] = statement.is_certain or self.queue.get(file, False)
        return is_code

    def show(self, place: Path, reason: str) -> None:
        """Note the directory of a module if the ranks would not see it."""
        for path in (place, Path(os.path.realpath(place))):
            wanted = path if Path.home().is_relative_to(path.parent) else path.parent
            if not any(map(path.is_relative_to, (*self.visible, *self.shown))):
                self.shown[wanted] = reason

    def name(self, path: Path) -> str:
        """Return how messages name a file."""
        directory = self.directory
        return str(path.relative_to(directory)) if path.is_relative_to(directory) else str(path)

    def needed(self) -> tuple[Import, ...]:
        """Return the modules that the Python of the ranks must have, each by its first import."""
        needed: dict[str, Import] = {}
        for path, statement in self.missing:
            name = statement.module.partition(".")[0]
            if statement.is_certain and name not in needed and name not in self.nearby:
                within = ".".join((statement.module, *statement.names[:1]))
                needed[name] = Import(name, self.name(path), statement.line, within)
        return tuple(needed.values())

    def source(self) -> Source:
        """Return what was read, of all files together."""
        files = {self.name(path): file for path, file in self.files.items() if file}
        imports = [
            (name, path, statement.is_certain)
            for path, file in files.items()
            for statement in file.imports
            for name in statement.members
        ]
        own = {name for name, path, _ in imports if path == self.name(self.script)}
        return Source(
            python=True,
            imports=_sorted(name for name, _, _ in imports),
            calls=_sorted(name for file in files.values() for name in file.calls),
            options={
                name: takes for file in files.values() for name, takes in file.options.items()
            },
            constructions=tuple(made for file in files.values() for made in file.constructions),
            certain=_sorted(name for name, _, is_certain in imports if is_certain),
            packages=_sorted(self.unread - sys.stdlib_module_names),
            texts=_sorted(text for file in files.values() for text in file.texts),
            where={name: path for name, path, _ in imports if name not in own},
            needed=self.needed(),
            directories={str(path): reason for path, reason in self.shown.items()},
            doubt=self.doubt,
        )


def _parse(path: Path, data: bytes, *, is_main: bool = False) -> PythonFile | None:
    """Return what a file shows; None if it is no Python, too large, or broken."""
    if len(data) > _MOST_FILE or not (path.suffix == ".py" or _SHEBANG.match(data)):
        return None
    file = PythonFile(is_main)
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


# Where modules are, as Python finds them; none is imported. A path that cannot be examined is none:
# ``Path.is_file`` would raise for some of them.


def module_file(name: str, directory: Path) -> Path | None:
    """Return the file that ``python -m NAME`` runs; None if the directory does not have it."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    path = directory.joinpath(*parts)
    main, file = path / "__main__.py", path.with_name(f"{path.name}.py")
    if os.path.isfile(main):
        return main
    return file if file in module_files(directory, parts) else None


def work_trees(folder: Path, directory: Path) -> dict[str, str]:
    """Return the git work trees of the script's directory and of the working directory -> why."""
    trees = {_work_tree(folder): "the script", _work_tree(directory): "the working directory"}
    return {str(tree): f"the git work tree of {name}" for tree, name in trees.items() if tree}


def module_files(directory: Path, parts: Iterable[str]) -> list[Path]:
    """Return the files that Python runs for the module ``a.b.c`` of a directory, in order."""
    files = []
    for part in parts:
        package, file = directory / part / "__init__.py", directory / f"{part}.py"
        if os.path.isfile(package):
            files.append(package)
        elif os.path.isfile(file):
            return [*files, file]
        directory = directory / part
    return files


def find_module(name: str, directories: Iterable[Path]) -> Path | None:
    """Return the place of a module; a directory without ``__init__.py`` comes last."""
    bare = None
    for directory in directories:
        package, file = directory / name, directory / f"{name}.py"
        if os.path.isfile(package / "__init__.py"):
            return package
        if os.path.isfile(file):
            return file
        for entry in _entries(directory):
            if entry.endswith(_COMPILED) and entry.partition(".")[0] == name:
                return directory / entry
        if bare is None and os.path.isdir(package):
            bare = package
    return bare


@lru_cache
def _entries(directory: Path) -> list[str]:
    """Return the names of what is in a directory, as far as it is listed."""
    try:
        with os.scandir(directory) as names:
            return [entry.name for entry in islice(names, _MOST_ENTRIES)]
    except (OSError, ValueError):
        return []


def _nearby(folder: Path, directory: Path) -> Iterator[Path]:
    """Yield where people keep modules that the ranks do not search by themselves.

    Args:
        folder: the directory of the script.
        directory: the working directory of the ranks.
    """
    home = Path.home()
    for start in (directory, folder):
        top = _work_tree(start) or Path("/")
        for place in (start, *start.parents)[:_LEVELS]:
            if place.is_relative_to(top) and not (home.is_relative_to(place) or _is_system(place)):
                yield from (place / name for name in _BESIDE)


def _work_tree(folder: Path) -> Path | None:
    """Return the git work tree of a directory; None for one that is broader than a project."""
    tree = git.top(folder)
    is_broad = tree is None or Path.home().is_relative_to(tree) or _is_system(tree)
    return None if is_broad else tree


def _is_system(path: Path) -> bool:
    """Return whether a path is where images have files of their own."""
    return path == Path("/") or any(path.is_relative_to(place) for place in _SYSTEM)
