"""Split the words of an imported file and expand their variables, as BuildKit does. Pure.

The rules are those of moby/buildkit, ``shell/lex.go``.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping

from toolkit.images.recipe.quoting import escape_dollars

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class UnknownValueError(Exception):
    """A variable's value depends on the base image."""


def split_words(text: str) -> Iterator[str]:
    """Yield the words of an instruction with their quotes, as ``expand_word`` takes them."""
    word, quote, escaped, within = "", "", False, False
    for character in text:
        if escaped:
            word, escaped = word + character, False
        elif character == "\\" and quote != "'":
            word, escaped, within = word + character, True, True
        elif quote:
            word += character
            quote = "" if character == quote else quote
        elif character in " \t":
            if within:
                yield word
            word, within = "", False
        else:
            quote = character if character in "\"'" else ""
            word, within = word + character, True
    if within:
        yield word


def expand_word(
    text: str,
    known: Mapping[str, str],
    *,
    unset: Container[str] | None = (),
    empty: set[str] | None = None,
) -> str:
    """Return a word without quotes, its variables replaced, in the form of ``quoting``.

    Args:
        text: a word, or a legacy value with blanks.
        known: variables of the file, in that form already.
        unset: variables that no base image sets: they are empty. None: all others.
        empty: gets the names of those that the word expands: not those in single quotes.

    Raises:
        UnknownValueError: A choice such as ``${X:-y}`` depends on the base image.
        ValueError: It cannot be read.
    """
    return _Lexer(text, known, unset, set() if empty is None else empty).value("")


class _Lexer:
    """Goes through a word from left to right."""

    def __init__(
        self, text: str, known: Mapping[str, str], unset: Container[str] | None, empty: set[str]
    ) -> None:
        self.text, self.known, self.unset, self.empty, self.at = text, known, unset, empty, 0

    def _next(self) -> str:
        self.at += 1
        return self.text[self.at - 1 : self.at]

    def value(self, until: str) -> str:
        """Return the text up to a character."""
        result = ""
        while self.at < len(self.text):
            character = self._next()
            if character == until:
                return result
            if character == "'":
                end = self.text.find("'", self.at)
                if end < 0:
                    raise ValueError("a single quote does not end")
                result, self.at = result + escape_dollars(self.text[self.at : end]), end + 1
            elif character == '"':
                result += self._quoted()
            elif character == "\\":
                result += escape_dollars(self._next())
            elif character == "$":
                result += self._variable()
            else:
                result += character
        if until:
            raise ValueError(f"there is no {until}")
        return result

    def _quoted(self) -> str:
        result = ""
        while self.at < len(self.text):
            character = self._next()
            if character == '"':
                return result
            if character == "\\":
                following = self._next()
                result += escape_dollars(following if following in '"$\\' else f"\\{following}")
            else:
                result += self._variable() if character == "$" else character
        raise ValueError("a double quote does not end")

    def _variable(self) -> str:
        braced = self.text[self.at : self.at + 1] == "{"
        match = _NAME.match(self.text, self.at + braced)
        if match is None:
            if braced:
                raise ValueError("${ is not followed by the name of a variable")
            if self.text[self.at : self.at + 1].isdigit():
                self.at += 1  # $1: BuildKit takes it for an unset variable
                return ""
            return "$$"
        self.at = match.end()
        if not braced:
            return self._named(match[0])
        operator = self._next()
        if operator == "}":
            return self._named(match[0])
        colon = operator == ":"
        operator = self._next() if colon else operator
        if operator not in ("-", "+"):
            raise ValueError(f"${{{match[0]}{operator}...}} is not known here")
        return self._chosen(match[0], operator, self.value("}"), colon=colon)

    def _named(self, name: str) -> str:
        return self.known.get(name, "" if self._is_empty(name) else f"${{{name}}}")

    def _is_empty(self, name: str) -> bool:
        is_empty = name not in self.known and (self.unset is None or name in self.unset)
        self.empty |= {name} if is_empty else set()
        return is_empty

    def _chosen(self, name: str, operator: str, other: str, *, colon: bool) -> str:
        if not self._is_empty(name) and name not in self.known:
            raise UnknownValueError(name)
        value = self.known.get(name, "")
        is_set = bool(value) if colon else name in self.known
        return (value if is_set else other) if operator == "-" else (other if is_set else "")
