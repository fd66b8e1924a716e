r"""Values of a recipe in the text of a definition. Pure.

Apptainer replaces ``{{ name }}`` everywhere in a definition before it reads anything else, and
has no way to write two braces. In a word of the shell they can be kept apart by quotes; in plain
text they cannot, so there a blank is put between.

Some values may name variables: ``/opt/bin:${PATH}``. Such an *expanding* value is what stands
between double quotes of a shell, without commands in it: the shell of a step, Docker, or the start
of the image completes it. A dollar sign itself is ``\$``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from toolkit.quoting import comment, shell

_EXPANDING = re.compile(r'(?:[^\\$"`]|\\.|\$\{?[A-Za-z_])*\Z')
_SPECIAL = re.compile(r'[\\"$`]')
_LITERAL = re.compile(r"(?:[^\\$]|\\.)*\Z")
_ESCAPED = re.compile(r'\\([\\"$`])')


def _part_braces(quoted: str, between: str) -> str:
    while "{{" in quoted or "}}" in quoted:  # again, for three braces in a row
        quoted = quoted.replace("{{", f"{{{between}{{").replace("}}", f"}}{between}}}")
    return quoted


def quote_word(value: object) -> str:
    """Return ``value`` as one word for the shell of a definition, which gets it byte for byte."""
    return _part_braces(shell(value), "''")


def quote_words(values: Iterable[object]) -> str:
    """Return several values, each as a word."""
    return " ".join(quote_word(value) for value in values)


def to_plain_text(value: object) -> str:
    """Return ``value`` on one line, for a comment, a label or a message of a definition."""
    return _part_braces(comment(value), " ")


def quote_expanding(text: str) -> str:
    """Return an expanding value as one word of a shell."""
    return _part_braces(f'"{text}"', '""')


def escape_expanding(text: str) -> str:
    """Return plain text as an expanding value, which names no variable."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def read_literal(text: str) -> str:
    """Return an expanding value as plain text; an empty one if it names variables."""
    return _ESCAPED.sub(r"\1", text) if _LITERAL.match(text) else ""


def quote_for_docker(text: str) -> str:
    """Return an expanding value for ``ENV``, ``ARG`` or ``LABEL`` of a Dockerfile."""
    without = text.replace("\\`", "`")  # Docker knows no such quotes, and would keep the backslash
    return f'"{without}"'


def require_expanding(text: str) -> None:
    """Raise for an expanding value that a shell reads otherwise than Docker does.

    Raises:
        ValueError: It holds quotes, a command, or a dollar sign that begins no variable.
    """
    if not _EXPANDING.match(text):
        raise ValueError(
            f"{text!r} is no text with variables: write ${{NAME}}, and \\ before $, a quote or `"
        )
