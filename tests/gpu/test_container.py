"""GPUs in a container: `--nv` gives it the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.conftest import SCRIPTS, binds, toolkit

ROUNDS = 2


@pytest.mark.usefixtures("cluster", "gpus")
def test_the_container_computes_beside_the_host(place, small_image, record_property):
    """Training in a container with --nv, beside the same on the host: samples per second, in turns."""
    script = SCRIPTS / "throughput.py"
    host, inside = [], []
    for _ in range(ROUNDS):
        host.append(_speed(_run(place, script, "--runtime", "none", "--gpus-per-node", "1")))
        inside.append(_speed(_run(place, script, *binds(small_image), "--gpus-per-node", "1")))
    record_property("in the container", ", ".join(f"{speed:.0f}" for speed in inside))
    record_property("on the host", ", ".join(f"{speed:.0f}" for speed in host))
    record_property("ratio of the best", round(max(inside) / max(host), 4))


@pytest.mark.usefixtures("cluster")
def test_a_container_runs_the_hosts_python(place, small_image):
    """A small image is entered through Slurm and Apptainer, with the driver where there is one."""
    assert "TORCH 2." in _run(place, SCRIPTS / "version.py", *binds(small_image))


def _run(place: Path, script: Path, *options: str) -> str:
    common = ("--launcher", "none", "--nodes", "1", "--time", "5")
    ended = toolkit("run", *common, *options, str(script), cwd=place)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def _speed(text: str) -> float:
    return float(next(line.partition("SPEED ")[2] for line in text.splitlines() if "SPEED" in line))
