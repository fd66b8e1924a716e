"""Values of a recipe in the text of a definition. Pure.

Apptainer replaces ``{{ name }}`` everywhere in a definition before it reads anything else, and
has no way to write two braces. In a word of the shell they can be kept apart by quotes; in plain
text they cannot, so there a blank is put between.

A value may name variables of the base image: ``/opt/bin:${PATH}``. Such a value is completed where
the base's variables are known: by the shell of a step, by Docker, or when the image starts. ``$$``
is a dollar sign.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from toolkit.quoting import comment, shell

_TOKEN = re.compile(
    r"\$(?:(?P<dollar>\$)|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\})|(?P<wrong>\$)|(?P<text>[^$]+)"
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def quote_word(value: object) -> str:
    """Return ``value`` as one word for the shell of a definition, which gets it byte for byte."""
    quoted = shell(value)
    while "{{" in quoted or "}}" in quoted:  # again, for three braces in a row
        quoted = quoted.replace("{{", "{''{").replace("}}", "}''}")
    return quoted


def quote_words(values: Iterable[object]) -> str:
    """Return several values, each as a word."""
    return " ".join(quote_word(value) for value in values)


def to_plain_text(value: object) -> str:
    """Return ``value`` on one line, for a comment, a label or a message of a definition."""
    text = comment(value)
    while "{{" in text or "}}" in text:
        text = text.replace("{{", "{ {").replace("}}", "} }")
    return text


class Reference(NamedTuple):
    """A variable of the base image."""

    name: str


def parse_value(text: str) -> Iterator[str | Reference]:
    """Yield the literal text and the references of a value.

    Raises:
        ValueError: a dollar sign is neither ``$$`` nor the beginning of ``${NAME}``.
    """
    for match in _TOKEN.finditer(text):
        if match["wrong"]:
            raise ValueError(f"{text!r} holds a single $: write ${{NAME}}, or $$ for a dollar sign")
        yield (
            Reference(match["name"]) if match["name"] else "$" if match["dollar"] else match["text"]
        )


def escape_dollars(text: str) -> str:
    """Return plain text in the form of such a value."""
    return text.replace("$", "$$")


def list_references(text: str) -> tuple[str, ...]:
    """Return the names of the base's variables in a value."""
    return tuple(part.name for part in parse_value(text) if isinstance(part, Reference))


def _quote(text: str, special: str) -> str:
    """Return a value in double quotes, with a backslash before special characters."""
    shown = "".join(
        f"${{{part.name}}}"
        if isinstance(part, Reference)
        else "".join(f"\\{character}" if character in special else character for character in part)
        for part in parse_value(text)
    )
    return f'"{shown}"'


def quote_for_shell(text: str) -> str:
    """Return the value as one word of a shell, in double quotes."""
    quoted = _quote(text, '\\"$`')
    while "{{" in quoted or "}}" in quoted:  # an argument of Apptainer's build
        quoted = quoted.replace("{{", '{""{').replace("}}", '}""}')
    return quoted


def quote_for_docker(text: str) -> str:
    """Return the value for ``ENV`` or ``LABEL`` of a Dockerfile, in double quotes."""
    return _quote(text, '\\"$')


def order_variables(values: Mapping[str, str]) -> dict[str, str]:
    """Return variables in an order in which each is set after those whose values name it.

    So the base's value of a variable is there as long as it is needed.

    Raises:
        ValueError: Two need each other's values.
    """
    left, result = dict(values), {}
    while left:
        needed = {name for other in left for name in list_references(left[other]) if name != other}
        name = next((variable for variable in left if variable not in needed), None)
        if name is None:
            raise ValueError(
                f"the variables {', '.join(left)} are made of each other's values in the base image"
            )
        result[name] = left.pop(name)
    return result


def format_exports(literals: Mapping[str, str], expanding: Mapping[str, str]) -> Iterator[str]:
    """Yield ``NAME=value`` for a shell, first those made of the base's values.

    The base's values are still there when these are set.
    """
    yield from (
        f"{name}={quote_for_shell(value)}" for name, value in order_variables(expanding).items()
    )
    yield from (f"{name}={quote_word(value)}" for name, value in literals.items())


def separate_variables(
    variables: Mapping[str, str], expand: Collection[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables that are taken literally, and those that are made of the base's."""
    literals = {name: value for name, value in variables.items() if name not in expand}
    return literals, {name: variables[name] for name in expand}


def require_variables(variables: Mapping[str, str], expand: Collection[str]) -> None:
    """Raise for names that no variable can have, and for values that no shell can expand.

    Raises:
        ValueError: A name or a value is invalid, a variable is unknown, or two need each other.
    """
    wrong = next((name for name in variables if not _VARIABLE.match(name)), None)
    if wrong is not None:
        raise ValueError(f"{wrong!r} cannot be the name of a variable")
    unknown = next((name for name in expand if name not in variables), None)
    if unknown is not None:
        raise ValueError(f"{unknown!r} is to be expanded, and is not among the variables")
    for name in expand:
        list_references(variables[name])
    order_variables({name: variables[name] for name in expand})
