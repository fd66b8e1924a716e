"""The failures that only a GPU shows are explained by their cause."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.gpu.conftest import SCRIPTS, explained

RULES = {
    "out-of-memory": "gpu-memory",
    "memory-of-cublas": "gpu-memory",
    "device-ordinal": "device-ordinal",
    "label-out-of-range": "device-assert",
    "illegal-access": "illegal-access",
    "no-gpu": "no-gpu",
    "checkpoint": "cuda-checkpoint",
}


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("kind", RULES)
def test_a_failure_is_named(kind, start):
    """A real failure on a GPU is explained by its cause, and so is the rank that had it."""
    ran = start(SCRIPTS / "failing.py", kind, ranks=1, gpus=1)
    assert ran.code != 0, ran.text
    match = ran.explain()["match"]
    assert match["rule"] == RULES[kind], ran.text
    assert match["sure"] != "possible"


@pytest.mark.usefixtures("gpus")
def test_code_for_another_gpu(tmp_path):
    """A program with code for another kind of GPU only is explained so."""
    compiler = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if compiler is None:
        pytest.skip("nvcc is not here, which compiles for another kind of GPU")
    program = tmp_path / "other"
    source = str(SCRIPTS / "other_architecture.cu")
    listed = subprocess.run(
        [compiler, "--list-gpu-code"], capture_output=True, text=True, check=True
    ).stdout.split()
    capability = "".join(
        subprocess.run(
            ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        )
        .stdout.split()[0]
        .split(".")
    )
    # Code of another first digit never runs on this one.
    other = next(code for code in listed if code[3:-1] != capability[:-1])
    code = f"-gencode=arch=compute_{other[3:]},code={other}"
    subprocess.run([compiler, code, "-o", str(program), source], check=True)
    ended = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    log = tmp_path / "other.log"
    log.write_text(ended.stderr)
    assert explained(str(log), directory=tmp_path)["match"]["rule"] == "gpu-architecture"
