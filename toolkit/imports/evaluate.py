"""Compute the few expressions that decide what a module imports and from where. Pure.

A value that cannot be known is None; callers take that for "anything".
"""

from __future__ import annotations

import ast
import os.path
from collections.abc import Mapping
from typing import NamedTuple

_DEEPEST = 40  # of nested expressions; a path that people write has five
_FALSE_PLATFORMS = ("win", "cygwin", "darwin", "java", "emscripten", "wasi", "aix", "nt")


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


def dotted(node: ast.expr) -> str:
    """Return ``os.path.join`` for such an expression; empty for what is no dotted name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join((node.id, *reversed(parts)))


def path(node: ast.expr, values: Mapping[str, str], context: Context, depth: int = 0) -> str | None:
    """Return the path, or other text, that an expression gives.

    Args:
        node: the expression.
        values: variables of the module that are known.
        context: where it is evaluated.
        depth: of the expression within others.
    """
    if depth > _DEEPEST:
        return None
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        return context.file if node.id == "__file__" else values.get(node.id)
    if isinstance(node, ast.Attribute):
        return _attribute(node, values, context, depth)
    if isinstance(node, ast.Call):
        return _call(node, values, context, depth)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Div):
        left = path(node.left, values, context, depth + 1)
        right = path(node.right, values, context, depth + 1)
        if left is None or right is None:
            return None
        return left + right if isinstance(node.op, ast.Add) else os.path.join(left, right)
    if isinstance(node, ast.Subscript):
        return _parents(node, values, context, depth)
    if isinstance(node, ast.JoinedStr):
        return _joined(node, values, context, depth)
    return None


def _attribute(
    node: ast.Attribute, values: Mapping[str, str], context: Context, depth: int
) -> str | None:
    named = {
        "os.pardir": "..",
        "os.curdir": ".",
        "os.sep": "/",
        "os.path.pardir": "..",
        "path.pardir": "..",
    }
    name = dotted(node)
    if name in named:
        return named[name]
    if node.attr != "parent":
        return None
    inner = path(node.value, values, context, depth + 1)
    return None if inner is None else _parent(inner)


def _parent(text: str) -> str:
    """Return what pathlib calls the parent."""
    return os.path.dirname(text.rstrip("/")) or ("/" if text.startswith("/") else ".")


def _parents(
    node: ast.Subscript, values: Mapping[str, str], context: Context, depth: int
) -> str | None:
    """Return ``Path(__file__).parents[2]``."""
    if not (isinstance(node.value, ast.Attribute) and node.value.attr == "parents"):
        return None
    number = node.slice.value if isinstance(node.slice, ast.Constant) else None
    inner = path(node.value.value, values, context, depth + 1)
    if inner is None or not isinstance(number, int) or not 0 <= number <= _DEEPEST:
        return None
    for _ in range(number + 1):
        inner = _parent(inner)
    return inner


def _joined(
    node: ast.JoinedStr, values: Mapping[str, str], context: Context, depth: int
) -> str | None:
    parts: list[str] = []
    for part in node.values:
        inner = part.value if isinstance(part, ast.FormattedValue) else part
        text = path(inner, values, context, depth + 1)
        if text is None:
            return None
        parts.append(text)
    return "".join(parts)


def _call(node: ast.Call, values: Mapping[str, str], context: Context, depth: int) -> str | None:
    name = dotted(node.func)
    last = name.rpartition(".")[2] or (
        node.func.attr if isinstance(node.func, ast.Attribute) else ""
    )
    if name in ("os.getcwd", "getcwd", "Path.cwd", "pathlib.Path.cwd"):
        return context.directory
    texts = [path(argument, values, context, depth + 1) for argument in node.args]
    known = [text for text in texts if text is not None]
    if len(known) != len(texts):
        return None
    if isinstance(node.func, ast.Attribute) and not name.startswith(
        ("os.", "osp.", "path.", "pathlib.")
    ):
        inner = path(node.func.value, values, context, depth + 1)
        return None if inner is None else _method(last, inner, known, context)
    return _function(last, known, context)


def _function(name: str, texts: list[str], context: Context) -> str | None:
    """Return the value of a function of ``os.path``, or of ``Path`` and ``str``."""
    if name in ("Path", "PurePath", "PosixPath", "join") and texts:
        return os.path.join(*texts)
    if len(texts) != 1:
        return None
    if name == "dirname":
        return os.path.dirname(texts[0])
    return texts[0] if name in ("str", "fspath") else _resolved(name, texts[0], context)


def _method(name: str, inner: str, texts: list[str], context: Context) -> str | None:
    """Return the value of a method of a ``Path`` or a text."""
    if name == "joinpath":
        return os.path.join(inner, *texts)
    if texts:
        return None
    return inner if name in ("as_posix", "__str__") else _resolved(name, inner, context)


def _resolved(name: str, text: str, context: Context) -> str | None:
    if name in ("abspath", "absolute", "normpath"):
        return os.path.normpath(os.path.join(context.directory, text))
    if name in ("realpath", "resolve"):
        return os.path.realpath(os.path.join(context.directory, text))
    # The home of the ranks is another one than that of the user, so that nothing is known of it.
    return None


def truth(node: ast.expr, context: Context, depth: int = 0) -> bool | None:
    """Return whether a condition holds in the ranks; None: it may or may not."""
    if depth > _DEEPEST:
        return None
    if isinstance(node, ast.Constant):
        return bool(node.value)
    if isinstance(node, ast.Name | ast.Attribute):
        return False if dotted(node).rpartition(".")[2] == "TYPE_CHECKING" else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = truth(node.operand, context, depth + 1)
        return None if inner is None else not inner
    if isinstance(node, ast.BoolOp):
        return _all_or_any(node, context, depth)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _comparison(node.left, node.ops[0], node.comparators[0], context)
    if isinstance(node, ast.Call) and dotted(node.func) == "sys.platform.startswith":
        words = [word.value for word in node.args if isinstance(word, ast.Constant)]
        return words == ["linux"]
    return None


def _all_or_any(node: ast.BoolOp, context: Context, depth: int) -> bool | None:
    values = [truth(value, context, depth + 1) for value in node.values]
    decisive = isinstance(node.op, ast.Or)
    if decisive in values:
        return decisive
    return None if None in values else not decisive


def _comparison(
    left: ast.expr, operator: ast.cmpop, right: ast.expr, context: Context
) -> bool | None:
    subject = _subject(left)
    if subject == "__name__" and isinstance(operator, ast.Eq | ast.NotEq):
        is_main = isinstance(right, ast.Constant) and right.value == "__main__"
        return (context.is_main == isinstance(operator, ast.Eq)) if is_main else None
    if subject in ("sys.platform", "os.name", "platform.system()"):
        return _platform(operator, right)
    if subject.startswith("sys.version_info") and context.version is not None:
        return _version(subject, operator, right, context.version)
    return None


def _subject(node: ast.expr) -> str:
    """Return what is compared: ``sys.version_info``, ``sys.version_info[0]``, ``__name__``."""
    if isinstance(node, ast.Call) and not node.args:
        return f"{dotted(node.func)}()"
    if isinstance(node, ast.Subscript):
        return f"{dotted(node.value)}{_part(node.slice)}"
    return dotted(node)


def _part(node: ast.expr) -> str:
    """Return which part of a tuple is compared: its first number, its beginning, or another."""
    if isinstance(node, ast.Slice) and node.lower is None and node.step is None:
        return "[:]"
    return "[0]" if isinstance(node, ast.Constant) and node.value == 0 else "[?]"


def _platform(operator: ast.cmpop, right: ast.expr) -> bool | None:
    text = right.value if isinstance(right, ast.Constant) else None
    if not isinstance(text, str) or not isinstance(operator, ast.Eq | ast.NotEq):
        return None
    is_linux = text.lower() in ("linux", "posix")
    if not is_linux and not text.lower().startswith(_FALSE_PLATFORMS):
        return None
    return is_linux == isinstance(operator, ast.Eq)


def _version(
    subject: str, operator: ast.cmpop, right: ast.expr, version: tuple[int, ...]
) -> bool | None:
    numbers: tuple[int, ...] = ()
    if isinstance(right, ast.Tuple):
        values = [part.value for part in right.elts if isinstance(part, ast.Constant)]
        numbers = tuple(value for value in values if isinstance(value, int))
        if len(numbers) != len(right.elts) or not numbers:
            return None
    elif isinstance(right, ast.Constant) and isinstance(right.value, int):
        numbers = (right.value,)
    whole = subject in ("sys.version_info", "sys.version_info[:]")
    if not numbers or not (whole or subject in ("sys.version_info[0]", "sys.version_info.major")):
        return None
    return _ordered(
        operator, version if subject == "sys.version_info" else version[: len(numbers)], numbers
    )


def _ordered(operator: ast.cmpop, left: tuple[int, ...], right: tuple[int, ...]) -> bool | None:
    if isinstance(operator, ast.GtE | ast.Gt):
        return left >= right if isinstance(operator, ast.GtE) else left > right
    if isinstance(operator, ast.Lt | ast.LtE):
        return left < right if isinstance(operator, ast.Lt) else left <= right
    if isinstance(operator, ast.Eq | ast.NotEq):
        return (left == right) == isinstance(operator, ast.Eq)
    return None
