"""Read a Dockerfile as BuildKit reads it. Pure.

It reads instructions with their lines, heredocs and flags. The rules are those of moby/buildkit,
``frontend/dockerfile/parser``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from toolkit.errors import ConfigError

_DIRECTIVE = re.compile(
    r"#[ \t]{0,20}(?P<key>[A-Za-z]{1,40})[ \t]{0,20}=[ \t]{0,20}(?P<value>\S{1,400})[ \t]*\Z"
)
_HEREDOC = re.compile(
    r"\d{0,9}<<(?P<dash>-?)(?P<quote>['\"]?)(?P<name>[A-Za-z_][A-Za-z0-9_.]*)(?P=quote)\Z"
)
_WITH_HEREDOCS = ("RUN", "COPY", "ADD")


class Heredoc(NamedTuple):
    """A heredoc: its name, whether its text is taken literally, and the text."""

    name: str
    is_literal: bool
    text: str


class Instruction(NamedTuple):
    """An instruction.

    Attributes:
        line: where it begins, from 1.
        name: in capitals.
        text: all after the name and the flags, on one line.
        flags: ``{"chown": "me"}``.
        heredocs: that follow it.
        words: of the JSON form; None: it has the shell form.
    """

    line: int
    name: str
    text: str
    flags: dict[str, str]
    heredocs: tuple[Heredoc, ...]
    words: tuple[str, ...] | None

    @property
    def shown(self) -> str:
        """Return the instruction for a message."""
        return f"{self.name} {self.text}"[:120]


def read_instructions(text: str, place: str) -> tuple[Instruction, ...]:
    """Read a Dockerfile.

    Args:
        text: of it.
        place: its name, for messages.

    Raises:
        ConfigError: A heredoc does not end.
    """
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    escape = _escape(lines)
    result: list[Instruction] = []
    number = 0
    while number < len(lines):
        first, whole = number, ""
        number, whole = _logical(lines, number, escape)
        if whole.strip():
            name, flags, rest = _taken_apart(whole.strip())
            heredocs, number = (
                _heredocs(lines, number, rest, f"{place}:{first + 1}")
                if name in _WITH_HEREDOCS
                else ((), number)
            )
            result.append(Instruction(first + 1, name, rest, flags, heredocs, _json(rest)))
    return tuple(result)


def _escape(lines: Sequence[str]) -> str:
    """Return the character that continues a line, which the first comments may change."""
    for line in lines:
        match = _DIRECTIVE.match(line.strip())
        if match is None:
            return "\\"
        if match["key"].lower() == "escape" and match["value"] in ("`", "\\"):
            return match["value"]
    return "\\"


def _logical(lines: Sequence[str], number: int, escape: str) -> tuple[int, str]:
    """Return the number of the next line, and a line with its continuations, without comments."""
    whole = ""
    while number < len(lines):
        line = lines[number]
        number += 1
        if line.lstrip().startswith("#") or (whole and not line.strip()):
            if not whole:
                break
            continue
        stripped = line.rstrip(" \t")
        if not stripped.endswith(escape):
            return number, whole + line
        whole += stripped[:-1]
        if not whole.strip():
            whole = " "
    return number, whole


def _taken_apart(line: str) -> tuple[str, dict[str, str], str]:
    name, _, rest = line.partition(" ") if " " in line.split("\t")[0] else line.partition("\t")
    flags: dict[str, str] = {}
    rest = rest.strip()
    while rest.startswith("--") and not rest.startswith("-- "):
        word, _, rest = rest.partition(" ")
        key, _, value = word.removeprefix("--").partition("=")
        flags[key] = f"{flags[key]},{value}" if key in flags else value
        rest = rest.lstrip()
    return name.upper(), flags, rest


def _json(text: str) -> tuple[str, ...] | None:
    try:
        return msgspec.json.decode(text, type=tuple[str, ...])
    except (ValueError, RecursionError):
        return None


def _heredocs(
    lines: Sequence[str], number: int, text: str, place: str
) -> tuple[tuple[Heredoc, ...], int]:
    """Return the heredocs that a line begins, and the number of the line after them."""
    heredocs: list[Heredoc] = []
    for match in filter(None, (_HEREDOC.search(word) for word in text.split())):
        body: list[str] = []
        while True:
            if number >= len(lines):
                raise ConfigError(f"the heredoc {match['name']} does not end", place=place)
            line = lines[number].lstrip("\t") if match["dash"] else lines[number]
            number += 1
            if line == match["name"]:
                break
            body.append(line)
        heredocs.append(
            Heredoc(match["name"], bool(match["quote"]), "".join(f"{line}\n" for line in body))
        )
    return tuple(heredocs), number
