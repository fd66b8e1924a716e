"""The image for GPUs that public packages make: its contents, and training in it without a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.image_fixtures import real_image
from toolkit.images.store import store
from toolkit.images.store.settings import run_in_image

# 3 GB, and a quarter of an hour where it has to be built.
pytestmark = [
    pytest.mark.long,
    pytest.mark.slow("it may have to build the image"),
    pytest.mark.timeout(3600),
]

CODES = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
# Programs that compile, archives and headers of CUDA (Triton and numpy have small ones of their own), and libraries that must be
# there once.
LOOK = """\
command -v gcc g++ cc nvcc cmake make
cd /opt/venv
find . \\( -path './lib/*/site-packages/triton' -o -path './lib/*/site-packages/numpy' \\) -prune -o \\( -name nvcc -o -name '*.a' -o -name cuda.h -o -name nccl.h \\) -print
for name in libnccl libcudnn libcublasLt libcudart; do find / -xdev -name "$name.so.*" -size +1k; done | sort
"""


@pytest.fixture(scope="module")
def cuda_image() -> Path:
    return real_image("pytorch_cuda")


def test_it_holds_code_by_architecture_no_compiler_and_nothing_twice(cuda_image: Path) -> None:
    manifest = store.find(str(cuda_image)).manifest
    assert manifest
    assert manifest.gpu_code["torch"] == CODES
    assert set(manifest.gpu_code["horovod"]) == {*CODES, "compute_120"}
    assert all(verdict.outcome != "failed" for verdict in manifest.verified)
    assert manifest.size < 3.2e9
    found = run_in_image(str(cuda_image), ["sh", "-c", LOOK], timeout=300).stdout.splitlines()
    assert [path.rpartition("/")[2].partition(".")[0] for path in found] == [
        *("libcublasLt", "libcudart", "libcudnn", "libnccl")
    ], found


@pytest.fixture(scope="module")
def roomy(toolkit: Any, toolkit_env: dict[str, str]) -> Iterator[dict[str, str]]:
    """A cluster whose nodes hold two ranks with CUDA's libraries: each has more than 1 GB."""
    env = {**toolkit_env, "TOOLKIT_CLUSTER": "roomy"}
    done = toolkit(*"cluster up --nodes 2 --mem-per-node 16G".split(), env=env)
    assert done.returncode == 0, done.stderr
    yield env
    toolkit("cluster", "down", env=env)


@pytest.mark.parametrize("name", ["digits-ddp", "digits-horovod"])
def test_exercises_train_in_it_without_a_gpu(
    toolkit: Any, cuda_image: Path, roomy: dict[str, str], shared_dir: Path, name: str
) -> None:
    words = ("--image", cuda_image, "--nodes", 2, "--ntasks-per-node", 2, f"jobs/{name}")
    done = toolkit("run", *map(str, words), cwd=shared_dir, env=roomy, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads((shared_dir / "runs" / f"{name}-0001/outcome.json").read_text())
    assert outcome["results"]["world_size"] == 4
    assert outcome["results"]["accuracy"] > 0.9
