"""GPUs in a container: `--nv` gives it the driver, and it costs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.conftest import SCRIPTS, binds, toolkit

BAR = 0.99  # of the throughput on the host
ROUNDS = 2


@pytest.mark.usefixtures("cluster", "gpus")
def test_the_container_computes_as_fast_as_the_host(place, small_image, record_property):
    """Training in a container with --nv is at least 0.99 as fast as on the host."""
    script = SCRIPTS / "throughput.py"
    host, inside = [], []
    for _ in range(ROUNDS):
        host.append(_speed(_run(place, script, "--runtime", "none", "--gpus-per-node", "1")))
        inside.append(_speed(_run(place, script, *binds(small_image), "--gpus-per-node", "1")))
    ratio = max(inside) / max(host)
    record_property("samples/s in the container", round(max(inside)))
    record_property("samples/s on the host", round(max(host)))
    record_property("ratio", round(ratio, 4))
    assert ratio >= BAR


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
