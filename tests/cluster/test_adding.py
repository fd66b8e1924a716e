"""The launcher and the runtime that docs/contributing adds, on two nodes of the real Slurm."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_adding import PAGES, copy_with

pytestmark = pytest.mark.usefixtures("cluster")

SCRIPT = """\
import os, pathlib, sys, time
rank = int(os.environ["TOY_RANK"])
print("rank", rank, "of", os.environ["TOY_SIZE"], "on", os.uname().nodename, "nice", os.nice(0), flush=True)
if sys.argv[1] == "fail":
    pathlib.Path(f"there-{rank}").touch()
    while rank == 2 and len(list(pathlib.Path().glob("there-*"))) < 4:
        time.sleep(0.1)  # until all have printed: Slurm ends them when one fails
    if rank == 2:
        sys.exit(3)
    time.sleep(300)
"""


@pytest.fixture
def own_env(toolkit_env: dict[str, str], shared_dir: Path) -> dict[str, str]:
    """The environment of a copy of the package with the files of both pages."""
    package = shared_dir / "package"
    package.mkdir()
    (shared_dir / "train.py").write_text(SCRIPT)
    return {**toolkit_env, "PYTHONPATH": str(copy_with(package, *PAGES))}


def test_the_launcher_of_the_page_starts_ranks_in_an_image_and_names_the_one_that_fails(
    toolkit: Any, own_env: dict[str, str], pytorch_image: Path, shared_dir: Path
) -> None:
    words = ("run", "--launcher", "toy", "--image", str(pytorch_image), "--nodes", "2")
    done = toolkit(
        *words, "--ntasks-per-node", "2", "train.py", "fail", cwd=shared_dir, env=own_env
    )
    assert done.returncode == 3, done.stdout + done.stderr
    for rank in range(4):
        assert f"rank {rank} of 4 on nid00{1 + rank // 2}" in done.stdout
    outcome = json.loads((shared_dir / "runs/train-0001/outcome.json").read_text())
    assert (outcome["failure"]["rank"], outcome["failure"]["host"]) == (2, "nid002")


def test_the_runtime_of_the_page_starts_ranks_at_a_lower_priority(
    toolkit: Any, own_env: dict[str, str], shared_dir: Path
) -> None:
    words = ("run", "--launcher", "toy", "--runtime", "toy", "--nodes", "2", "train.py", "end")
    done = toolkit(*words, cwd=shared_dir, env=own_env)
    assert done.returncode == 0, done.stdout + done.stderr
    nice = {line.split()[-1] for line in done.stdout.splitlines() if " rank " in line}
    assert (done.stdout.count(" of 2 on nid00"), len(nice)) == (2, 1), done.stdout
    assert int(nice.pop()) == min(os.nice(0) + 10, 19)
