"""Inputs that make a regular expression slow, and a measure of how its time grows.

The time of a search is compared with the time of a search in twice the text, in CPU seconds of this
process, the least of several runs: other work on the machine does not change it.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

try:
    from re import _parser as sre  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_parse as sre

LENGTH = 8_000  # characters of the first measurement
_LEAST = 0.0025  # seconds of CPU; a search of LENGTH characters that takes less is fast
_MOST_GROWTH = 3.0  # of the time when the text doubles: 2 is linear, 4 is quadratic
# Measurements that must all be too long: a shared processor makes single ones wrong.
_DOUBTS = 3
_CLEAR = 0.08  # seconds of CPU that are long enough to be believed at once
_SHORT = (
    *range(16, 48, 4),
    64,
    96,
    128,
    256,
)  # lengths that are tried first: an exponential pattern would not come back from longer ones
_TOO_LONG = 0.15  # seconds of CPU for at most a sixteenth of LENGTH: cubic or worse
_MANY = 32  # a repeat that may go on longer than this is attacked
_CHARACTERS = "a0 /-'_:.\"=[(A\t@,$#`{\n;"

# Text that no pattern names but that real logs have, and that has made patterns slow before.
GENERAL: Mapping[str, str] = {
    "hexadecimal digits": "0123456789abcdef",
    "one letter": "a",
    "one digit": "7",
    "spaces": " ",
    "quotes": "\"'",
    "dashes": "-",
    "slashes": "/",
    "dots": ".",
    "brackets": "([{",
    "carriage returns": "12%\r",
    "escape sequences": "\x1b[31m",
    "URLs": "a://",
    "options": "--token=",
    "the word token": "token",
    "assignments": "a=b;",
    "addresses": "a@b",
}


def attacks(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield (unit to repeat, end of the text): pieces of what the pattern matches."""
    seen: set[tuple[str, str]] = set()
    for head, unit in _pieces(sre.parse(pattern.pattern, pattern.flags & ~re.UNICODE), ""):
        for repeated in (unit, head + unit, head):
            for end in ("", "\n!"):
                if repeated and (repeated, end) not in seen:
                    seen.add((repeated, end))
                    yield repeated, end


def _pieces(items: Iterable[Any], head: str) -> Iterator[tuple[str, str]]:
    """Yield (what matches up to a long repeat, what that repeat takes) for every such repeat."""
    for operation, argument in items:
        name = str(operation)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            least, most, inner = argument
            if int(most) > _MANY:
                for sample in _samples(inner):
                    yield head, sample
            yield from _pieces(inner, head)
            head += _sample(inner) * max(int(least), 1)
            continue
        if name == "BRANCH":
            for branch in argument[1]:
                yield from _pieces(branch, head)
        elif name == "SUBPATTERN":
            yield from _pieces(argument[-1], head)
        elif name in ("ASSERT", "ASSERT_NOT"):
            yield from _pieces(argument[1], head)
            continue
        head += _sample([(operation, argument)])
    yield head, ""


def _sample(items: Iterable[Any]) -> str:
    """Return a text that the items match, as far as that can be told one by one."""
    return "".join(
        next(iter(_of_item(str(operation), argument)), "") for operation, argument in items
    )


def _samples(items: Iterable[Any]) -> list[str]:
    """Return texts that a repeated item matches: one for each kind of character."""
    listed = list(items)
    return _of_item(str(listed[0][0]), listed[0][1])[:6] if len(listed) == 1 else [_sample(listed)]


def _of_item(name: str, argument: Any) -> list[str]:
    if name == "LITERAL":
        return [chr(argument)]
    if name == "ANY":
        return ["a", " ", "0", "/"]
    if name in ("IN", "NOT_LITERAL"):
        taken = argument if name == "IN" else [("NEGATE", None), ("LITERAL", argument)]
        return [character for character in _CHARACTERS if _holds(taken, character)] or _first(taken)
    if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        return [_sample(argument[2]) * max(int(argument[0]), 1)]
    if name == "SUBPATTERN":
        return [_sample(argument[-1])]
    if name == "BRANCH":
        return [_sample(branch) for branch in argument[1]]
    return [""]


def _first(taken: Iterable[Any]) -> list[str]:
    return [
        chr(value if str(kind) == "LITERAL" else value[0])
        for kind, value in taken
        if str(kind) in ("LITERAL", "RANGE")
    ][:1]


def _holds(taken: Iterable[Any], character: str) -> bool:
    negated, found = False, False
    for kind, value in taken:
        name = str(kind)
        negated |= name == "NEGATE"
        found |= name == "LITERAL" and ord(character) == value
        found |= name == "RANGE" and value[0] <= ord(character) <= value[1]
        found |= name == "CATEGORY" and bool(re.match(_CATEGORIES[str(value)], character))
    return found is not negated


_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}


def grown(unit: str, length: int, end: str = "") -> str:
    """Return ``unit`` over and over, up to ``length`` characters."""
    return (unit * (length // len(unit) + 1))[:length] + end


def is_slow(
    function: Callable[[str], object], unit: str, end: str = "", length: int = LENGTH
) -> str:
    """Say by how much the time of a function grows faster than its input; empty where it does not.

    Args:
        unit: what the input repeats.
        end: the input's last characters.
        length: of the shorter input, in characters.
    """
    for size in (*_SHORT, length // 16):
        early = _seconds(function, grown(unit, size, end), 1)
        if early > _TOO_LONG:
            return f"{early:.1f} s for {size} characters of {unit[:60]!r}"
    if _seconds(function, grown(unit, length, end), 1) < _LEAST:
        return ""
    short = long = 0.0
    for _ in range(_DOUBTS):
        short, long = (
            _seconds(function, grown(unit, size, end), 5) for size in (length, 2 * length)
        )
        if short < _LEAST or long < _MOST_GROWTH * short:
            return ""
        if short > _CLEAR:
            break
    return f"{short * 1000:.0f} ms for {length} characters of {unit[:60]!r}, {long * 1000:.0f} ms for twice as many"


def _seconds(function: Callable[[str], object], text: str, runs: int) -> float:
    taken = []
    for _ in range(runs):
        begun = time.process_time()
        function(text)
        taken.append(time.process_time() - begun)
        if taken[-1] > _CLEAR:
            break
    return min(taken)


def slow_search(pattern: re.Pattern[str], search: Callable[[str], object]) -> str:
    """Say with which input a search takes more than linear time; empty where none is known."""
    units = [*attacks(pattern), *((unit, "") for unit in GENERAL.values())]
    return next((said for unit, end in units if (said := is_slow(search, unit, end))), "")


class Use(NamedTuple):
    """A place of the source where a regular expression is searched for, and by which method."""

    place: str
    pattern: re.Pattern[str]
    method: str

    def on(self, text: str) -> object:
        """Search a text as that place does."""
        if self.method in ("match", "fullmatch", "search"):
            return getattr(self.pattern, self.method)(text)
        return sum(1 for _ in self.pattern.finditer(text))


_METHODS = ("match", "fullmatch", "search", "findall", "finditer", "sub", "subn", "split")


def uses(package: ModuleType) -> Iterator[Use]:
    """Yield every use of a regular expression in the modules of a package, each once."""
    seen: set[tuple[str, int, str]] = set()
    for name in _module_names(package):
        module = importlib.import_module(name)
        tree = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))
        for call in (
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        ):
            pattern, method = _called(call, vars(module)), call.func.attr  # type: ignore[attr-defined]
            if pattern is not None and (pattern.pattern, pattern.flags, method) not in seen:
                seen.add((pattern.pattern, pattern.flags, method))
                yield Use(f"{name}:{call.lineno}", pattern, method)


def _module_names(package: ModuleType) -> list[str]:
    found = [
        module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    # What runs inside an image or on a node is no module of ours: it is handed to another Python as
    # a file.
    return [
        name
        for name in found
        if not re.search(r"\.__main__$|\.(?:scripts|checks|templates)\.", name)
    ]


def _called(call: ast.Call, names: Mapping[str, object]) -> re.Pattern[str] | None:
    """Return the expression of a call: ``_NAME.search(...)`` or ``re.search(_NAME or "...")``."""
    function = call.func
    if (
        not isinstance(function, ast.Attribute)
        or function.attr not in _METHODS
        or not isinstance(function.value, ast.Name)
    ):
        return None
    known = names.get(function.value.id)
    if isinstance(known, re.Pattern):
        return known if isinstance(known.pattern, str) else None
    if function.value.id != "re" or not call.args:
        return None
    first = call.args[0]
    text = first.value if isinstance(first, ast.Constant) else names.get(ast.unparse(first))
    if not isinstance(text, str):
        return None
    flags = re.RegexFlag(0)
    for name in re.findall(
        r"re\.([A-Z]+)",
        " ".join(map(ast.unparse, (*call.args[1:], *(one.value for one in call.keywords)))),
    ):
        flags |= re.RegexFlag[name]
    return re.compile(text, flags)
