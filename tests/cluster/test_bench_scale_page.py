"""The report of a scaling study in a real browser: on a desktop, on a phone and printed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

REPORT = Path(__file__).parents[1] / "golden" / "bench" / "scale.html"
# The smallest text of a chart that can be read, in pixels of the screen.
_READABLE = 8.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    assert program, "chromium is missing: toolkit setup --with tests"
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=arguments)
        yield started
        started.close()


def opened(browser: Browser, width: int) -> tuple[Page, list[str]]:
    """The report in a window of some width, and all that it asked for or complained about."""
    page = browser.new_page(viewport={"width": width, "height": 800})
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: requests.append(message.text))
    page.on("pageerror", lambda error: requests.append(str(error)))
    page.goto(REPORT.as_uri())
    return page, requests


@pytest.mark.parametrize("width", [375, 1100], ids=["phone", "desktop"])
def test_all_charts_are_read_and_nothing_is_fetched(browser: Browser, width: int) -> None:
    page, requests = opened(browser, width)
    assert requests == [REPORT.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    charts = page.locator("svg")
    assert charts.count() == 5
    for number in range(charts.count()):
        box = charts.nth(number).bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) > 200
        texts = charts.nth(number).locator("text").all()
        heights = [shape["height"] for text in texts if (shape := text.bounding_box())]
        assert min(heights) >= _READABLE
    # Each legend's text is within its picture.
    inside = page.evaluate(
        """() => [...document.querySelectorAll("svg")].every(svg => {
            const box = svg.getBoundingClientRect();
            return [...svg.querySelectorAll("text")].every(text => {
                const own = text.getBoundingClientRect();
                return own.left >= box.left - 1 && own.right <= box.right + 1
                    && own.top >= box.top - 1 && own.bottom <= box.bottom + 1;
            });
        })"""
    )
    assert inside
    # On a desktop nobody has to scroll to the last column.
    tables = """() => [...document.querySelectorAll(".wide")].map(table => table.scrollWidth - table.clientWidth)"""
    assert width < 1000 or max(page.evaluate(tables)) <= 0
    page.close()


def test_it_is_printed_on_few_pages(browser: Browser) -> None:
    page, _ = opened(browser, 1200)
    printed = page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert 1 <= printed.count(b"/Type /Page\n") <= 5
    page.close()
