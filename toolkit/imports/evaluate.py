"""Compute the few expressions that decide what a module imports and from where. Pure.

A value that cannot be known is None; callers take that for "anything".
"""

from __future__ import annotations

import ast
import operator
import os.path
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

_DEEPEST = 40  # of nested expressions; a path that people write has five
_FALSE_PLATFORMS = ("win", "cygwin", "darwin", "java", "emscripten", "wasi", "aix", "nt")
_CONSTANTS = {
    "os.pardir": "..",
    "os.curdir": ".",
    "os.sep": "/",
    "os.path.pardir": "..",
    "path.pardir": "..",
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class Context(NamedTuple):
    """The names and values that expressions may refer to.

    Attributes:
        file: path of the module, absolute.
        directory: working directory of the ranks, absolute.
        is_main: the module is the program itself.
        version: of the Python that will run it; None: unknown.
    """

    file: str
    directory: str
    is_main: bool
    version: tuple[int, ...] | None


def format_dotted(node: ast.expr) -> str:
    """Return ``os.path.join`` for such an expression; empty for what is no dotted name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join((node.id, *reversed(parts)))


def evaluate_path(
    node: ast.expr, values: Mapping[str, str], context: Context, depth: int = 0
) -> str | None:
    """Return the path, or other text, that an expression gives.

    Args:
        node: the expression.
        values: variables of the module that are known.
        context: where it is evaluated.
        depth: of the expression within others.
    """
    if depth > _DEEPEST:
        return None

    def inner(*nodes: ast.expr) -> list[str] | None:
        texts = [evaluate_path(each, values, context, depth + 1) for each in nodes]
        known = [text for text in texts if text is not None]
        return known if len(known) == len(texts) else None

    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return context.file if name == "__file__" else values.get(name)
        case ast.Attribute(value=below, attr="parent"):
            return _ancestor(inner(below), 1)
        case ast.Attribute():
            return _CONSTANTS.get(format_dotted(node))
        case ast.Subscript(
            value=ast.Attribute(value=below, attr="parents"), slice=ast.Constant(value=int(number))
        ) if 0 <= number <= _DEEPEST:
            return _ancestor(inner(below), number + 1)
        case ast.Call():
            return _call(node, inner, context)
        case ast.BinOp(left=left, op=ast.Add() | ast.Div() as joint, right=right):
            sides = inner(left, right)
            join: Callable[..., str] = operator.add if isinstance(joint, ast.Add) else os.path.join
            return join(*sides) if sides else None
        case ast.JoinedStr(values=parts):
            texts = inner(*(p.value if isinstance(p, ast.FormattedValue) else p for p in parts))
            return None if texts is None else "".join(texts)
    return None


def _ancestor(texts: Sequence[str] | None, levels: int) -> str | None:
    """Return what pathlib calls the parent of a path, some levels up."""
    if texts is None:
        return None
    (text,) = texts
    for _ in range(levels):
        text = os.path.dirname(text.rstrip("/")) or ("/" if text.startswith("/") else ".")
    return text


def _call(node: ast.Call, inner: Callable[..., list[str] | None], context: Context) -> str | None:
    name = format_dotted(node.func)
    if name in ("os.getcwd", "getcwd", "Path.cwd", "pathlib.Path.cwd"):
        return context.directory
    texts = inner(*node.args)
    if texts is None:
        return None
    if not isinstance(node.func, ast.Attribute) or name.startswith(
        ("os.", "osp.", "path.", "pathlib.")
    ):
        return _function(name.rpartition(".")[2], texts, context)
    # A method of a ``Path`` or a text.
    method, subject = node.func.attr, inner(node.func.value)
    if subject is None or (texts and method != "joinpath"):
        return None
    if method in ("joinpath", "as_posix", "__str__"):
        return os.path.join(*subject, *texts)
    return _resolved(method, subject[0], context)


def _function(name: str, texts: Sequence[str], context: Context) -> str | None:
    """Return the value of a function of ``os.path``, or of ``Path`` and ``str``."""
    if name in ("Path", "PurePath", "PosixPath", "join") and texts:
        return os.path.join(*texts)
    if len(texts) != 1:
        return None
    if name == "dirname":
        return os.path.dirname(texts[0])
    return texts[0] if name in ("str", "fspath") else _resolved(name, texts[0], context)


def _resolved(name: str, text: str, context: Context) -> str | None:
    if name in ("abspath", "absolute", "normpath"):
        return os.path.normpath(os.path.join(context.directory, text))
    if name in ("realpath", "resolve"):
        return os.path.realpath(os.path.join(context.directory, text))
    # The home of the ranks is another one than that of the user, so that nothing is known of it.
    return None


def evaluate_condition(node: ast.expr, context: Context, depth: int = 0) -> bool | None:
    """Return whether a condition holds in the ranks; None: it may or may not."""
    if depth > _DEEPEST:
        return None
    match node:
        case ast.Constant(value=value):
            return bool(value)
        case ast.Name() | ast.Attribute():
            return False if format_dotted(node).rpartition(".")[2] == "TYPE_CHECKING" else None
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            holds = evaluate_condition(operand, context, depth + 1)
            return None if holds is None else not holds
        case ast.BoolOp(op=joint, values=parts):
            answers = [evaluate_condition(part, context, depth + 1) for part in parts]
            decisive = isinstance(joint, ast.Or)
            return decisive if decisive in answers else None if None in answers else not decisive
        case ast.Compare(left=left, ops=[comparison], comparators=[right]):
            return _comparison(left, comparison, right, context)
        case ast.Call() if format_dotted(node.func) == "sys.platform.startswith":
            words = [word.value for word in node.args if isinstance(word, ast.Constant)]
            return words == ["linux"]
    return None


def _comparison(
    left: ast.expr, comparison: ast.cmpop, right: ast.expr, context: Context
) -> bool | None:
    subject = _subject(left)
    is_equality = isinstance(comparison, ast.Eq | ast.NotEq)
    text = right.value if isinstance(right, ast.Constant) else None
    if subject == "__name__" and is_equality:
        is_main = context.is_main == isinstance(comparison, ast.Eq)
        return is_main if text == "__main__" else None
    if subject in ("sys.platform", "os.name", "platform.system()"):
        is_linux = _is_linux(text) if isinstance(text, str) and is_equality else None
        return None if is_linux is None else is_linux == isinstance(comparison, ast.Eq)
    if subject.startswith("sys.version_info") and context.version is not None:
        return _version(subject, comparison, right, context.version)
    return None


def _subject(node: ast.expr) -> str:
    """Return what is compared: ``sys.version_info``, ``sys.version_info[0]``, ``__name__``."""
    match node:
        case ast.Call(func=function, args=[]):
            return f"{format_dotted(function)}()"
        case ast.Subscript(value=whole, slice=ast.Slice(lower=None, step=None)):
            return f"{format_dotted(whole)}[:]"
        case ast.Subscript(value=whole, slice=ast.Constant(value=0)):
            return f"{format_dotted(whole)}[0]"
        case ast.Subscript(value=whole):
            return f"{format_dotted(whole)}[?]"
    return format_dotted(node)


def _is_linux(platform: str) -> bool | None:
    """Return whether the name of a platform is one of Linux; None for an unknown name."""
    name = platform.lower()
    return (
        True if name in ("linux", "posix") else False if name.startswith(_FALSE_PLATFORMS) else None
    )


def _version(
    subject: str, comparison: ast.cmpop, right: ast.expr, version: tuple[int, ...]
) -> bool | None:
    parts = right.elts if isinstance(right, ast.Tuple) else [right]
    values = [part.value for part in parts if isinstance(part, ast.Constant)]
    numbers = tuple(value for value in values if isinstance(value, int))
    whole = subject in ("sys.version_info", "sys.version_info[:]")
    first = subject in ("sys.version_info[0]", "sys.version_info.major")
    compare = _COMPARISONS.get(type(comparison))
    if not numbers or len(numbers) != len(parts) or not (whole or first) or compare is None:
        return None
    known = version if subject == "sys.version_info" else version[: len(numbers)]
    return compare(known, numbers)
