"""Notebooks in pages of a real browser, which the printed ssh command and address lead to."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, Page, Playwright

from tests.cluster.forwarding import Forward, free_port
from tests.cluster.ranks import wait_for

MINUTES = 5 * 60 * 1000  # a page that a cell floods answers late on a busy machine


class Served(NamedTuple):
    """A notebook, and a browser that reaches it by the printed ssh command."""

    directory: Path
    door: Forward
    port: int
    browser: Browser

    @property
    def address(self) -> str:
        return str(self.door.entry["address"])

    def page(self, path: str = "") -> Page:
        """Return the page of a new browser that has logged in by the printed address."""
        page = self.browser.new_context(viewport={"width": 1100, "height": 800}).new_page()
        # Where the server was away for long enough, JupyterLab says so until a user closes that.
        lost = page.get_by_role("dialog", name=re.compile("Server Connection Error"))
        page.add_locator_handler(lost, lambda dialog: dialog.get_by_role("button").last.click())
        page.goto(self.address, timeout=MINUTES)
        page.locator("#jp-main-dock-panel").wait_for(timeout=MINUTES)
        if path:
            page.goto(f"http://localhost:{self.port}/lab/tree/{path}?reset", timeout=MINUTES)
            page.locator(".jp-Notebook").wait_for(timeout=MINUTES)
        return page


@contextmanager
def chromium(playwright: Playwright) -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    program = shutil.which("chromium")
    assert program, "chromium is missing: toolkit setup --with tests"
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    browser = playwright.chromium.launch(executable_path=program, args=options)
    yield browser
    browser.close()


def notebook(*cells: str) -> str:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    code: dict[str, object] = {
        "cell_type": "code",
        "metadata": {},
        "outputs": [],
        "execution_count": None,
    }
    rows = [
        {**code, "id": f"cell{number}", "source": cell.strip()} for number, cell in enumerate(cells)
    ]
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}}
    return json.dumps({**notebook, "cells": rows})


def wait_until_idle(page: Page) -> None:
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=MINUTES)


def choose(page: Page, menu: str, entry: str) -> None:
    """Choose an entry of a menu, whose name may end with its keys."""
    page.get_by_role("menuitem", name=menu, exact=True).click(timeout=MINUTES)
    name = re.compile(f"^{re.escape(entry)}")
    page.get_by_role("menuitem", name=name).first.click(timeout=MINUTES)


def run_all_cells(page: Page) -> None:
    """Run a notebook once its kernel is there."""
    wait_until_idle(page)
    news = page.get_by_role("button", name="No", exact=True)
    if news.is_visible():  # JupyterLab asks once whether to fetch its news
        news.click()
    choose(page, "Run", "Run All Cells")


@contextmanager
def serving(
    directory: Path, reaching: tuple[Browser, dict[str, str]], env: dict[str, str], *words: str
) -> Iterator[Served]:
    """Start a notebook, and the tunnel that its command prints."""
    browser, ssh = reaching
    port = free_port()
    door = Forward(directory, env, "notebook", *words, "--port", str(port))
    tunnel = subprocess.Popen(shlex.split(door.entry["ssh"]), env={**os.environ, **ssh})
    try:
        wait_for(lambda: _answers(port), "the tunnel")
        yield Served(directory, door, port, browser)
    finally:
        tunnel.terminate()
        tunnel.wait()
        door.end()


def outputs(page: Page) -> str:
    return "".join(page.locator(".jp-OutputArea-output").all_text_contents())


def memory(door: Forward) -> float:
    """Return the most memory in MB that the command, which carries nothing itself, on the login node has had."""
    status = Path(f"/proc/{door.process.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1000


def _answers(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
