"""Read what one module imports, how surely, and what it adds to the search path."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from toolkit.imports.evaluate import Context, evaluate_condition, evaluate_path, format_dotted


class Strength(IntEnum):
    """The strength of an import: how surely it runs, and if its failure ends the program."""

    OPTIONAL = 0  # its failure is handled, or a condition asks for the module first
    POSSIBLE = 1  # it is in a function, a loop or a condition
    CERTAIN = 2


class ImportStatement(NamedTuple):
    """One import statement.

    Attributes:
        module: that it names, with dots; empty in ``from . import x``.
        level: dots before the name.
        names: what is taken from it; empty for ``import module``.
        line: of the statement.
    """

    module: str
    level: int
    names: tuple[str, ...]
    line: int
    strength: Strength


@dataclass
class Scan:
    """The result of reading one module.

    Attributes:
        imports: in the order of the file.
        paths: that it adds to ``sys.path``, as they are written.
        doubt: why its imports may find modules that cannot be foreseen; empty: there is no reason.
    """

    imports: list[ImportStatement] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    doubt: str = ""


# Exceptions of which catching one also catches an import that fails.
_CATCHING = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")
# Python's other exceptions: to catch one catches no failed import. Of a library's nothing is known.
_OTHERS = frozenset(name for name, value in vars(builtins).items() if isinstance(value, type))
# Context managers that swallow no exception.
_HARMLESS = (
    "open",
    "no_grad",
    "inference_mode",
    "catch_warnings",
    "redirect_stdout",
    "redirect_stderr",
    "nullcontext",
    "device",
)
# Words of conditions that ask whether a module is there.
_ASKING = ("find_spec", "available", "installed", "has_", "have_", "modulenotfound", "importerror")
_EXITS = ("sys.exit", "exit", "quit", "os._exit")
_CHANGING = ("site.addsitedir", "addsitedir", "pyximport.install")
_STARTS = ("system", "popen", "Popen", "run", "call", "check_call", "check_output", "main")
_MAKERS = ("install", "setup.py", "build_ext", "protoc", "cmake")
_GROWS = ("append", "insert", "extend")


def scan(tree: ast.Module, context: Context) -> Scan:
    """Read a module.

    Args:
        tree: the module, parsed.
        context: what its expressions may refer to.

    Raises:
        RecursionError: it is nested too deeply.
    """
    reader = _Reader(context)
    reader.block(tree.body, Strength.CERTAIN)
    if not reader.result.doubt and _makes_modules(tree):
        reader.result.doubt = "the script installs or writes modules when it runs"
    return reader.result


@dataclass
class _Reader:
    """Goes through the statements of a module.

    Attributes:
        values: variables that hold a known path or text.
        asked: variables that tell whether a module is there.
    """

    context: Context
    result: Scan = field(default_factory=Scan)
    values: dict[str, str] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)

    def block(self, body: list[ast.stmt], strength: Strength) -> None:
        """Read statements up to one that ends the program."""
        for statement in body:
            self.statement(statement, strength)
            match statement:
                case ast.Raise() | ast.Return():
                    return
                case ast.Expr(value=ast.Call(func=function)) if format_dotted(function) in _EXITS:
                    return

    def statement(self, node: ast.stmt, strength: Strength) -> None:
        """Read one statement and what is in it."""
        match node:
            case ast.Import(names=names):
                self.result.imports += [
                    ImportStatement(alias.name, 0, (), node.lineno, strength) for alias in names
                ]
            case ast.ImportFrom(module=module, names=names, level=level):
                taken = tuple(alias.name for alias in names)
                statement = ImportStatement(module or "", level, taken, node.lineno, strength)
                self.result.imports.append(statement)
            case ast.If():
                self.condition(node, strength)
            case ast.With() | ast.AsyncWith():
                self.block(node.body, min(strength, _within(node)))
            case ast.ClassDef():
                self.block(node.body, strength)
            case _ if isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
                self.attempt(node, strength)  # type: ignore[arg-type]
            case _:  # perhaps a function, a loop or a ``match``
                self.change(node)
                cases = [case.body for case in getattr(node, "cases", ())]
                for body in (getattr(node, "body", ()), getattr(node, "orelse", ()), *cases):
                    self.block(body, min(strength, Strength.POSSIBLE))
        if _renames(node):
            self.result.doubt = "the script changes sys.path under another name"

    def condition(self, node: ast.If, strength: Strength) -> None:
        """Read the branches of an ``if``, the one that is not taken not at all."""
        holds = evaluate_condition(node.test, self.context)
        if holds is None:
            asks = _asks(node.test, self.asked)
            strength = min(strength, Strength.OPTIONAL if asks else Strength.POSSIBLE)
        if holds is not False:
            self.block(node.body, strength)
        if holds is not True:
            self.block(node.orelse, strength)

    def attempt(self, node: ast.Try, strength: Strength) -> None:
        """Read a ``try``: imports that may fail in it are optional."""
        catches = [_catches(handler.type) for handler in node.handlers]
        is_guarded = any(catch is not False for catch in catches)
        self.block(node.body, Strength.OPTIONAL if is_guarded else strength)
        if is_guarded:
            for part in (node.body, *(handler.body for handler in node.handlers)):
                self.asked |= set(_assigned(part))
        for handler, catch in zip(node.handlers, catches, strict=True):
            self.block(
                handler.body,
                min(strength, Strength.POSSIBLE if catch is False else Strength.OPTIONAL),
            )
        self.block(node.orelse, min(strength, Strength.POSSIBLE) if is_guarded else strength)
        self.block(node.finalbody, strength)

    def change(self, node: ast.stmt) -> None:
        """Note what an assignment or a call does to the search path and to known variables."""
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self.assign(target, value, is_added=False)
            case ast.AnnAssign(target=target, value=value):
                self.assign(target, value, is_added=False)
            case ast.AugAssign(target=target, value=value):
                self.assign(target, value, is_added=True)
            case ast.Expr(value=ast.Call() as call):
                self.call(call)

    def assign(self, target: ast.expr, value: ast.expr | None, *, is_added: bool) -> None:
        """Note what a variable holds now, or what is done to the search path."""
        base = target.value if isinstance(target, ast.Subscript) else target
        name = format_dotted(base)
        if value is not None and (name == "sys.path" or (name == "path" and base is not target)):
            self.add(value)
        elif name in ("sys.modules", "sys.meta_path", "sys.path_hooks"):
            self.result.doubt = f"the script changes {name}"
        elif isinstance(target, ast.Name) and value is not None:
            text = None if is_added else evaluate_path(value, self.values, self.context)
            self.values.pop(target.id, None)
            if text is not None:
                self.values[target.id] = text
            if _asks(value, self.asked):
                self.asked.add(target.id)

    def call(self, node: ast.Call) -> None:
        """Note a call that changes where modules are searched."""
        name = format_dotted(node.func)
        head, _, method = name.rpartition(".")
        if head == "sys.path" and method in _GROWS and node.args:
            self.add(node.args[-1])
        elif name in _CHANGING or head in ("sys.meta_path", "sys.path_hooks", "sys.modules"):
            self.result.doubt = f"the script calls {name}"

    def add(self, value: ast.expr) -> None:
        """Note what is added to the search path."""
        match value:
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                for part in parts:
                    self.add(part)
            case ast.BinOp(left=left, op=ast.Add(), right=right) if _is_list(left, right):
                self.add(left)
                self.add(right)
            case ast.Starred(value=inner):
                self.add(inner)
            case _ if format_dotted(value) != "sys.path":
                text = evaluate_path(value, self.values, self.context)
                if text is None:
                    self.result.doubt = "the script adds to sys.path a value that only a run shows"
                else:
                    self.result.paths.append(text)


def _renames(node: ast.stmt) -> bool:
    """Return whether ``sys`` or ``sys.path`` gets another name, under which it could be changed."""
    match node:
        case ast.ImportFrom(module="sys", names=names):
            return any(alias.name in ("path", "modules", "meta_path") for alias in names)
        case ast.Import(names=names):
            return any(a.name == "sys" and a.asname not in (None, "sys") for a in names)
    return False


def _catches(node: ast.expr | None) -> bool | None:
    """Return whether a handler catches an import that fails; None if that is not known."""
    if node is None:
        return True
    if isinstance(node, ast.Tuple):
        answers = [_catches(part) for part in node.elts]
        return True if True in answers else None if None in answers else False
    name = format_dotted(node).rpartition(".")[2]
    if name in _CATCHING:
        return True
    return False if name in _OTHERS else None


def _within(node: ast.With | ast.AsyncWith) -> Strength:
    """Return how sure an import is in the block of a ``with``."""
    for item in node.items:
        used = item.context_expr
        name = format_dotted(used.func if isinstance(used, ast.Call) else used).rpartition(".")[2]
        if name == "suppress" and isinstance(used, ast.Call):
            caught = [_catches(argument) for argument in used.args]
            if any(catch is not False for catch in caught):
                return Strength.OPTIONAL
        elif name not in _HARMLESS:
            return Strength.POSSIBLE
    return Strength.CERTAIN


def _asks(node: ast.expr, asked: set[str]) -> bool:
    """Return whether an expression asks, or knows already, whether a module is there."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name | ast.Attribute):
            name = part.id if isinstance(part, ast.Name) else part.attr
            if name in asked or any(word in name.lower() for word in _ASKING):
                return True
    return False


def _assigned(body: list[ast.stmt]) -> Iterator[str]:
    """Return the variables that statements give a value to."""
    for statement in body:
        if isinstance(statement, ast.Assign):
            yield from (target.id for target in statement.targets if isinstance(target, ast.Name))
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in statement.names)


def _is_list(*sides: ast.expr) -> bool:
    """Return whether lists are joined, rather than texts."""
    return any(isinstance(side, ast.List) or format_dotted(side) == "sys.path" for side in sides)


def _makes_modules(tree: ast.Module) -> bool:
    """Return whether the module seems to install or write modules when it runs."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            name = format_dotted(call.func).rpartition(".")[2]
            words = list(_texts(call)) if name in (*_STARTS, "open") else []
            if name in _STARTS and any(maker in word for word in words for maker in _MAKERS):
                return True
            is_written = len(words) > 1 and words[-1][:1] in ("w", "x", "a")
            if name == "open" and is_written and words[0].endswith(".py"):
                return True
    return False


def _texts(call: ast.Call) -> Iterator[str]:
    """Return the texts among the arguments of a call, up to a length that commands have."""
    for argument in call.args:
        for node in ast.walk(argument):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value[:1000]
