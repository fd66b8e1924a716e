"""The user's default site, in the user's own ``toolkit.toml``. Pure: text to text."""

from __future__ import annotations

import re

from toolkit.model.base import toml_value

_KEY = re.compile(r"site\s*=")


def chosen(text: str, name: str | None) -> str:
    """Return the text of the file with ``site = NAME``, and otherwise unchanged.

    If ``name`` is None, the key is removed.
    """
    lines = text.splitlines()
    first_table = next(
        (number for number, line in enumerate(lines) if line.lstrip().startswith("[")), len(lines)
    )
    others = [
        line
        for number, line in enumerate(lines)
        if number >= first_table or not _KEY.match(line.lstrip())
    ]
    row = [f"site = {toml_value(name)}"] if name is not None else []
    return "".join(f"{line}\n" for line in (*row, *others))
