"""A notebook in a real browser, by the printed ssh command and address."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.cluster.cluster_fixtures import Toolkit
from tests.cluster.forwarding import Forward, wait_for
from tests.cluster.ssh import own_sshd

_TRAIN = "!torchrun --standalone --nproc-per-node 2 train.py --epochs 2 | tee log"
_PLOT = r"""
import re
import matplotlib.pyplot as plt
losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", open("log").read())]
plt.figure(figsize=(4, 2.2))
plt.plot(range(1, len(losses) + 1), losses, marker="o")
plt.xlabel("epoch"); plt.ylabel("loss"); plt.title(f"{len(losses)} epochs on 2 ranks")
plt.show()
"""
_MINUTES = 5 * 60 * 1000
_CHECKOUT = Path(__file__).parents[2]


def notebook(*cells: str) -> str:
    return json.dumps(
        {
            "nbformat": 4,
            "nbformat_minor": 5,
            "metadata": {
                "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
            },
            "cells": [
                {
                    "cell_type": "code",
                    "id": f"cell{number}",
                    "metadata": {},
                    "source": cell.strip(),
                    "outputs": [],
                    "execution_count": None,
                }
                for number, cell in enumerate(cells)
            ],
        }
    )


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def run_all_cells(page: Page) -> None:
    """Run a notebook once its kernel is there."""
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=_MINUTES)
    news = page.get_by_role("button", name="No", exact=True)
    if news.is_visible():  # JupyterLab asks once whether to fetch its news
        news.click()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()


@pytest.mark.long
def test_two_epochs_and_a_plot(
    cluster: str,
    notebook_image: Path,
    toolkit: Toolkit,
    toolkit_env: dict[str, str],
    shared_dir: Path,
    tmp_path: Path,
) -> None:
    del cluster
    chromium = shutil.which("chromium")
    assert chromium, "chromium is missing: toolkit setup --with tests"
    shutil.copy(_CHECKOUT / "jobs/digits-ddp/train.py", shared_dir)
    (shared_dir / "digits.ipynb").write_text(notebook(_TRAIN, _PLOT))
    port = str(free_port())
    words = ("--image", str(notebook_image), "--cpus-per-task", "4", "--time", "30")
    door = Forward(shared_dir, toolkit_env, "notebook", *words, "--port", port)
    address = door.entry["address"]
    with own_sshd(tmp_path) as env, sync_playwright() as playwright:
        tunnel = subprocess.Popen(shlex.split(door.entry["ssh"]), env={**os.environ, **env})
        wait_for(lambda: _answers(int(port)), "the tunnel")
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        page = browser.new_page(viewport={"width": 1100, "height": 800})
        page.goto(address, timeout=_MINUTES)
        page.locator("#jp-main-dock-panel").wait_for(timeout=_MINUTES)
        page.goto(f"http://localhost:{port}/lab/tree/digits.ipynb?reset", timeout=_MINUTES)
        page.locator(".jp-Notebook").wait_for(timeout=_MINUTES)
        run_all_cells(page)
        plot = page.locator(".jp-OutputArea-output img")
        plot.wait_for(timeout=_MINUTES)
        text = page.locator(".jp-OutputArea-output").first.inner_text()
        assert text.count("epoch") >= 2
        assert "accuracy" in text
        assert page.evaluate("image => image.naturalWidth", plot.element_handle()) > 200
        page.screenshot(path=shared_dir / "notebook.png")
        if kept := os.environ.get("TOOLKIT_KEEP_SCREENSHOT"):
            shutil.copy(shared_dir / "notebook.png", kept)

        # A second browser beside it, and one that does not know the token.
        other = browser.new_context().new_page()
        other.goto(address, timeout=_MINUTES)
        other.locator("#jp-main-dock-panel").wait_for(timeout=_MINUTES)
        stranger = browser.new_context().new_page()
        stranger.goto(f"http://localhost:{port}/lab", timeout=_MINUTES)
        assert "/login" in stranger.url
        browser.close()
        tunnel.terminate()
        tunnel.wait()
    assert toolkit("notebook", "stop", cwd=shared_dir).returncode == 0
    door.process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
