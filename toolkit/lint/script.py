"""Parse an sbatch script: directives in sbatch's own grammar, and commands with quotes. Pure.

This is no shell: what a command does is not known, only where it begins and ends, which parts of it
are quoted, and what is a comment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from toolkit.lint.options import LONG, SHORT
from toolkit.model.site import Site

_HEREDOC = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_]\w*)\1")
_MARK = "#SBATCH"


class Option(NamedTuple):
    """An option of a directive or command: its long name, as written, and its value."""

    name: str
    written: str
    value: str | None


class Directive(NamedTuple):
    """A line that begins with ``#SBATCH``.

    Attributes:
        line: its number.
        text: the line.
        words: as sbatch reads them; a bare ``#`` ends them.
        options: their options.
        strays: words that belong to no option, which sbatch refuses.
        effective: whether it is before the first command, so that sbatch reads it.
        problem: why it cannot be read; empty if it can.
    """

    line: int
    text: str
    words: tuple[str, ...]
    options: tuple[Option, ...]
    strays: tuple[str, ...]
    effective: bool
    problem: str = ""


class Command(NamedTuple):
    """A command with all its lines: continued ones, and those of strings.

    Attributes:
        line: number of its first line.
        text: as written, without comments.
        bare: the same with everything within single quotes blanked out, as the shell reads it.
        plain: the same with everything within any quotes blanked out.
    """

    line: int
    text: str
    bare: str
    plain: str

    def line_of(self, offset: int) -> int:
        """Return the number of the line of a place in ``text``."""
        return self.line + self.text.count("\n", 0, offset)


class Place(NamedTuple):
    """A place in a command that a pattern matches."""

    line: int
    match: re.Match[str]
    command: Command


class Script(NamedTuple):
    """A whole script. ``open_quote``: the line of a quote that is never closed."""

    lines: tuple[str, ...]
    directives: tuple[Directive, ...]
    commands: tuple[Command, ...]
    open_quote: int | None = None

    def options(self, name: str) -> Iterator[tuple[Directive, Option]]:
        """Return every effective use of an option, by its long name."""
        return (
            (directive, option)
            for directive in self.directives
            if directive.effective
            for option in directive.options
            if option.name == name
        )

    def value(self, name: str) -> str | None:
        """Return the value of an option, the last if there are several; None if unset."""
        values = [option.value or "" for _, option in self.options(name)]
        return values[-1] if values else None

    def find(
        self, pattern: re.Pattern[str], part: str = "text", group: str | int = 0
    ) -> Iterator[Place]:
        """Yield where a pattern matches in commands.

        Args:
            pattern: is searched for.
            part: ``text``, ``bare`` or ``plain`` of each command.
            group: whose line is meant.
        """
        for command in self.commands:
            for match in pattern.finditer(getattr(command, part)):
                yield Place(command.line_of(match.start(group)), match, command)

    @property
    def is_batch(self) -> bool:
        """True for a script for sbatch: it has directives."""
        return bool(self.directives)


def parse(text: str) -> Script:
    """Parse a script."""
    lines = lines_of(text)
    commands, open_quote = _commands(lines)
    first = commands[0].line if commands else len(lines) + 1
    text_lines = _text_lines(lines, commands)
    directives = tuple(
        _directive(number, line, effective=number < first)
        for number, line in enumerate(lines, 1)
        if line.startswith(_MARK) and number not in text_lines
    )
    return Script(lines, directives, commands, open_quote)


def _text_lines(lines: tuple[str, ...], commands: tuple[Command, ...]) -> set[int]:
    """Return the lines that are text of a here-document or a string.

    A script may write another script so.
    """
    numbers: set[int] = set()
    for command in commands:
        last = command.line + command.text.count("\n")
        numbers |= set(range(command.line + 1, last + 1))
        for heredoc in _HEREDOC.finditer(command.text):
            while last < len(lines) and lines[last].strip() != heredoc[2]:
                last += 1
                numbers.add(last)
            last += 1
    return numbers


def outside_quotes(text: str) -> str:
    """Return a directive without its comment and what quotes or a backslash hide: blanked out."""
    result, quote, skip = "", "", False
    for index, character in enumerate(text):
        if skip:
            result, skip = result + " ", False
        elif character == "\\":
            result, skip = result + " ", True
        elif quote:
            result, quote = result + " ", "" if character == quote else quote
        elif character in "\"'":
            result, quote = result + " ", character
        elif character == "#" and index > 0:
            return result + " " * (len(text) - index)
        else:
            result += character
    return result


# Not "--comment a = b": there the "=" belongs to the value.
_BLANK_EQUALS = re.compile(r"(?<!\S)(?P<name>--[A-Za-z][\w-]*)(?:\s+=\s*|=\s+)(?=[^\s=-])")


def blank_equals(text: str) -> re.Match[str] | None:
    """Return where a directive has a blank beside the ``=`` of an option, if it has."""
    match = _BLANK_EQUALS.search(outside_quotes(text))
    quote = re.search(r"[\"']", text)
    if match or not quote:
        return match
    return _BLANK_EQUALS.search(text[: quote.start()] + "x")  # the value itself is quoted


def node_range(script: Script) -> tuple[int, int] | None:
    """Return the least and the most nodes of a job; None if its directives do not tell."""
    match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", script.value("nodes") or "")
    return (int(match[1]), int(match[2] or match[1])) if match else None


def is_conditional(script: Script, command: Command) -> bool:
    """Return whether a condition decides about a command; it may be about the number of nodes."""
    depth = 0
    for each in script.commands:
        words = [word.rstrip(";") for word in each.plain.split()]
        depth += sum(word in ("if", "case") for word in words)
        if each.line >= command.line:
            break
        depth -= sum(word in ("fi", "esac") for word in words)
    return depth > 0 or bool(re.match(r"\s*\[\[? ", command.plain)) or "&&" in command.plain


def least_nodes(script: Script) -> int:
    """Return how many nodes a job has at least; 1 if its directives do not tell."""
    nodes = node_range(script)
    return nodes[0] if nodes else 1


def lines_of(text: str) -> tuple[str, ...]:
    """Return lines without their ends; a carriage return stays, since it is a fault."""
    lines = text.split("\n")
    return tuple(lines[:-1] if lines[-1] == "" else lines)


def _directive(number: int, line: str, *, effective: bool) -> Directive:
    try:
        words = tuple(directive_words(line[len(_MARK) :]))
    except ValueError as error:
        return Directive(number, line, (), (), (), effective, str(error))
    options, strays = _options(words)
    return Directive(number, line, words, options, strays, effective)


def directive_words(text: str) -> Iterator[str]:
    r"""Yield the words of a directive as sbatch reads them.

    ``\`` escapes everywhere, and a bare ``#`` ends the line.

    Raises:
        ValueError: a quote is not closed.
    """
    word, quote, has_word, characters = "", "", False, iter(text)
    for character in characters:
        if character == "\\":
            word, has_word = word + next(characters, ""), True
        elif quote:
            quote, word = ("", word) if character == quote else (quote, word + character)
        elif character in "\"'":
            quote, has_word = character, True
        elif character == "#":
            break
        elif character.isspace():
            if has_word:
                yield word
            word, has_word = "", False
        else:
            word, has_word = word + character, True
    if quote:
        raise ValueError(f"the quote {quote} is not closed")
    if has_word:
        yield word


def _options(words: tuple[str, ...]) -> tuple[tuple[Option, ...], tuple[str, ...]]:
    options: list[Option] = []
    strays: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--") and len(word) > 2:
            name, sign, value = word[2:].partition("=")
            if not sign and LONG.get(name) == "value" and rest:
                options.append(Option(name, f"--{name}", rest.pop(0)))
            else:
                options.append(Option(name, f"--{name}", value if sign else None))
        elif re.match(r"-[A-Za-z]", word):
            name = SHORT.get(word[1], word[1])
            attached = word[2:]
            takes = LONG.get(name) == "value"
            options.append(
                Option(name, word[:2], attached or (rest.pop(0) if takes and rest else None))
            )
        else:
            strays.append(word)
    return tuple(options), tuple(strays)


class _Scanner:
    """A scanner of the characters of a command, line by line, until no quote is open."""

    def __init__(self) -> None:
        self.text, self.bare, self.plain = "", "", ""
        self.quote = ""
        self.opened_at = 0
        self.parentheses = 0  # of an array, whose lines need no backslash

    def feed(self, number: int, line: str) -> bool:
        """Scan a line; return whether the command continues on the next."""
        index, continued = 0, False
        while index < len(line):
            character = line[index]
            if (
                not self.quote
                and character == "#"
                and (index == 0 or line[index - 1].isspace() or line[index - 1] in ";&|(")
            ):
                break
            if character == "\\" and self.quote != "'":
                continued = index + 1 == len(line)
                self._add(line[index : index + 2])
                index += 2
                continue
            if character in "'\"" and self.quote in ("", character):
                self.quote, self.opened_at = (
                    ("", self.opened_at) if self.quote else (character, number)
                )
                self.text, self.bare, self.plain = (
                    self.text + character,
                    self.bare + character,
                    self.plain + character,
                )
            else:
                self._count(character)
                self._add(character)
            index += 1
        self.text, self.bare, self.plain = self.text + "\n", self.bare + "\n", self.plain + "\n"
        return continued or bool(self.quote) or self.parentheses > 0

    def _count(self, character: str) -> None:
        """Follow the parentheses of an array: ``name=( ... )``."""
        if not self.quote and character == "(" and (self.parentheses or self.plain.endswith("=")):
            self.parentheses += 1
        elif not self.quote and character == ")" and self.parentheses:
            self.parentheses -= 1

    def _add(self, text: str) -> None:
        blank = " " * len(text)
        self.text += text
        self.bare += blank if self.quote == "'" else text
        self.plain += blank if self.quote else text


def _commands(lines: tuple[str, ...]) -> tuple[tuple[Command, ...], int | None]:
    commands: list[Command] = []
    number = 0
    while number < len(lines):
        scanner, first = _Scanner(), number + 1
        goes_on = True
        while goes_on and number < len(lines):
            goes_on = scanner.feed(number + 1, lines[number])
            number += 1
        if scanner.plain.strip():
            commands.append(
                Command(first, scanner.text.rstrip(), scanner.bare.rstrip(), scanner.plain.rstrip())
            )
        if scanner.quote:
            return tuple(commands), scanner.opened_at
        for heredoc in _HEREDOC.finditer(scanner.text):
            while number < len(lines) and lines[number].strip() != heredoc[2]:
                number += 1
            number += 1
    return tuple(commands), None


class Context(NamedTuple):
    """Facts that rules know apart from the script.

    Attributes:
        site: the cluster that the script is for; None if rules of sites do not apply.
        is_directory: whether a path, relative to the script's directory, is a directory; if that is
            not known, every path is taken for one.
        syntax: bash's own errors: line and message.
    """

    site: Site | None = None
    is_directory: Callable[[str], bool] = bool
    syntax: tuple[tuple[int, str], ...] = ()


class LintCase(NamedTuple):
    """A script and its context.

    Attributes:
        script: the parsed script.
        context: facts that rules know apart from it.
    """

    script: Script
    context: Context

    @property
    def site(self) -> Site | None:
        """The cluster that the script is for."""
        return self.context.site
