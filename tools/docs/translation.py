"""The catalogs of the Korean translation: brought up to date with the pages, and counted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
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
# Only the titles of these pages are translated, for the navigation: they are generated from help
# texts, rules and measurements, or are for developers.
ENGLISH_ONLY = ("reference/", "contributing/", "changelog", "faults", "guides")

# The words of the theme; no page has them.
_THEME = "sphinx.po"


class Count(NamedTuple):
    """Messages of a part of the site, and how many of them are translated."""

    translated: int
    all: int


def update(templates: Path, catalogs: Path) -> None:
    """Write a catalog for each page, with the translations that still hold.

    A message that has changed is untranslated again, never fuzzy.
    """
    wanted = set()
    for path, current in _current(templates, catalogs):
        wanted.add(path)
        before = messages(path) if path.exists() else {}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_text(current, before), encoding="utf-8")
    for path in _pages(catalogs) - wanted:
        path.unlink()


def _pages(catalogs: Path) -> set[Path]:
    """Return the catalogs of pages."""
    return set(catalogs.rglob("*.po")) - {catalogs / _THEME}


def _current(templates: Path, catalogs: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield the catalog of each page and the messages that it must have."""
    for template in sorted(templates.rglob("*.pot")):
        name = template.relative_to(templates).with_suffix(".po")
        current = list(messages(template))
        if str(name).startswith(ENGLISH_ONLY):
            current = [text for text in current[:1] if not text.startswith("toolkit ")]
        if current:
            yield catalogs / name, current


def _own(message: str) -> str:
    """Return the translation of a message of code and links only: itself; empty for any other."""
    words = re.sub(r"`[^`]*`|\]\([^)]*\)", "", message)
    return "" if re.search(r"[^\W\d_]", words) else message


def _text(current: Iterable[str], translations: Mapping[str, str]) -> str:
    complete = {message: translations.get(message) or _own(message) for message in current}
    entries = (
        f"\nmsgid {_quoted(message)}\nmsgstr {_quoted(translated)}\n"
        for message, translated in complete.items()
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
    """Return the counts of the translation for each catalog."""
    result: dict[str, Count] = {}
    for path, current in _current(templates, catalogs):
        translations = messages(path) if path.exists() else {}
        translated = sum(bool(translations.get(text)) for text in current)
        result[str(path.relative_to(catalogs).with_suffix(""))] = Count(translated, len(current))
    return result


def report(pages: Mapping[str, Count]) -> None:
    """Print the counts of the translation, and each page that is not complete."""
    whole = {name: count for name, count in pages.items() if not name.startswith(ENGLISH_ONLY)}
    total = Count(*(sum(column) for column in zip(*whole.values(), strict=True)))
    print(f"ko         {total.translated} of {total.all} messages are translated")
    for name, count in pages.items():
        if count.translated < count.all:
            print(f"           {name}: {count.all - count.translated} of {count.all} are not")
    print(f"           in English only: {', '.join(name.rstrip('/') for name in ENGLISH_ONLY)}")
