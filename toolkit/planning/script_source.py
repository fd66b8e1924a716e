"""Read a training script without running it: its imports, its calls and its options."""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from toolkit.files import open_regular, read_bytes
from toolkit.model.code import ScriptFile
from toolkit.model.source import Construction, Option, Source

_MOST_SCRIPT = 16 << 20  # bytes of a script that is hashed
# Modules of the user that are read; more of them do not make the choice of a launcher better.
_MOST_FILES = 50
# Variables by which a script learns which of the ranks it is.
_RANK_TEXT = re.compile(
    r"(?:SLURM|OMPI|PMIX?|MV2|PALS|HOROVOD|FLUX)_[A-Z_]{1,40}\Z|"
    r"(?:(?:LOCAL_|NODE_|GROUP_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_ADDR|INIT_METHOD|TF_CONFIG)\Z"
)
# Names of shared objects in an ELF are strings that end with a NUL byte.
_LIBMPI = re.compile(rb"\0lib(?:mpi|mpich|mpi_cxx|mpicxx|mpi_mpifh)\.so(?:\.\d+)?\0")
_SHEBANG = re.compile(rb"#![^\n]{0,200}python[\d.]*\s")
_LONGEST_SHEBANG = 256  # bytes, as Linux reads them
_SWITCHES = ("store_true", "store_false", "store_const", "count", "help", "version", "append_const")


def read(path: Path, *roots: Path) -> Source:
    """Read a script and the modules of the user that it imports, as far as they can be parsed.

    Args:
        path: of the script.
        roots: directories that are searched for its modules, after the script's own.
    """
    script = _parsed(path)
    if script is None:
        return Source(imports=("libmpi",)) if _links_mpi(path) else Source()
    places = tuple(dict.fromkeys((path.parent, *roots)))
    parts: dict[Path, Source] = {}
    unread: set[str] = set()
    todo = [(path, script)]
    while todo:
        file, tree = todo.pop(0)
        parts[file] = module_source(tree)
        for module in _local_modules(tree, file, places):
            known = {*parts, *(other for other, _ in todo)}
            if module in known:
                continue
            parsed = _parsed(module) if len(known) < _MOST_FILES else None
            if parsed is not None:
                todo.append((module, parsed))
            else:
                unread.add(module.stem)
    where = {name: _shown(file, places) for file, part in parts.items() for name in part.imports}
    own = parts[path]
    return Source(
        python=True,
        imports=_sorted(name for part in parts.values() for name in part.imports),
        calls=_sorted(name for part in parts.values() for name in part.calls),
        options=tuple(
            {option.flag: option for part in parts.values() for option in part.options}.values()
        ),
        constructions=tuple(made for part in parts.values() for made in part.constructions),
        certain=_sorted(name for part in parts.values() for name in part.certain),
        packages=_sorted({*_packages(parts.values(), places), *unread}),
        texts=_sorted(text for part in parts.values() for text in part.texts),
        where={name: file for name, file in where.items() if name not in own.imports},
    )


def _shown(file: Path, places: Iterable[Path]) -> str:
    """Return the path of a module below the directory that it was found in."""
    return str(next((file.relative_to(at) for at in places if file.is_relative_to(at)), file))


def _packages(parts: Iterable[Source], places: Iterable[Path]) -> set[str]:
    names = {name.partition(".")[0] for part in parts for name in part.imports}
    return {
        name
        for name in names - {"", *sys.stdlib_module_names}  # "" for relative imports
        if not any((at / name).is_dir() or (at / f"{name}.py").is_file() for at in places)
    }


def script_file(path: Path) -> ScriptFile | None:
    """Return a script's path and hash; None if it cannot be read or is too large to be a script."""
    try:
        data = read_bytes(path, _MOST_SCRIPT)
    except OSError:
        return None
    return ScriptFile(path=str(path), sha256=hashlib.sha256(data).hexdigest())


def _parsed(path: Path) -> ast.Module | None:
    """Parse a file whose name or first line (``#!/usr/bin/env python3``) says that it is Python."""
    try:
        with open_regular(path) as stream:
            if path.suffix != ".py" and not _SHEBANG.match(stream.read(_LONGEST_SHEBANG)):
                return None
            stream.seek(0)
            return ast.parse(stream.read(_MOST_SCRIPT))
    except (OSError, SyntaxError, ValueError):  # Python reports it, with the line.
        return None


def _links_mpi(path: Path) -> bool:
    """Return whether a compiled program names an MPI library among those that it needs."""
    try:
        with open_regular(path) as stream:
            data = stream.read(_MOST_SCRIPT)
    except OSError:
        return False
    return data.startswith(b"\x7fELF") and _LIBMPI.search(data) is not None


def _local_modules(tree: ast.Module, file: Path, roots: Iterable[Path]) -> list[Path]:
    """Return the files of the user that a module imports, by absolute and by relative names."""
    wanted = [(root, name) for name, _ in _imported(tree) for root in roots]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and 0 < node.level <= len(file.parents):
            base, name = file.parents[node.level - 1], node.module or ""
            wanted += [(base, name), *((base, f"{name}.{alias.name}") for alias in node.names)]
    files = dict.fromkeys(
        path
        for root, name in wanted
        if (parts := [part for part in name.split(".") if part])
        for place in (root.joinpath(*parts[:-1]), root.joinpath(*parts))
        for path in (place.with_suffix(".py"), place / "__init__.py")
        if place != root and path.is_file()
    )
    return list(files)


def module_source(tree: ast.Module) -> Source:
    """Return the imports, calls and options of one module."""
    imported = list(_imported(tree))
    meaning = {alias: name for name, alias in imported}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return Source(
        python=True,
        imports=_sorted(name for name, _ in imported),
        calls=_sorted(
            name
            for called in (*(node.func for node in calls), *_decorators(tree))
            if (name := _dotted(called, meaning))
        ),
        options=tuple(option for node in calls if (option := _option(node))),
        constructions=tuple(made for node in calls if (made := _construction(node, meaning))),
        certain=_sorted(name for name, _ in _imported(_statements(tree))),
        texts=_sorted(_texts(tree)),
    )


def _statements(tree: ast.Module) -> ast.Module:
    """Return the imports of a module that every run executes."""
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    return ast.Module(body=[*imports], type_ignores=[])


def _texts(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if _RANK_TEXT.match(node.value):
                yield node.value
        elif isinstance(node, ast.Assign) and _sets_local_address(node):
            yield "MASTER_ADDR=localhost"


def _sets_local_address(node: ast.Assign) -> bool:
    """Return whether a statement is ``os.environ["MASTER_ADDR"] = "localhost"``."""
    return (
        isinstance(node.value, ast.Constant)
        and node.value.value in ("localhost", "127.0.0.1")
        and any(
            isinstance(target, ast.Subscript)
            and isinstance(target.slice, ast.Constant)
            and target.slice.value == "MASTER_ADDR"
            for target in node.targets
        )
    )


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each imported name and its alias in the module, also within functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, alias.asname or alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            module = "." * node.level + node.module
            yield module, module
            for alias in node.names:
                yield f"{module}.{alias.name}", alias.asname or alias.name


def _decorators(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the decorators of functions and classes, since Python calls them too."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from node.decorator_list


def _dotted(node: ast.expr, meaning: dict[str, str]) -> str:
    """Return ``mp.spawn`` as ``torch.multiprocessing.spawn``; empty for an unnamed expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return parts[-1] if parts else ""
    return ".".join([meaning.get(node.id, node.id), *parts])


def _option(call: ast.Call) -> Option | None:
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"):
        return None
    words = [
        word.value
        for word in call.args
        if isinstance(word, ast.Constant) and isinstance(word.value, str)
    ]
    flag = next((word for word in words if word.startswith("--")), None)
    action = next((key.value for key in call.keywords if key.arg == "action"), None)
    switch = isinstance(action, ast.Constant) and action.value in _SWITCHES
    return Option(flag=flag, takes_value=not switch) if flag else None


def _construction(call: ast.Call, meaning: dict[str, str]) -> Construction | None:
    """Return the call of an imported class; None for another call."""
    name = _dotted(call.func, meaning)
    if "." not in name or not name.rpartition(".")[2][:1].isupper():
        return None
    named = [key for key in call.keywords if key.arg]
    return Construction(
        name=name,
        line=call.lineno,
        keywords={key.arg or "": _constant(key.value) for key in named},
        is_whole=not call.args and len(named) == len(call.keywords),
    )


def _constant(node: ast.expr) -> int | str | None:
    """Return a number or a text that is written out; None for another expression."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    is_known = isinstance(value, int | str) and not isinstance(value, bool)
    return value if is_known else None


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))
