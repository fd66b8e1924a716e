"""The built site: links, both languages, and pages in a real browser at two widths."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Browser, sync_playwright

from tools.docs.site import HTML

# A minute of Sphinx and a browser: for `make test-all`.
pytestmark = pytest.mark.long

CHECKOUT = Path(__file__).parents[2]
WIDTHS = {"phone": 390, "desktop": 1280}
# A page of each kind; all pages are examined for links.
SHOWN = (
    "index.html",
    "tutorials/first-run.html",
    "how-to/run/pending.html",
    "how-to/run/resources.html",
    "reference/commands/run.html",
    "reference/files.html",
    "explanation/comparison.html",
    "ko/index.html",
    "ko/tutorials/first-run.html",
    "ko/how-to/run/resources.html",
)


class Contents(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del tag
        values = dict(attrs)
        self.anchors.add(values.get("id") or "")
        self.targets |= {values.get(name) or "" for name in ("href", "src") if name in values}


@pytest.fixture(scope="module")
def site() -> Path:
    """The site, built in both languages; a warning of Sphinx fails it."""
    shutil.rmtree(HTML, ignore_errors=True)
    words = (sys.executable, "-m", "tools.docs", "build")
    done = subprocess.run(words, cwd=CHECKOUT, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return HTML


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The address of the site on the loopback interface."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    program = shutil.which("chromium")
    assert program, "chromium is missing: toolkit setup --with tests"
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=arguments)
        yield started
        started.close()


def test_every_link_leads_to_a_page_and_an_anchor(site):
    pages = {path: Contents(path) for path in site.rglob("*.html")}
    assert len(pages) > 100
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme:
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert file.is_file(), f"{path}: {target}"
            known = pages[file].anchors if file in pages else {""}
            assert not parts.fragment or unquote(parts.fragment) in known, f"{path}: {target}"


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_pages_fit_and_ask_nothing_of_other_hosts(width, address, browser, tmp_path):
    """``TOOLKIT_KEEP_SCREENSHOTS=DIR`` keeps the pictures for people to look at."""
    pictures = Path(os.environ.get("TOOLKIT_KEEP_SCREENSHOTS") or tmp_path)
    page = browser.new_page(viewport={"width": width, "height": 900})
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: _require_own(request.url, address, complaints))
    for name in SHOWN:
        page.goto(f"{address}/{name}")
        picture = f"{width}-{name.replace('/', '-').removesuffix('.html')}.png"
        page.screenshot(path=pictures / picture)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{name} is {wide} pixels wide"
        broken = "[...document.images].filter(image => !image.naturalWidth).map(image => image.src)"
        assert page.evaluate(broken) == [], name
        assert complaints == [], name
    page.close()


def _require_own(url: str, address: str, complaints: list[str]) -> None:
    if not url.startswith((address, "data:")):
        complaints.append(f"request of {url}")
