"""The one reader of a user's program: what it imports, calls and defines. Nothing is run.

Each file is read in one pass over its syntax tree, and its imports are followed through the files
of the user, as Python would follow them. What none of these brings, the Python of the ranks must
have.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import NamedTuple

from toolkit import git
from toolkit.files import open_regular
from toolkit.model.case import Case, Construction, Import, Source

_MOST_SCRIPT = 16 << 20  # bytes of a script that is hashed
_MOST_FILE = 1 << 20  # bytes of a file that is parsed; larger ones are generated
_MOST_BYTES = 2 << 20  # of all files: a second of parsing
_MOST_FILES = 200
_MOST_NAMES = 200  # modules that are looked for where the ranks do not search
_MOST_LISTED = 1 << 20  # bytes of a directory that is listed there: some ten thousand data files
_SHEBANG = rb"#![^\n]{0,200}python[\d.]*\s"
# Names of shared objects in an ELF are strings that end with a NUL byte.
_LIBMPI = rb"\0lib(?:mpi|mpich|mpi_cxx|mpicxx|mpi_mpifh)\.so(?:\.\d+)?\0"
# Endings of modules; compiled ones are of the ranks' Python, which may be any.
_CPUS = ("x86_64", "aarch64", "powerpc64le")
_ENDINGS = [
    *(".py", ".so", ".pyc", ".pyx", ".abi3.so"),
    *(f".cpython-3{minor}-{cpu}-linux-gnu.so" for minor in range(6, 20) for cpu in _CPUS),
]
_BESIDE = ("", "src", "lib", "python")  # where people keep modules of their own
_LEVELS = 5  # of directories, from that of the script up
# What an image has itself: nothing of the host is put over it.
_SYSTEM = (
    *("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/opt", "/proc", "/sys", "/dev"),
    *("/run", "/boot", "/var/lib"),
)
# Options of Python, and how many words each is.
_OPTIONS = {**dict.fromkeys(("-u", "-B", "-O", "-s", "-E"), 1), "-W": 2, "-X": 2}
# Variables by which a script learns which of the ranks it is.
_RANK_TEXT = (
    r"(?:SLURM|OMPI|PMIX?|MV2|PALS|HOROVOD|FLUX)_[A-Z_]{1,40}\Z|"
    r"(?:(?:LOCAL_|NODE_|GROUP_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_ADDR|INIT_METHOD|TF_CONFIG)\Z"
)
_LOCALHOST = ("localhost", "127.0.0.1", "tcp://localhost:", "tcp://127.0.0.1:")
_SWITCHES = ("store_true", "store_false", "store_const", "count", "help", "version", "append_const")
_BLOCKS = (ast.mod, ast.stmt, ast.ExceptHandler)
# What may make a module available whose place cannot be foreseen.
_CHANGES = {
    *("sys.path", "sys.modules", "sys.meta_path", "sys.path_hooks", "exec"),
    *("site.addsitedir", "pyximport.install", "importlib.import_module"),
    "importlib.util.spec_from_file_location",
}


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
    _finder.cache_clear()
    sha256 = hashlib.sha256(data).hexdigest() if len(data) <= _MOST_SCRIPT else ""
    program = _Program(case, script, root)
    if not program.add(script, data, is_certain=True):
        is_mpi = data.startswith(b"\x7fELF") and re.search(_LIBMPI, data)
        return Source(imports=("libmpi",) if is_mpi else (), sha256=sha256)
    packages = script.relative_to(root).parts[:-1] if script.is_relative_to(root) else ()
    program.queue |= {Path(each.origin): True for each in _specs(packages, [root]) if each.origin}
    program.follow()
    if program.doubt:
        program.search_nearby()
    return program.source()._replace(sha256=sha256)


class _Statement(NamedTuple):
    """An import statement, or one name of ``import a, b``.

    Attributes:
        file: that it is in.
        line: of the statement.
        is_certain: it runs whenever the file is imported, and its failure ends the program: it is
            in no function, ``try``, condition or loop.
        module: that it names, with dots; empty in ``from . import x``.
        names: what is taken from it; empty for ``import module``.
        level: dots before the name.
    """

    file: Path
    line: int
    is_certain: bool
    module: str
    names: tuple[str, ...] = ()
    level: int = 0

    @property
    def top(self) -> str:
        """The module or package that is searched for."""
        return self.module.partition(".")[0]

    @property
    def members(self) -> tuple[str, ...]:
        """The full names of what is imported; none of a relative import."""
        whole = (self.module, *(f"{self.module}.{name}" for name in self.names))
        return () if self.level else whole

    def specs(self, directories: Sequence[Path]) -> list[ModuleSpec]:
        """Return what Python imports for it, as far as the directories have it."""
        if self.level:
            directories = [*self.file.parents][self.level - 1 : self.level]
        above = [*filter(None, self.module.split("."))]
        specs = _specs(above, directories)
        for name in self.names:
            specs += _specs((*above, name), directories)[len(above) :]
        return specs


class _Program:
    """A program, as far as its files have been read by following its imports.

    Attributes:
        directories: that the ranks search, in their order.
        queue: files that are still to be read, and whether every run imports them.
        files: that were read.
        size: bytes of the files.
        imports: all import statements; ``missing``: those that no file of the ranks satisfies.
        unread: packages and modules that the user's files are, and of which no file was read.
        shown: directories that the ranks would not see, and what for.
        doubt: why imports may find modules that cannot be foreseen; empty: there is no reason.
        meaning: what names of the file that is read stand for: ``mp`` -> ``torch.multiprocessing``.
    """

    def __init__(self, case: Case, script: Path, root: Path) -> None:
        self.script, self.directory = script, Path(case.target.cwd)
        self.known = {*(case.python.modules if case.python else ()), *sys.stdlib_module_names}
        trees = work_trees(Path(case.target.folder), self.directory)
        own = (case.target.cwd, case.target.folder, case.run)
        self.visible = [*map(Path, (*own, *trees, *(bind.source for bind in case.binds)))]
        self.directories = [root]
        self.queue: dict[Path, bool] = {}
        self.files: set[Path] = set()
        self.size = 0
        self.imports: list[_Statement] = []
        self.missing: list[_Statement] = []
        self.unread: set[str] = set()
        self.shown: dict[Path, str] = {}
        self.calls: set[str] = set()
        self.options: dict[str, bool] = {}
        self.constructions: list[Construction] = []
        self.texts: set[str] = set()
        self.meaning: dict[str, str] = {}
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
            if not self.add(path, data, is_certain=is_certain):
                self.unread.add(path.stem)
        self.unread |= {path.stem for path in self.queue}

    def search_nearby(self) -> None:
        """Search for what is missing where a program that changes the search path may find it."""
        for place in _nearby(self.script.parent, self.directory):
            if os.path.isdir(place) and os.stat(place).st_size < _MOST_LISTED:
                self.directories.append(place)
        missing, self.missing = self.missing, []
        for statement in missing:
            if statement.top in self.known or len(missing) > _MOST_NAMES:
                self.missing.append(statement)
            else:
                self.resolve(statement)
        self.follow()

    def resolve(self, statement: _Statement) -> None:
        """Have the files read that Python runs for an import, as far as ranks find any."""
        specs = statement.specs(self.directories)
        files = [Path(spec.origin) for spec in specs if spec.loader and spec.origin]
        for file in files:
            if file.suffix != ".py":  # compiled
                self.unread.add(file.name.partition(".")[0])
            elif file not in self.files:
                self.queue[file] = statement.is_certain or self.queue.get(file, False)
        if specs and not statement.level:
            # The directory of a package, or the file of a module.
            place = [*(specs[0].submodule_search_locations or ()), specs[0].origin or ""][0]
            self.show(Path(place), f"{self.name(statement.file)} imports {statement.top}")
            self.unread |= set() if files else {statement.top}  # a directory of that name
        elif not statement.level and statement.top != "__main__":
            self.missing.append(statement)

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

    def add(self, path: Path, data: bytes, *, is_certain: bool) -> bool:
        """Read a file in one pass over its syntax tree, and follow its imports.

        Return False if it is no Python, too large, or broken.
        """
        self.files.add(path)
        tree = _parse(path, data)
        if tree is None:
            return False
        self.meaning = {}
        first = len(self.imports)
        called: list[ast.expr] = []
        nodes: list[tuple[ast.AST, bool]] = [(tree, True)]
        while nodes:
            node, is_run = nodes.pop()
            is_main = path == self.script
            within = is_run and (not isinstance(node, _BLOCKS) or _is_always_run(node, is_main))
            children = [child for child in ast.iter_child_nodes(node) if child._fields]
            nodes += [(child, within) for child in reversed(children)]
            self.visit(node, path, is_run)
            called += [node.func] if isinstance(node, ast.Call) else []
            called += getattr(node, "decorator_list", ())  # Python calls them, too.
        # A name may be imported below the function that uses it.
        self.calls |= {name for each in called if (name := self.full_name(each))}
        for statement in self.imports[first:]:
            self.resolve(statement._replace(is_certain=is_certain and statement.is_certain))
        return True

    def visit(self, node: ast.AST, path: Path, is_certain: bool) -> None:
        """Note what one node imports, assigns or names."""
        match node:
            case ast.Import(names=names):
                for alias in names:
                    statement = _Statement(path, node.lineno, is_certain, alias.name)
                    self.imports.append(statement)
                    self.meaning[alias.asname or alias.name] = alias.name
            case ast.ImportFrom(module=module, names=names, level=level):
                taken = tuple(alias.name for alias in names)
                statement = _Statement(path, node.lineno, is_certain, module or "", taken, level)
                self.imports.append(statement)
                for alias in names:
                    name = f"{module}.{alias.name}" if module else alias.name
                    self.meaning[alias.asname or alias.name] = name
            case ast.Constant(value=str(text)) if re.match(_RANK_TEXT, text):
                self.texts.add(text)
            case (
                ast.keyword(arg="MASTER_ADDR" | "init_method", value=value)
                | ast.Assign(
                    targets=[ast.Subscript(slice=ast.Constant(value="MASTER_ADDR"))], value=value
                )
            ) if _is_localhost(value):  # where ranks of other nodes are not
                self.texts.add("MASTER_ADDR=localhost")
            case ast.Name() | ast.Attribute() if (name := self.full_name(node)) in _CHANGES:
                self.doubt = self.doubt or f"only a run shows what the script does with {name}"
            case ast.Call():
                self.call(node)

    def call(self, node: ast.Call) -> None:
        """Note the option of argparse or the object that a call makes."""
        name = self.full_name(node.func)
        head, _, last = name.rpartition(".")
        is_made = bool(head) and last[:1].isupper()
        if not is_made and last != "add_argument":
            return
        named = {key.arg: _constant(key.value) for key in node.keywords if key.arg}
        if last == "add_argument":
            words = [word.value for word in node.args if isinstance(word, ast.Constant)]
            flags = [word for word in words if isinstance(word, str) and word.startswith("--")]
            self.options |= dict.fromkeys(flags[:1], named.get("action") not in _SWITCHES)
        else:
            is_whole = not node.args and len(named) == len(node.keywords)
            self.constructions.append(Construction(name, node.lineno, named, is_whole))

    def full_name(self, node: ast.expr) -> str:
        """Return ``mp.spawn`` as ``torch.multiprocessing.spawn``; empty if nothing is named."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return parts[-1] if parts else ""
        return ".".join([self.meaning.get(node.id, node.id), *parts])

    def source(self) -> Source:
        """Return what was read, of all files together."""
        named = [(name, each) for each in self.imports for name in each.members]
        own = {name for name, each in named if each.file == self.script}
        needed: dict[str, Import] = {}
        for each in self.missing:
            if each.is_certain:
                within = ".".join((each.module, *each.names[:1]))
                file = self.name(each.file)
                needed.setdefault(each.top, Import(each.top, file, each.line, within))
        return Source(
            python=True,
            imports=_sorted(name for name, _ in named),
            calls=_sorted(self.calls),
            options=self.options,
            constructions=tuple(self.constructions),
            certain=_sorted(name for name, each in named if each.is_certain),
            packages=_sorted(
                {*self.unread, *(each.top for each in self.missing)} - sys.stdlib_module_names
            ),
            texts=_sorted(self.texts),
            where={name: self.name(each.file) for name, each in named if name not in own},
            needed=tuple(needed.values()),
            directories={str(path): reason for path, reason in self.shown.items()},
            doubt=self.doubt,
        )


def _is_always_run(node: ast.AST, is_main: bool) -> bool:
    match node:
        case ast.Module() | ast.ClassDef():
            return True
        case ast.If(
            test=ast.Compare(
                left=ast.Name(id="__name__"),
                ops=[ast.Eq()],
                comparators=[ast.Constant(value="__main__")],
            ),
            orelse=[],
        ):
            return is_main
    return False


def _is_localhost(address: ast.expr) -> bool:
    """Return whether an address, or the beginning of an f-string, is this very machine."""
    match address:
        case (
            ast.JoinedStr(values=[ast.Constant(value=str(text)), *_])
            | ast.Constant(value=str(text))
        ):
            return text.startswith(_LOCALHOST)
    return False


def _constant(node: ast.expr) -> int | str | None:
    """Return a number or a text that is written out; None for another expression."""
    with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        value = ast.literal_eval(node)
        if isinstance(value, int | str) and not isinstance(value, bool):
            return value
    return None


def _parse(path: Path, data: bytes) -> ast.Module | None:
    """Return the syntax of a file; None if it is no Python, too large, or broken."""
    if len(data) > _MOST_FILE or not (path.suffix == ".py" or re.match(_SHEBANG, data)):
        return None
    # Broken or newer syntax, NUL bytes and unknown encodings, and depth.
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The parser warns of "\d", on standard error.
        return ast.parse(data)
    return None


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def _bytes(path: Path, most: int) -> bytes | None:
    try:
        with open_regular(path) as stream:
            return stream.read(most)
    except OSError:
        return None


# Where modules are, as Python finds them; none is imported.


def module_file(name: str, directory: Path) -> Path | None:
    """Return the file that ``python -m NAME`` runs; None if the directory does not have it."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    for names in ((*parts, "__main__"), parts):
        specs = _specs(names, [directory])
        if len(specs) == len(names) and (file := specs[-1].origin) and file.endswith(".py"):
            return Path(file)
    return None


def work_trees(folder: Path, directory: Path) -> dict[str, str]:
    """Return the git work trees of the script's directory and of the working directory -> why."""
    trees = {_work_tree(folder): "the script", _work_tree(directory): "the working directory"}
    return {str(tree): f"the git work tree of {name}" for tree, name in trees.items() if tree}


def _specs(parts: Iterable[str], directories: Iterable[Path | str]) -> list[ModuleSpec]:
    """Return the modules that Python imports for ``a.b.c``, as far as they are there."""
    specs: list[ModuleSpec] = []
    for part in parts:
        places = [spec for each in directories if (spec := _spec(str(each), part))]
        if not places:
            break
        # A directory without ``__init__.py`` comes last.
        specs.append(next((spec for spec in places if spec.loader), places[0]))
        directories = specs[-1].submodule_search_locations or ()
    return specs


def _spec(directory: str, name: str) -> ModuleSpec | None:
    with suppress(OSError):  # of a file server that does not answer, or a loop of links
        return _finder(directory).find_spec(name)
    return None


@lru_cache
def _finder(directory: str) -> FileFinder:
    return FileFinder(directory, (SourceFileLoader, _ENDINGS))


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
    return path == Path("/") or any(path.is_relative_to(place) for place in _SYSTEM)
