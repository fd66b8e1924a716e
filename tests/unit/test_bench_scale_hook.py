"""What the ranks of a measured run record, with a stand-in of PyTorch's hooks. The real one runs in tests/cluster."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from toolkit.bench.jobs import HOOK
from toolkit.bench.scale.measurement import RankFile
from toolkit.config import package_directory
from toolkit.model.base import from_json

OPTIMIZER = """\
before, after = [], []
def register_optimizer_step_pre_hook(hook): before.append(hook)
def register_optimizer_step_post_hook(hook): after.append(hook)
class Parameter:
    requires_grad = True
    hooks = []
    def numel(self): return 1000
    def element_size(self): return 4
    def register_post_accumulate_grad_hook(self, hook): self.hooks.append(hook)
class Optimizer:
    def __init__(self): self.param_groups = [{"params": [Parameter()]}]
    def step(self):
        for hook in before: hook(self, (), {})
        for hook in after: hook(self, (), {})
"""
BACKWARD = """\
import time
def backward(parameter):
    time.sleep(0.1)
    for hook in parameter.hooks: hook(parameter)
    time.sleep(0.3)  # the rank waits for others
"""
SCRIPT = """\
import os, sys, time
import torch.autograd, torch.optim.optimizer
optimizer = torch.optim.optimizer.Optimizer()
for _ in range(4):
    time.sleep(0.05)
    torch.autograd.backward(optimizer.param_groups[0]["params"][0])
    optimizer.step()
print("ends", flush=True)
"""


def ran(tmp_path: Path, script: str, **more: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """A script that has run as rank 3 with the hook, and the directory of its records."""
    for name, text in (("optim/optimizer.py", OPTIMIZER), ("autograd/__init__.py", BACKWARD)):
        path = tmp_path / "lib" / "torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for package in ("torch", "torch/optim"):
        (tmp_path / "lib" / package / "__init__.py").touch()
    records = tmp_path / "scale"
    records.mkdir()
    for hook in (HOOK, package_directory("scripts") / "report" / "sitecustomize.py"):
        (records / hook.name).write_bytes(hook.read_bytes())
    (tmp_path / "train.py").write_text(script)
    env = {
        "PYTHONPATH": f"{records}:{tmp_path / 'lib'}",
        "TOOLKIT_SCALE": str(records),
        "RANK": "3",
    }
    words = [sys.executable, str(tmp_path / "train.py")]
    done = subprocess.run(words, env=env | more, check=False, capture_output=True, text=True)
    return done, records


def test_a_rank_that_records_no_step_tells_its_machine(tmp_path):
    (path,) = ran(tmp_path, "")[1].glob("*.json")
    file = from_json(path.read_text(), RankFile)
    assert (file.rank, file.steps) == (3, ())
    assert file.cores >= 1


@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "os._exit(0)", "raise ValueError"])
def test_the_steps_of_a_rank_are_recorded_however_it_ends(tmp_path, ending):
    done, records = ran(tmp_path, SCRIPT + ending)
    assert done.stdout == "ends\n"
    assert done.returncode == (1 if "raise" in ending else 0), done.stderr
    (path,) = records.glob("*.json")
    file = from_json(path.read_text(), RankFile)
    assert (file.rank, len(file.steps)) == (3, 4)
    assert file.boot
    assert file.cores >= 1
    # The first step has no hook at its parameters yet; the others have 0.15 s of their own of 0.45.
    for (before, _), (after, own) in pairwise(file.steps):
        assert 0.15 <= own < after - before - 0.25
