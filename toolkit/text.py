r"""Make foreign text safe to print. Pure.

Logs, labels, manifests, answers of registries and names of jobs come from other users. Escape
sequences in them can hide lines, set the title, write to the clipboard (OSC 52) or make a link lead
elsewhere (OSC 8); marks of direction can make ``rm -rf x # comment`` read backwards; characters of
no width make two names look alike. All of these are written as Python writes them in a string:
``\x1b[2J``.
"""

from __future__ import annotations

import re
from functools import cache

# C0 but tab and line feed, DEL, C1 (0x9b begins an 8-bit sequence); soft hyphen; marks, embeddings,
# overrides and isolates of direction; characters of no width; separators of lines and paragraphs;
# annotations, shorthand and musical controls; tags; and halves of surrogates, which no terminal
# takes.
_OBEYED = (
    "\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff"
    "\\ufff9-\\ufffb\\ud800-\\udfff\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a\\U000e0000-\\U000e0fff"
)


def visible(text: str) -> str:
    """Return ``text`` with what a terminal would obey written out; line feeds and tabs stay."""
    if text.replace("\n", "").isprintable():
        return text
    return _compiled("").sub(_written, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Return ``text`` as ``visible`` does, with line feeds and tabs written out as well."""
    return text if text.isprintable() else _compiled("\\t\\n").sub(_written, text)


def json_safe(text: str) -> str:
    """Return JSON of the same value in which strings hold nothing that a terminal would obey."""
    return _compiled("").sub(_json_escape, text)


@cache
def _compiled(more: str) -> re.Pattern[str]:
    """Return the pattern, compiled when it is first needed: most of what is printed is plain."""
    return re.compile(f"[{_OBEYED}{more}]")


def _written(character: re.Match[str]) -> str:
    return character[0].encode("unicode_escape").decode("ascii")


def _json_escape(character: re.Match[str]) -> str:
    units = character[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
