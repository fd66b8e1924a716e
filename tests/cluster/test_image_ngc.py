"""Recipes on NVIDIA's bases, built on stand-ins that can compile: CUDA's compiler, NCCL and torch are real there.

The header of tests/cluster/standin/ngc_*.toml says in what they differ from NVIDIA's images; tests/cluster/test_image_standins.py
has the way by a registry.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.image_fixtures import real_image
from toolkit.images.recipe import library
from toolkit.images.store import store
from toolkit.images.store.settings import run_in_image

# A base of 6 GB for each, and ten minutes of compiling.
pytestmark = [
    pytest.mark.long,
    pytest.mark.slow("it compiles Horovod for all GPUs that its CUDA knows"),
    pytest.mark.timeout(5400),
]

# What is loaded, and the GPU architectures of the machine code: of the library, and of all that the compiler knows.
LOOK = """\
horovodrun --check-build
cd /opt/venv/lib/python3.*/site-packages/horovod/torch
ldd mpi_lib_v2*.so
echo "code: $(cuobjdump --list-elf mpi_lib_v2*.so | sed -n 's/.*[.]sm_\\([0-9]*\\)[.]cubin$/\\1/p' | sort -nu | xargs)"
echo "known: $(nvcc --list-gpu-code | sed 's/sm_//' | sort -nu | xargs)"
"""


def on_stand_in(recipe: str, base: Path, directory: Path) -> Path:
    """Write a recipe that is a shipped one, but for the address of its base."""
    shipped = library.load(recipe)
    path = directory / f"on_{base.stem}.toml"
    holds = json.dumps(sorted(shipped.base.output().holds))
    path.write_text(
        f'summary = "stand-in"\nextends = "{recipe}"\n[space]\nimage = 6000\nbuild = 10000\n'
        f'[base]\nkind = "localimage"\npath = "{base}"\nhas = {holds}\n'
    )
    own = library.load(str(path))
    assert [step.lines for step in own.steps] == [step.lines for step in shipped.steps]
    return path


@pytest.mark.parametrize("release", ["22.03", "25.06"])
def test_horovod_of_an_image_of_nvidia_is_compiled_with_nccl(release: str, tmp_path: Path) -> None:
    base = real_image(str(Path(__file__).with_name("standin") / f"ngc_{release}.toml"))
    image = real_image(str(on_stand_in(f"pytorch_{release}", base, tmp_path)))
    manifest = store.find(str(image)).manifest
    assert manifest
    assert all(verdict.outcome != "failed" for verdict in manifest.verified)
    done = run_in_image(str(image), ["sh", "-c", LOOK], timeout=300)
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert {"[X] NCCL", "[X] MPI", "[X] Gloo", "[X] PyTorch"} <= set(lines), done
    loaded = dict(line.split(" => ") for line in lines if " => /" in line)
    nccl = loaded["libnccl.so.2"].split()[0]
    assert nccl.endswith("/lib/x86_64-linux-gnu/libnccl.so.2"), done.stdout
    code, known = (line.split()[1:] for line in lines if line.startswith(("code: ", "known: ")))
    assert code
    assert code == known
