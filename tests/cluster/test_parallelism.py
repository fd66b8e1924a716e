"""The exercises whose ranks each hold a part of a network, on two nodes: the result is that of one process, or the run fails."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ranks import logs_of

pytestmark = pytest.mark.usefixtures("cluster")

# Exercise -> its arguments here, as small as they can be, and the key of the result that says
# whether it is right.
JOBS = {
    "tensor-parallel": (("--epochs", "1", "--batch-size", "240"), "equal_to_one_process"),
    "pipeline": (("--epochs", "1"), "equal_to_one_process"),
    "parallel-3d": (
        ("--epochs", "1", "--batch-size", "192"),
        "equal_to_one_process",
    ),
    "ddp-comm-hooks": (
        ("--epochs", "3", "--loss-of-accuracy", "0.1"),
        "fewer_bytes_and_as_accurate",
    ),
    "horovod-adasum": (("--epochs", "1"), "as_accurate_and_by_the_formula"),
}


def run(
    toolkit: Any, image: Path, directory: Path, *words: object
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run an exercise and return its end, and the result that it printed."""
    done = toolkit("run", "--image", str(image), *map(str, words), cwd=directory, timeout=400)
    outcomes = sorted((directory / "runs").glob("*/outcome.json"))
    outcome = json.loads(outcomes[-1].read_text()) if outcomes else {}
    return done, outcome.get("results") or {}


# The one of three ways at once; `make test-jobs` runs all exercises as well.
_SHORT = "parallel-3d"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name != _SHORT)) for name in JOBS]
)
def test_ranks_on_two_nodes_do_what_one_process_does(name, toolkit, pytorch_image, shared_dir):
    arguments, key = JOBS[name]
    done, results = run(toolkit, pytorch_image, shared_dir, f"jobs/{name}", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert results[key] is True
    assert results["samples_per_second"] > 0
    log = logs_of(shared_dir, f"{name}-0001")
    if name == "parallel-3d":
        assert results["mesh"] == {"data": 2, "pipeline": 2, "tensor": 2}
        assert "images 0 of 2   rank 0 nid001  rank 1 nid001  | rank 2 nid001" in log
        assert "images 1 of 2   rank 4 nid002  rank 5 nid002  | rank 6 nid002" in log
    else:
        assert results["world_size"] == 4
        assert "nid001" in log
        assert "nid002" in log
    if name == "pipeline":
        assert results["kept"] == {"GPipe": [8, 8, 8, 8], "1F1B": [4, 3, 2, 1]}
    if name == "ddp-comm-hooks":
        assert results["not_offered"] == ["bf16"]


def test_a_checkpoint_of_four_ranks_goes_on_with_two(toolkit, pytorch_image, shared_dir):
    """Beside it is a newer one that was never finished: it has no list of contents."""
    job = ("jobs/fsdp", "--checkpoint", "saved", "--steps")
    done, results = run(toolkit, pytorch_image, shared_dir, *job, 6)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (results["world_size"], results["resumed_after"]) == (4, 0)
    assert results["parameters"] == 4 * results["parameters_held"]
    complete = shared_dir / "saved" / "step-000006"
    assert len(list(complete.glob("*.distcp"))) == 4
    half = shared_dir / "saved" / "step-000008"
    shutil.copytree(complete, half, ignore=shutil.ignore_patterns(".metadata", "__3_0.distcp"))

    done, results = run(
        toolkit, pytorch_image, shared_dir, "--ntasks-per-node", 1, *job, 10, "--save-every", 2
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (results["world_size"], results["resumed_after"]) == (2, 6)
    assert results["equal_to_one_process"] is True
    assert (half / ".metadata").is_file(), "the same step was saved again, by two ranks"
