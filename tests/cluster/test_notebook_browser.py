"""A notebook in a real browser, by the printed ssh command and address."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.cluster.browsing import (
    MINUTES,
    Served,
    choose,
    chromium,
    memory,
    notebook,
    outputs,
    run_all_cells,
    serving,
    wait_until_idle,
)
from tests.cluster.forwarding import LONG, Channels
from tests.cluster.ranks import wait_for
from tests.cluster.ssh import own_sshd

_TRAIN = """
!TORCH_CPP_LOG_LEVEL=ERROR torchrun --standalone \\
    --nproc-per-node 2 train.py --epochs 2 | tee log
"""
_PLOT = r"""
import re
import matplotlib.pyplot as plt
losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", open("log").read())]
plt.figure(figsize=(4, 2.2))
plt.plot(range(1, len(losses) + 1), losses, marker="o")
plt.xlabel("epoch"); plt.ylabel("loss")
plt.title(f"{len(losses)} epochs on 2 ranks")
plt.show()
"""
_FLOOD = "for number in range(20): print(*range(1000), sep=chr(10))"
_ENDLESS = "import time\nwhile True: time.sleep(0.01); print('more')"
_WAITS = """
import pathlib, time
print("it " + "begins")
while not pathlib.Path("again").exists(): time.sleep(0.1)
print("on " + "it goes")
"""
_BROWSERS = 5
_CLIENTS = 40  # that are connected when the job ends
_MOST_MEMORY = 120  # MB of the command, whatever flows through it
_CHECKOUT = Path(__file__).parents[2]

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def reaching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, dict[str, str]]]:
    """A browser, and the environment in which ssh reaches this machine."""
    place = tmp_path_factory.mktemp("sshd")
    with own_sshd(place) as env, sync_playwright() as running, chromium(running) as browser:
        yield browser, env


@pytest.fixture(scope="module")
def served(cluster, notebook_image, reaching, base, toolkit, toolkit_env) -> Iterator[Served]:
    """A notebook for all tests of this file; the last one ends its job."""
    del cluster
    directory = base / "w" / "browser"
    directory.mkdir(parents=True)
    shutil.copy(_CHECKOUT / "jobs/digits-ddp/train.py", directory)
    for name, cells in {
        "digits": (_TRAIN, _PLOT),
        "flood": (_FLOOD, "open('flooded', 'w').close()"),
        "endless": (_ENDLESS,),
        "waits": (_WAITS,),
        "after": ("import time; time.sleep(1); print('on ' + 'it goes')",),
    }.items():
        (directory / f"{name}.ipynb").write_text(notebook(*cells))
    words = ("--image", str(notebook_image), "--cpus-per-task", "4", "--time", "30")
    with serving(directory, reaching, toolkit_env, *words) as running:
        yield running
    toolkit("notebook", "stop", cwd=directory)


def test_two_epochs_and_a_plot(served):
    page = served.page()
    page.locator(".jp-LauncherCard").first.wait_for(timeout=MINUTES)  # no tab of other directories
    page.goto(f"http://localhost:{served.port}/lab/tree/digits.ipynb?reset", timeout=MINUTES)
    page.locator(".jp-Notebook").wait_for(timeout=MINUTES)
    run_all_cells(page)
    plot = page.locator(".jp-OutputArea-output img")
    plot.wait_for(timeout=MINUTES)
    text = page.locator(".jp-OutputArea-output").first.inner_text()
    assert text.count("epoch") >= 2
    assert "accuracy" in text
    assert page.evaluate("image => image.naturalWidth", plot.element_handle()) > 200
    if directory := os.environ.get("TOOLKIT_KEEP_SCREENSHOTS"):
        page.locator("#jp-main-dock-panel").screenshot(path=Path(directory, "notebook.png"))

    # A browser that does not know the token.
    stranger = served.browser.new_context().new_page()
    stranger.goto(f"http://localhost:{served.port}/lab", timeout=MINUTES)
    assert "/login" in stranger.url


def test_a_kernel_that_floods_output_and_several_browsers(served):
    page = served.page("flood.ipynb")
    run_all_cells(page)
    others = [served.page() for _ in range(_BROWSERS)]
    for other in others:
        assert other.evaluate("fetch('/api/status').then(answer => answer.status)") == 200
    wait_for((served.directory / "flooded").is_file, "20,000 lines")
    wait_until_idle(page)
    assert outputs(page).count("\n999") == 20
    assert memory(served.door) < _MOST_MEMORY
    for other in others:
        other.context.close()
    page.context.close()


def test_a_cell_that_prints_for_ever_is_interrupted_while_others_work(served):
    page = served.page("endless.ipynb")
    run_all_cells(page)
    page.locator(".jp-OutputArea-output", has_text="more").first.wait_for(timeout=MINUTES)

    other = served.page("after.ipynb")
    run_all_cells(other)
    other.get_by_text("on it goes", exact=True).wait_for(timeout=MINUTES)
    other.context.close()

    choose(page, "Kernel", "Interrupt Kernel")
    page.get_by_text("KeyboardInterrupt").first.wait_for(timeout=MINUTES)
    wait_until_idle(page)
    page.context.close()


def test_a_page_works_on_after_the_step_was_killed(served, toolkit):
    """What a running cell prints later arrives, and other cells run."""
    page, running = served.page("after.ipynb"), served.page("waits.ipynb")
    run_all_cells(running)
    running.get_by_text("it begins", exact=True).wait_for(timeout=MINUTES)
    wait_until_idle(page)
    steps = toolkit(*"cluster exec -- squeue --steps --noheader".split(), "--format=%i %j").stdout
    (step,) = [row.split()[0] for row in steps.splitlines() if "toolkit-ssh" in row]
    toolkit("cluster", "exec", "--", "scancel", step)
    wait_for(lambda: served.door.says(" again"), "the step to start again")
    choose(page, "Run", "Run All Cells")  # it shows the kernel's state as Unknown until then
    page.get_by_text("on it goes", exact=True).wait_for(timeout=MINUTES)
    (served.directory / "again").touch()
    running.get_by_text("on it goes").wait_for(timeout=MINUTES)
    page.context.close()
    running.context.close()


def test_the_job_ends_under_open_browsers(served, toolkit):
    """Some of the forty are real pages; the others hold the WebSocket of one."""
    pages = [served.page("after.ipynb") for _ in range(_BROWSERS)]
    for page in pages:
        wait_until_idle(page)
    kernels = pages[0].evaluate("fetch('/api/kernels').then(answer => answer.json())")
    token = served.address.split("token=")[1]
    others = range(_CLIENTS - _BROWSERS)
    clients = [Channels(served.door, kernels[0]["id"], token) for _ in others]
    assert toolkit("notebook", "stop", cwd=served.directory).returncode == 0
    for client in clients:
        client.stream.read()  # until the end of the connection
        client.sock.close()
    assert served.door.process.wait(LONG) == 0
    text = served.door.messages.read_text()
    assert ("not running any more" in text, "Traceback" in text) == (True, False), text
    assert not served.door.socket.exists()
    for page in pages:
        # Counted, since to wait for it would close it (see browsing.py).
        wait_for(page.get_by_text("Server Connection Error").count, "the dialog")


def test_an_open_browser_that_nobody_uses_does_not_keep_the_job(
    cluster, notebook_image, reaching, toolkit, toolkit_env, shared_dir
):
    """Jupyter looks once a minute whether it is used."""
    del cluster
    (shared_dir / "after.ipynb").write_text(notebook("print('on')"))
    words = ("--image", str(notebook_image), "--time", "15", "--idle", "20s")
    with serving(shared_dir, reaching, toolkit_env, *words) as running:
        page = running.page("after.ipynb")
        run_all_cells(page)
        assert running.door.process.wait(3 * LONG) == 0
        assert running.door.says("not running any more")
    listed = json.loads(toolkit("ps", "--json", cwd=shared_dir).stdout)
    assert [row["state"] for row in listed] == ["COMPLETED"]
