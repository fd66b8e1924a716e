"""Build the site: copy the pages, write the reference, run Sphinx for each language."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from babel.messages.pofile import read_po

from tools.docs import links, reference

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PLACE = ROOT / "build" / "docs"
SOURCE, HTML, TEMPLATES = PLACE / "source", PLACE / "html", PLACE / "gettext"
LOCALE = DOCS / "locale"
# Pages that the Korean translation has; the others are counted, and stay English.
TRANSLATED = ("index", "tutorials/", "how-to/")


class Count(NamedTuple):
    """Messages of a language, and how many of them are translated."""

    translated: int
    all: int


def prepare() -> None:
    """Write all pages to build/docs/source; a page that has not changed keeps its time."""
    # The reference describes what is shipped, not what this user has configured.
    os.environ["XDG_CONFIG_HOME"] = os.environ["TOOLKIT_ETC"] = str(PLACE / "no-settings")
    pages = {Path("docs") / name: text for name, text in reference.pages().items()}
    for path in sorted(DOCS.rglob("*.md")):
        name = path.relative_to(ROOT)
        pages[name] = links.rewritten(path.read_text(encoding="utf-8"), str(name))
    for top, page in links.COPIED.items():
        if not (ROOT / page).exists():
            text = (ROOT / top).read_text(encoding="utf-8").replace("```mermaid", "```text")
            pages[Path(page)] = links.rewritten(text, top)
    written = {_write(path, text) for path, text in pages.items()}
    for path in sorted(DOCS.rglob("*")):
        if path.is_file() and path.suffix != ".md" and "__pycache__" not in path.parts:
            written.add(SOURCE / path.relative_to(DOCS))
            (SOURCE / path.relative_to(DOCS)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, SOURCE / path.relative_to(DOCS))
    for path in SOURCE.rglob("*"):
        if path.is_file() and path not in written and path.suffix != ".mo":
            path.unlink()


def _write(name: Path, text: str) -> Path:
    path = SOURCE / name.relative_to("docs")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
    return path


def sphinx(builder: str, target: Path, language: str = "en") -> None:
    """Run Sphinx; a warning is an error.

    Raises:
        SystemExit: Sphinx reports warnings or failed.
    """
    cache = PLACE / "doctrees" / f"{builder}-{language}"
    options = ("--fail-on-warning", "--keep-going", "--quiet", "-b", builder, "-d", str(cache))
    done = subprocess.run(
        (sys.executable, "-m", "sphinx", *options, str(SOURCE), str(target)),
        env={**os.environ, "DOCS_LANGUAGE": language},
        check=False,
    )
    if done.returncode:
        sys.exit(done.returncode)


def build() -> None:
    """Build the site in both languages and print what is not translated."""
    prepare()
    sphinx("html", HTML)
    sphinx("gettext", TEMPLATES)
    sphinx("html", HTML / "ko", "ko")
    print(f"site       {HTML / 'index.html'}")
    report(counts())


def update() -> None:
    """Bring the catalogs in docs/locale up to date with the pages.

    A message that has changed is left untranslated, never fuzzy.
    """
    prepare()
    sphinx("gettext", TEMPLATES)
    for template in sorted(TEMPLATES.rglob("*.pot")):
        if not str(template.relative_to(TEMPLATES)).startswith(TRANSLATED):
            template.unlink()
    program = ("-m", "sphinx_intl", "update", "--no-obsolete", "-w", "0")
    subprocess.run(
        (sys.executable, *program, "-p", str(TEMPLATES), "-d", str(LOCALE), "-l", "ko"), check=True
    )


def counts() -> Mapping[str, Count]:
    """Return the counts of the Korean translation for each part of the site."""
    result: dict[str, Count] = {}
    for template in sorted(TEMPLATES.rglob("*.pot")):
        name = template.relative_to(TEMPLATES).with_suffix("")
        messages = _messages(template)
        catalog = LOCALE / "ko/LC_MESSAGES" / name.with_suffix(".po")
        translations = _messages(catalog) if catalog.exists() else {}
        part = name.parts[0] if len(name.parts) > 1 else "top"
        before = result.get(part, Count(0, 0))
        translated = sum(bool(translations.get(message)) for message in messages)
        result[part] = Count(before.translated + translated, before.all + len(messages))
    return result


def _messages(path: Path) -> dict[str, str]:
    with path.open("rb") as file:
        return {str(entry.id): str(entry.string or "") for entry in read_po(file) if entry.id}


def report(parts: Mapping[str, Count]) -> None:
    """Print the counts of the translation."""
    total = Count(*(sum(column) for column in zip(*parts.values(), strict=True)))
    print(f"ko         {total.translated} of {total.all} messages are translated")
    for part, count in parts.items():
        if count.translated < count.all:
            print(f"           {part}: {count.all - count.translated} of {count.all} are not")
