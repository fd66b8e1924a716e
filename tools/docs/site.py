"""Build the site: copy the pages, write the reference, run Sphinx for each language."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.docs import links, reference, translation
from tools.docs.tested import DOCS, ROOT

PLACE = ROOT / "build" / "docs"
SOURCE, HTML, TEMPLATES = PLACE / "source", PLACE / "html", PLACE / "gettext"
CATALOGS = DOCS / "locale" / "ko" / "LC_MESSAGES"


def prepare() -> None:
    """Write all pages to build/docs/source."""
    # The reference describes what is shipped, not what this user has configured.
    os.environ["XDG_CONFIG_HOME"] = os.environ["TOOLKIT_ETC"] = str(PLACE / "no-settings")
    shutil.rmtree(PLACE, ignore_errors=True)
    shutil.copytree(DOCS, SOURCE, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in reference.pages().items():
        _write(SOURCE / name, text)
    for path in DOCS.rglob("*.md"):
        text = links.rewritten(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
        _write(SOURCE / path.relative_to(DOCS), text)
    for top, page in links.COPIED.items():
        if not (ROOT / page).exists():
            text = (ROOT / top).read_text(encoding="utf-8").replace("```mermaid", "```text")
            _write(SOURCE / Path(page).relative_to("docs"), links.rewritten(text, top))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def sphinx(builder: str, target: Path, language: str = "en") -> None:
    """Run Sphinx; a warning is an error."""
    cache = PLACE / "doctrees" / f"{builder}-{language}"
    options = ("--fail-on-warning", "--keep-going", "--quiet", "-b", builder, "-d", str(cache))
    subprocess.run(
        (sys.executable, "-m", "sphinx", *options, str(SOURCE), str(target)),
        cwd=ROOT,  # conf.py imports tools.docs
        env={**os.environ, "DOCS_LANGUAGE": language},
        check=True,
    )


def build() -> None:
    """Build the site in both languages.

    A message without a translation is shown in English: no change of a page waits for a translator.
    """
    prepare()
    sphinx("html", HTML)
    sphinx("html", HTML / "ko", "ko")
    print(f"site       {HTML / 'index.html'}")


def update() -> None:
    """Bring the catalogs in docs/locale up to date with the pages."""
    prepare()
    sphinx("gettext", TEMPLATES)
    translation.update(TEMPLATES, CATALOGS)
