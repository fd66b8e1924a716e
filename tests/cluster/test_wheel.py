"""An installed wheel in an empty folder behaves as a checkout does: recipes, definitions, jobs, sites, templates are in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def installed(toolkit_env: dict[str, str]) -> Path:
    """The command of a virtual environment that has the wheel alone. It lies where the nodes see it."""
    place = Path(toolkit_env["TOOLKIT_CLUSTER_DIR"]) / "wheel"
    place.mkdir()
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", place, CHECKOUT], check=True)
    subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
    (wheel,) = place.glob("*.whl")
    python = place / "venv/bin/python"
    subprocess.run(
        [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", wheel],
        check=True,
    )
    return place / "venv/bin/toolkit"


def test_the_wheel_works_in_an_empty_folder(
    installed: Path, pytorch_image: Path, shared_dir: Path, toolkit_env: dict[str, str]
) -> None:
    def say(*arguments: str) -> str:
        done = subprocess.run(
            [installed, *arguments],
            env=toolkit_env,
            cwd=shared_dir,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert (
        say("image", "render", "pytorch_cpu")
        == (CHECKOUT / "containers/pytorch_cpu.def").read_text()
    )
    assert "pytorch_cpu" in say("image", "list")
    assert "#SBATCH --nodes=2" in say(
        "run", "--dry-run", "--image", str(pytorch_image), "jobs/digits-ddp"
    )
    assert "--mpi=" in say("run", "--dry-run", "--image", str(pytorch_image), "jobs/digits-horovod")
    result = json.loads(
        say(
            "run",
            "--json",
            "--image",
            str(pytorch_image),
            "--nodes",
            "1",
            "jobs/digits-ddp",
            "--epochs",
            "2",
        )
    )
    assert result["exit_code"] == 0
    assert result["results"]["epochs"] == 2


def test_the_wheel_brings_a_cluster_up(
    installed: Path, shared_dir: Path, toolkit_env: dict[str, str]
) -> None:
    for arguments in (
        ("up", "--name", "whl", "--nodes", "1"),
        ("exec", "--name", "whl", "--", "srun", "hostname"),
        ("down", "--name", "whl"),
    ):
        done = subprocess.run(
            [installed, "cluster", *arguments],
            env=toolkit_env,
            cwd=shared_dir,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
