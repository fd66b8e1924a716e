"""Each command of the tutorials, the how-to guides and the quick start does what its page shows."""

from __future__ import annotations

import doctest
import getpass
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster_fixtures import Toolkit
from tests.cluster.ranks import ran, wait_for
from tests.unit.test_docs import guides
from tests.unit.test_readme import DOCS
from tools.docs.blocks import Block, blocks, commands

# The script of the guides, which readers replace by their own.
SCRIPT_PAGE = DOCS / "how-to/run/index.md"
# Commands that change nothing, and whose answer changes when a job begins or has ended.
ASKS = ("toolkit explain", "toolkit ps", "toolkit cluster show", "toolkit cluster status")


def read(page: Path) -> list[Block]:
    return list(blocks(page.read_text(encoding="utf-8")))


# What `make test` runs of the pages, with all commands of the first one; `make test-all` runs all.
FIRST = ("tutorials/first-run",)


def cases() -> Iterator[object]:
    """Yield each page with commands; once more, as long, if some of its blocks take long."""
    for page in guides():
        shown = [block for block in read(page) if block.language == "console"]
        name = str(page.relative_to(DOCS).with_suffix(""))
        if any(not {"not-run", "long"} & set(block.marks) for block in shown):
            yield pytest.param(
                page, False, id=name, marks=() if name in FIRST else pytest.mark.long
            )
        if any("long" in block.marks for block in shown):
            yield pytest.param(page, True, id=f"{name}-long", marks=pytest.mark.long)


@pytest.fixture(scope="module")
def docs_cluster(toolkit: Toolkit, toolkit_env: dict[str, str]) -> Iterator[dict[str, str]]:
    """The environment of a cluster of two nodes, which the pages share."""
    env = {**toolkit_env, "TOOLKIT_CLUSTER": "docs"}
    done = toolkit(*"cluster up --nodes 2 --gpus-per-node 2".split(), env=env)
    assert done.returncode == 0, done.stderr
    yield env
    done = toolkit("cluster", "down", env=env)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def page_env(
    page: Path, docs_cluster: dict[str, str], shared_dir: Path, toolkit: Toolkit
) -> Iterator[dict[str, str]]:
    """The environment of a page: its own settings, and its own cluster if it starts one."""
    text = page.read_text(encoding="utf-8")
    # Where layers of images are cached is the home; it is replaced only for pages that write to it.
    home = shared_dir if "$HOME" in text else Path.home()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**docs_cluster, "PATH": path, "HOME": str(home)}
    env["XDG_CONFIG_HOME"] = str(shared_dir / ".config")
    has_own_cluster = "$ toolkit cluster up" in text
    if has_own_cluster:
        env["TOOLKIT_CLUSTER"] = "page"
    yield env
    if has_own_cluster:
        toolkit("cluster", "down", env=env)
    else:
        clear_queue(toolkit, env)
    for left in Path(env["TOOLKIT_IMAGES"]).glob("mine.*"):
        left.unlink()


def clear_queue(toolkit: Toolkit, env: dict[str, str]) -> None:
    """Cancel what a page that failed has left in the queue, and wait until the nodes are free."""
    mine = f"--user={getpass.getuser()}"
    done = toolkit("cluster", "exec", "--", "scancel", mine, env=env)
    assert done.returncode == 0, done.stderr
    ask = ("cluster", "exec", "--", "squeue", "--noheader", mine)
    wait_for(lambda: not toolkit(*ask, env=env).stdout, "an empty queue")


def entered(text: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command as bash does."""
    return ran("bash", "-c", f"exec 2>&1\n{text}", cwd=cwd, env=env, timeout=500)


def matches(expected: str, output: str) -> bool:
    """Return whether an output is the expected one; ``...`` stands for any text.

    Widths of columns do not matter. A command without expected output may print anything.
    """
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    # Lines that may be missing are no gap: the blanks around dots belong to what they stand for.
    wanted = "...".join(part.strip() for part in expected.split("..."))
    return not expected or doctest.OutputChecker().check_output(wanted, output, options)


def run(block: Block, cwd: Path, env: dict[str, str]) -> None:
    """Run the commands of a block and compare what they print."""
    shown = commands(block)
    for command in shown:
        done = entered(command.text, cwd, env)
        # A reader types later than this test, when the job before has begun.
        deadline = time.monotonic() + (120 if command.text.startswith(ASKS) else 0)
        while not matches(command.expected, done.stdout) and time.monotonic() < deadline:
            time.sleep(0.5)
            done = entered(command.text, cwd, env)
        code = int(block.marks.get("exit", 0)) if command is shown[-1] else 0
        what = f"line {command.line}: {command.text}\n{done.stdout}"
        assert done.returncode == code, what
        assert matches(command.expected, done.stdout), f"{what}\nexpected:\n{command.expected}"


@pytest.mark.slow("it types all commands of a page")
@pytest.mark.parametrize(("page", "runs_long"), list(cases()))
@pytest.mark.usefixtures("pytorch_image")
def test_page(page, runs_long, shared_dir, page_env):
    files = [block for block in (*read(SCRIPT_PAGE), *read(page)) if "file" in block.marks]
    for block in files:
        (shared_dir / block.marks["file"]).write_text(block.text + "\n", encoding="utf-8")
    for block in read(page):
        is_left = "not-run" in block.marks or ("long" in block.marks and not runs_long)
        if block.language == "console" and not is_left:
            run(block, shared_dir, page_env)
