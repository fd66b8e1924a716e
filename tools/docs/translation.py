"""The catalogs of the Korean translation: brought up to date with the pages, and counted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from babel.messages.pofile import read_po

_HEADER = r"""msgid ""
msgstr ""
"Language: ko\n"
"MIME-Version: 1.0\n"
"Content-Type: text/plain; charset=utf-8\n"
"Content-Transfer-Encoding: 8bit\n"
"""
# Pages that are translated; the others are counted, and stay English.
_TRANSLATED = ("index", "tutorials/", "how-to/")


class Count(NamedTuple):
    """Messages of a part of the site, and how many of them are translated."""

    translated: int
    all: int


def update(templates: Path, catalogs: Path) -> None:
    """Write a catalog for each translated page, with the translations that still hold.

    A message that has changed is untranslated again, never fuzzy.
    """
    wanted = set()
    for template in sorted(templates.rglob("*.pot")):
        name = template.relative_to(templates).with_suffix(".po")
        if str(name).startswith(_TRANSLATED):
            path = catalogs / name
            wanted.add(path)
            before = messages(path) if path.exists() else {}
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_text(messages(template), before), encoding="utf-8")
    for path in set(catalogs.rglob("*.po")) - wanted:
        path.unlink()


def _text(current: Mapping[str, str], translations: Mapping[str, str]) -> str:
    entries = (
        f"\nmsgid {_quoted(message)}\nmsgstr {_quoted(translations.get(message, ''))}\n"
        for message in current
    )
    return _HEADER + "".join(entries)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def messages(path: Path) -> dict[str, str]:
    """Return the messages of a catalog or template, with their translations."""
    with path.open("rb") as file:
        return {str(entry.id): str(entry.string or "") for entry in read_po(file) if entry.id}


def counts(templates: Path, catalogs: Path) -> Mapping[str, Count]:
    """Return the counts of the translation for each part of the site."""
    result: dict[str, Count] = {}
    for template in sorted(templates.rglob("*.pot")):
        name = template.relative_to(templates)
        catalog = catalogs / name.with_suffix(".po")
        translations = messages(catalog) if catalog.exists() else {}
        current = messages(template)
        part = name.parts[0] if len(name.parts) > 1 else "top"
        before = result.get(part, Count(0, 0))
        translated = sum(bool(translations.get(message)) for message in current)
        result[part] = Count(before.translated + translated, before.all + len(current))
    return result


def report(parts: Mapping[str, Count]) -> None:
    """Print the counts of the translation."""
    total = Count(*(sum(column) for column in zip(*parts.values(), strict=True)))
    print(f"ko         {total.translated} of {total.all} messages are translated")
    for part, count in parts.items():
        if count.translated < count.all:
            print(f"           {part}: {count.all - count.translated} of {count.all} are not")
