"""A real Slurm for tests, brought up once per worker, and an ordinary user."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.image_fixtures import IMAGES
from tests.cluster.ordinary_user import User, ordinary_user
from tests.cluster.ranks import ran

Toolkit = Callable[..., "subprocess.CompletedProcess[str]"]
Started = Callable[..., "subprocess.Popen[str]"]
_BASE = Path.home() / ".cache"
_PREFIX = "tk-"
TOOLKIT = (sys.executable, "-m", "toolkit")


@pytest.fixture(scope="session")
def base() -> Iterator[Path]:
    """A short directory that all nodes see, gone at the end; below it are the clusters and what tests write."""
    _take_down_forgotten()
    directory = _BASE / f"{_PREFIX}{os.getpid()}"
    directory.mkdir(parents=True)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def _take_down_forgotten() -> None:
    """Clusters of test runs that were killed, of which one may have had our number."""
    for directory in _BASE.glob(f"{_PREFIX}[0-9]*"):
        number = directory.name.removeprefix(_PREFIX)
        if number != str(os.getpid()) and Path("/proc", number).exists():
            continue
        env = {**os.environ, "TOOLKIT_CLUSTER_DIR": str(directory / "c")}
        for cluster in (directory / "c").glob("*"):
            down = (*TOOLKIT, "cluster", "down", "--name", cluster.name)
            subprocess.run(down, env=env, check=False, timeout=60)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def toolkit_env(base: Path) -> dict[str, str]:
    """The environment of every command: clusters in a directory of the tests, of which `test` is meant where none is named."""
    ours = ("TOOLKIT_", "SLURM", "SBATCH_")
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    place = {"TOOLKIT_CLUSTER_DIR": str(base / "c"), "TOOLKIT_IMAGES": str(IMAGES)}
    return {**inherited, **place, "TOOLKIT_CLUSTER": "test", "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(scope="session")
def toolkit(toolkit_env: dict[str, str]) -> Toolkit:
    """``toolkit("cluster", "status", cwd=..., env=..., timeout=...)`` runs the command as a user types it."""

    def call(*arguments: str, env: Mapping[str, str] | None = None, **more: Any) -> Any:
        return ran(*TOOLKIT, *arguments, env=env or toolkit_env, **more)

    return call


@pytest.fixture(scope="session")
def started(toolkit_env: dict[str, str]) -> Started:
    """``started("logs", "-f", cwd=..., env=...)`` begins the command; what it prints can be read."""

    def call(*arguments: str, env: Mapping[str, str] | None = None, **more: Any) -> Any:
        words, env = (*TOOLKIT, *map(str, arguments)), env or toolkit_env
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(words, env=env, text=True, **{**pipes, **more})

    return call


@pytest.fixture(scope="session")
def cluster(toolkit: Toolkit) -> Iterator[str]:
    """The name of a cluster of three nodes with 8 CPUs, 16 GB and 2 GPUs each; who cuts or kills a node restores it."""
    shape = tuple("--nodes 3 --cpus-per-node 8 --mem-per-node 16G --gpus-per-node 2".split())
    done = toolkit("cluster", "up", *shape)
    assert done.returncode == 0, done.stderr
    yield "test"
    done = toolkit("cluster", "down")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def shared_dir(base: Path, request: pytest.FixtureRequest) -> Path:
    """A fresh directory that all nodes see."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:40]
    names = (name, *(f"{name}-{number}" for number in range(2, 1000)))
    directory = next(base / "w" / each for each in names if not (base / "w" / each).exists())
    directory.mkdir(parents=True)
    return directory


@pytest.fixture(scope="session")
def user() -> Iterator[User]:
    """An ordinary user of this machine: a new one if we are root, else ourselves."""
    with ordinary_user() as found:
        yield found


@pytest.fixture
def launch(toolkit: Toolkit, shared_dir: Path) -> Toolkit:
    """``launch(image, "--nodes 2 train.py", "a b")`` runs in the directory of the test; the first text is several words."""

    def call(image: Path, words: str, *more: str, **options: Any) -> Any:
        argv = ("run", "--image", str(image), *words.split(), *more)
        return toolkit(*argv, **{"cwd": shared_dir, **options})

    return call
