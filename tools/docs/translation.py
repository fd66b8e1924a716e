"""The catalogs of the Korean translation, brought up to date with the pages."""

from __future__ import annotations

from pathlib import Path

from babel.messages import Catalog
from babel.messages.pofile import read_po, write_po

_HEADER = rb"""msgid ""
msgstr ""
"Language: ko\n"
"MIME-Version: 1.0\n"
"Content-Type: text/plain; charset=utf-8\n"
"Content-Transfer-Encoding: 8bit\n"

"""
# Only the titles of these pages are translated, by hand, for the navigation: they are generated
# from help texts, rules and measurements, or are for developers.
ENGLISH_ONLY = ("reference/", "contributing/", "changelog", "faults", "guides")


def update(templates: Path, catalogs: Path) -> None:
    """Write a catalog for each page with the translations that still hold, and count the others.

    A message that has changed is untranslated again, never fuzzy.
    """
    for template in sorted(templates.rglob("*.pot")):
        name = template.relative_to(templates).with_suffix(".po")
        if str(name).startswith(ENGLISH_ONLY):
            continue
        path = catalogs / name
        catalog = read(path) if path.exists() else Catalog()
        catalog.update(read(template), no_fuzzy_matching=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(_HEADER)
            write_po(
                file, catalog, width=0, no_location=True, omit_header=True, ignore_obsolete=True
            )
        missing = sum(not message.string for message in catalog if message.id)
        if missing:
            print(f"{name}: {missing} of {len(catalog)} messages are not translated")


def read(path: Path) -> Catalog:
    """Return a catalog or template."""
    with path.open("rb") as file:
        return read_po(file)
