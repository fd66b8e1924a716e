"""Build the site: copy the pages, write the reference, run Sphinx for each language."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.docs import links, reference, tested, translation
from tools.docs.tested import DOCS, ROOT

PLACE = ROOT / "build" / "docs"
SOURCE, HTML, TEMPLATES = PLACE / "source", PLACE / "html", PLACE / "gettext"
CATALOGS = DOCS / "locale" / "ko" / "LC_MESSAGES"


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
    elif "{eval-rst}" in text:
        path.touch()  # Sphinx fills it from the code, which may have changed
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
        cwd=ROOT,  # conf.py imports tools.docs
        env={**os.environ, "DOCS_LANGUAGE": language},
        check=False,
    )
    if done.returncode:
        sys.exit(done.returncode)


def build() -> None:
    """Build the site in both languages and print what is not translated.

    A message without a translation is shown in English: no change of a page waits for a translator.

    Raises:
        SystemExit: Sphinx reports warnings.
    """
    prepare()
    sphinx("html", HTML)
    sphinx("html", HTML / "ko", "ko")
    _write_templates()
    print(f"site       {HTML / 'index.html'}")
    _report_blocks()
    translation.report(translation.counts(TEMPLATES, CATALOGS))


def _write_templates() -> None:
    """Write the messages of all pages, without those of pages that were removed or moved."""
    shutil.rmtree(TEMPLATES, ignore_errors=True)
    sphinx("gettext", TEMPLATES)


def _report_blocks() -> None:
    """Print how many blocks of commands the tests run."""
    counts = tested.count_marks(block for _, block in tested.shown_blocks())
    print(f"commands   {counts['run']} blocks are run, {counts['long']} more by `make test-all`")
    print(f"           {counts['overview']} are overviews: other blocks run their commands")
    print(f"           {counts['not-run']} are not run (reference/tested.md lists them)")


def update() -> None:
    """Bring the catalogs in docs/locale up to date with the pages."""
    prepare()
    _write_templates()
    translation.update(TEMPLATES, CATALOGS)
    translation.report(translation.counts(TEMPLATES, CATALOGS))
