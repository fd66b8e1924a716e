"""Read the instructions of a Dockerfile, with their lines and flags, as BuildKit does. Pure.

The rules are those of moby/buildkit, ``frontend/dockerfile/parser``. Heredocs are read of RUN.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from toolkit.errors import ConfigError

HEREDOC = re.compile(
    r"(?:\A|(?<=\s))\d{0,9}<<(?P<dash>-?)(?P<quote>['\"]?)(?P<name>[A-Za-z_][A-Za-z0-9_.]*)(?P=quote)(?!\S)"
)


class Instruction(NamedTuple):
    """An instruction.

    Attributes:
        line: where it begins, from 1.
        name: in capitals.
        text: all after the name and the flags, on one line; of RUN, the lines of its heredocs too.
        flags: ``{"chown": "me"}``.
        words: of the JSON form; None: it has the shell form.
    """

    line: int
    name: str
    text: str
    flags: dict[str, str]
    words: tuple[str, ...] | None

    @property
    def shown(self) -> str:
        """Return the instruction for a message."""
        return f"{self.name} {self.text}"[:120]


def read_instructions(text: str, path: Path) -> tuple[Instruction, ...]:
    """Read a Dockerfile, whose path is for messages.

    Raises:
        ConfigError: A heredoc does not end.
    """
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    result: list[Instruction] = []
    number = 0
    while number < len(lines):
        first = number + 1
        number, whole = _logical(lines, number)
        if whole.strip():
            name, flags, rest = _taken_apart(whole.strip())
            for heredoc in HEREDOC.finditer(rest) if name == "RUN" else ():
                end = _end_of_heredoc(lines, number, heredoc)
                if not end:
                    reason = f"the heredoc {heredoc['name']} does not end"
                    raise ConfigError(reason, place=f"{path}:{first}")
                rest = "\n".join((rest, *lines[number:end]))
                number = end
            result.append(Instruction(first, name, rest, flags, _json(rest)))
    return tuple(result)


def _logical(lines: Sequence[str], number: int) -> tuple[int, str]:
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
        if not stripped.endswith("\\"):
            return number, whole + line
        whole += stripped[:-1]
        if not whole.strip():
            whole = " "
    return number, whole


def _end_of_heredoc(lines: Sequence[str], number: int, heredoc: re.Match[str]) -> int:
    """Return the number of the line after a heredoc; 0: it does not end."""
    for at in range(number, len(lines)):
        line = lines[at].lstrip("\t") if heredoc["dash"] else lines[at]
        if line == heredoc["name"]:
            return at + 1
    return 0


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
