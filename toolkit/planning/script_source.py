"""Reads a training script without running it: what it imports, what it calls, which options it defines."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from toolkit.files import open_regular
from toolkit.model.code import ScriptFile
from toolkit.model.source import Option, Source

_MOST_SCRIPT = 16 << 20  # bytes of a script that is hashed
_MOST_FILES = (
    50  # of one's own modules; a script that has more is not told apart better by the rest
)
_SWITCHES = ("store_true", "store_false", "store_const", "count", "help", "version", "append_const")


def read(path: Path) -> Source:
    """A script and the modules beside it that it imports, as far as they can be read; options are the script's own."""
    script = _parsed(path)
    if script is None:
        return Source()
    seen, todo, found = {path}, _beside(script, path.parent), [script]
    while todo and len(seen) < _MOST_FILES:
        module = todo.pop()
        if module in seen:
            continue
        seen.add(module)
        tree = _parsed(module)
        if tree is not None:
            found.append(tree)
            todo += _beside(tree, path.parent)
    parts = [look(tree) for tree in found]
    return Source(
        python=True,
        imports=_sorted(name for part in parts for name in part.imports),
        calls=_sorted(name for part in parts for name in part.calls),
        options=tuple({option.flag: option for part in parts for option in part.options}.values()),
    )


def script_file(path: Path) -> ScriptFile | None:
    """Return a script's path and hash; None if it cannot be read or is too large to be a script."""
    try:
        with open_regular(path) as stream:
            data = stream.read(_MOST_SCRIPT + 1)
    except OSError:
        return None
    if len(data) > _MOST_SCRIPT:
        return None
    return ScriptFile(path=str(path), sha256=hashlib.sha256(data).hexdigest())


def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_bytes()) if path.suffix == ".py" else None
    except (OSError, SyntaxError, ValueError):  # a broken script tells so itself, with the line
        return None


def _beside(tree: ast.Module, folder: Path) -> list[Path]:
    """The files of the script's own modules, among those that it imports."""
    named = {name for name, _ in _imported(tree)}
    parts = {prefix for name in named for prefix in (name, name.rpartition(".")[0]) if prefix}
    places = [folder.joinpath(*name.split(".")) for name in sorted(parts)]
    return [
        path
        for place in places
        for path in (place.with_suffix(".py"), place / "__init__.py")
        if path.is_file()
    ]


def look(tree: ast.Module) -> Source:
    """What one module shows of itself."""
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
    )


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(what was imported, the name that it has in the module), also within functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, alias.asname or alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node.module
            for alias in node.names:
                yield f"{node.module}.{alias.name}", alias.asname or alias.name


def _decorators(tree: ast.Module) -> Iterator[ast.expr]:
    """What is put before a function or class by ``@``, which calls it too."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from node.decorator_list


def _dotted(node: ast.expr, meaning: dict[str, str]) -> str:
    """``mp.spawn`` as ``torch.multiprocessing.spawn``; empty for what has no name."""
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


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))
