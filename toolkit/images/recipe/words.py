"""Values of a recipe in the text of a definition.

Apptainer replaces ``{{ name }}`` everywhere in a definition before it reads anything else, and
has no way to write two braces. In a word of the shell they can be kept apart by quotes; in plain
text they cannot, so there a blank is put between.
"""

from __future__ import annotations

from collections.abc import Iterable

from toolkit.quoting import comment, shell


def word(value: object) -> str:
    """Return ``value`` as one word for the shell of a definition, which gets it byte for byte."""
    quoted = shell(value)
    while "{{" in quoted or "}}" in quoted:  # again, for three braces in a row
        quoted = quoted.replace("{{", "{''{").replace("}}", "}''}")
    return quoted


def words(values: Iterable[object]) -> str:
    """Return several values, each as a word."""
    return " ".join(word(value) for value in values)


def plain(value: object) -> str:
    """Return ``value`` on one line, for a comment, a label or a message of a definition."""
    text = comment(value)
    while "{{" in text or "}}" in text:
        text = text.replace("{{", "{ {").replace("}}", "} }")
    return text
