"""Error messages for users from those of msgspec and tomllib. Pure."""

from __future__ import annotations

import re

_EXPECTED = re.compile(r"Expected `(?P<types>[^`]*)`(?P<more>[^`]*)(?:`(?P<got>[^`]*)`)?")
_BOUND = re.compile(r" (?P<sign>[<>]=?) (?P<number>-?[\d.]+)")
_LENGTH = re.compile(r" of length (?P<sign>[<>]=?) (?P<number>\d+)")
_REGEX = re.compile(r" matching regex '(?P<regex>.*)'")
_ENUM = re.compile(r"Invalid enum value (?P<value>.*)")
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text in quotes",
    "bool": "true or false",
    "array": 'a list, such as ["a", "b"]',
    "object": 'a table, such as { NAME = "value" }',
    "null": "nothing",
}
_FORMS = {
    r"^[1-9][0-9]*([:-][1-9][0-9]*)?$": 'a whole number of at least 1, or a range, such as "1:4"',
    r"^([A-Za-z0-9_.+-]+:)?[0-9]+(,[0-9]+)*$": "a whole number, a list with one number for each "
    'node, such as "8,4", or a type and a number, such as "a100:4"',
    r"^[A-Za-z0-9_.+-]*$": 'a name without blanks, such as "a100"',
}
_SIGNS = {">=": "at least", ">": "more than", "<=": "at most", "<": "less than"}
# The start of tomllib's message -> the advice.
_TOML = (
    ("Invalid value", 'text needs quotes: key = "text"'),
    ("Expected '=' after a key", 'write: key = "value"; a key is one word'),
    ("Unterminated string", "a quote is not closed"),
    ("Illegal character '\\n'", "a quote is not closed on its line"),
    ('Expected "\'"', "a quote is not closed"),
    ("Cannot overwrite a value", "the file has a key twice"),
    ("Cannot declare", "the file has a table twice"),
    ("Cannot mutate", "the file has a table twice"),
    ("Expected ']'", "a bracket is not closed"),
    ("Unclosed array", "a bracket is not closed"),
    ("Unclosed inline table", "a brace is not closed"),
    ("Unescaped '\\'", r"write \\ for a backslash, or the text in single quotes"),
    ("Expected newline or end", "write one key on each line; text needs quotes"),
    ("Invalid statement", 'write: key = "value"'),
    ("Invalid initial character", 'write: key = "value"'),
)
_AT = re.compile(r"\(at (?P<place>[^()]*)\)\Z")


def format_type_error(message: str, value: object = None, choices: tuple[str, ...] = ()) -> str:
    """Return the message for a value that does not fit its key.

    Args:
        message: msgspec's, without the path.
        value: the given value; None if it is unknown.
        choices: the valid words; empty if the key accepts any value.
    """
    if enum := _ENUM.match(message):
        return (
            f"{enum['value']} is not one of {', '.join(choices)}"
            if choices
            else f"{enum['value']} is not a valid value"
        )
    expected = _EXPECTED.match(message)
    if expected is None:
        return message[:1].lower() + message[1:]
    got = _given(expected["got"], value)
    return f"expected {_wanted(expected['types'], expected['more'])}{f', got {got}' if got else ''}"


def _wanted(types: str, more: str) -> str:
    if regex := _REGEX.match(more):
        return _FORMS.get(regex["regex"], "text in another format")
    names = [_TYPES.get(name, name) for name in types.split(" | ") if name != "null"]
    words = " or ".join(dict.fromkeys(names)) or "nothing"
    if length := _LENGTH.match(more):
        return f"{words} of {_SIGNS[length['sign']]} {length['number']}"
    bound = _BOUND.match(more)
    return f"{words} of {_SIGNS[bound['sign']]} {bound['number']}" if bound else words


def _given(kind: str | None, value: object) -> str:
    """Return the given value for a message: its type if that is wrong, else a short value."""
    if kind:
        return _TYPES.get(kind, kind).partition(",")[0].removesuffix(" in quotes")
    return repr(value) if isinstance(value, int | float | str) and len(repr(value)) <= 40 else ""


def format_toml_error(message: str) -> tuple[str, int]:
    """Return the message for text that is not TOML, and the line; 0: unknown."""
    at = _AT.search(message)
    place = at["place"] if at else ""
    line = re.match(r"line (\d+)", place)
    text = message[: at.start()].strip() if at else message
    advice = next((words for start, words in _TOML if text.startswith(start)), "")
    where = f" ({place})" if place else ""
    hint = f"; {advice}" if advice else ""
    explanation = f"this is not valid TOML: {text[:1].lower()}{text[1:]}{where}{hint}"
    return explanation, int(line[1]) if line else 0
