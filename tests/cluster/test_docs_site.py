"""The built site in both languages: its pages in a real browser at two widths. Sphinx itself follows all links."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.cluster.browsing import chromium
from tools.docs.site import HTML

# A minute of Sphinx and a browser: for `make test-all`.
pytestmark = pytest.mark.long

CHECKOUT = Path(__file__).parents[2]
WIDTHS = {"phone": 390, "desktop": 1280}
# A page of each kind.
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


@pytest.fixture(scope="module")
def site() -> Path:
    """The site, built in both languages; a warning of Sphinx fails it."""
    shutil.rmtree(HTML, ignore_errors=True)
    words = (sys.executable, "-m", "tools.docs", "build")
    done = subprocess.run(words, cwd=CHECKOUT, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return HTML


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    with sync_playwright() as playwright, chromium(playwright) as started:
        yield started


@contextlib.contextmanager
def serving(site: Path) -> Iterator[str]:
    """The address of the site on the loopback interface."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_pages_fit_and_ask_nothing_of_other_hosts(width, site, browser, tmp_path):
    """``TOOLKIT_KEEP_SCREENSHOTS=DIR`` keeps the pictures for people to look at."""
    pictures = Path(os.environ.get("TOOLKIT_KEEP_SCREENSHOTS") or tmp_path)
    page = browser.new_page(viewport={"width": width, "height": 900})
    seen: list[str] = []
    page.on("console", lambda message: seen.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: seen.append(str(error)))
    page.on("request", lambda request: seen.append(request.url))
    with serving(site) as address:
        for name in SHOWN:
            page.goto(f"{address}/{name}")
            picture = f"{width}-{name.replace('/', '-').removesuffix('.html')}.png"
            page.screenshot(path=pictures / picture)
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{name} is {wide} pixels wide"
            broken = (
                "[...document.images].filter(image => !image.naturalWidth).map(image => image.src)"
            )
            assert page.evaluate(broken) == [], name
            complaints = [text for text in seen if not text.startswith((address, "data:"))]
            assert complaints == [], name
    page.close()
