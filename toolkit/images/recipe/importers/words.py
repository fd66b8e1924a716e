"""Words of a Dockerfile as expanding values (``quoting``), which a shell completes in the build.

BuildKit's words (moby/buildkit, ``shell/lex.go``) are those of a shell, but for commands in them.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from toolkit.images.recipe.quoting import escape_expanding

_QUOTED = r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\."
_WORD = re.compile(rf"(?:{_QUOTED}|[^\s'\"\\])+")
_LINE = re.compile(rf"(?:{_QUOTED}|[^'\"\\])*\Z")
_PART = re.compile(rf"{_QUOTED}|[^'\"\\]+")
_SPECIAL = re.compile(r"\\(?P<escaped>.)|`|\$(?P<brace>\{?)(?P<name>[A-Za-z_][A-Za-z0-9_]*)?\d?")
_REFERENCE = re.compile(r"\\(?P<escaped>.)|\$(?:\{(?P<braced>\w+)\}|(?P<name>\w+))?")


def split_words(text: str) -> list[str]:
    """Return the words of an instruction, with their quotes.

    Raises:
        ValueError: A quote does not end.
    """
    if not _LINE.match(text):
        raise ValueError("a quote does not end")
    return _WORD.findall(text)


def to_expanding(text: str) -> str:
    """Return a word, or a value with blanks, as an expanding value.

    Raises:
        ValueError: It cannot be read.
    """
    if not _LINE.match(text):
        raise ValueError("a quote does not end")

    def translate(match: re.Match[str]) -> str:
        if match["escaped"]:
            backslash = "" if match["escaped"] in '"$\\' else "\\\\"
            return backslash + escape_expanding(match["escaped"])
        if match["name"]:
            return f"${match['brace']}{match['name']}"
        if match["brace"]:
            raise ValueError("${ is not followed by the name of a variable")
        return "" if match[0][1:].isdigit() else escape_expanding(match[0])  # $1 is never set

    value = ""
    for part in _PART.findall(text):
        if part.startswith("'"):
            value += escape_expanding(part[1:-1])
        elif part.startswith('"'):
            value += _SPECIAL.sub(translate, part[1:-1])
        elif part.startswith("\\"):
            value += escape_expanding(part[1])
        else:
            value += _SPECIAL.sub(translate, part)
    if value.count("${") > value.count("}"):
        raise ValueError("there is no }")
    return value


def list_names(value: str) -> set[str]:
    """Return the variables that an expanding value names."""
    return {match["name"] for match in _SPECIAL.finditer(value) if match["name"]}


def to_literal(value: str, known: Mapping[str, str]) -> str:
    """Return an expanding value whose variables are all known, as plain text.

    Raises:
        ValueError: Only the build knows it.
    """

    def replace(match: re.Match[str]) -> str:
        name = match["braced"] or match["name"]
        if match["escaped"] or name in known:
            return match["escaped"] or known[name]
        raise ValueError(f"only the build knows {match[0]}... in it: write its value")

    return _REFERENCE.sub(replace, value)
