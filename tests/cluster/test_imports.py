"""Jobs whose imports fail do not queue, and code beside the script reaches the ranks: with a real image, on real nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("cluster")

TRAIN = """\
import sys
sys.path.insert(0, "../lib")
import torch
import sklearn.datasets
import helper
from inner.part import value
try:
    import wandb
except ImportError:
    wandb = None
print("result", helper.double(value), wandb)
"""


def project(directory: Path, train: str = TRAIN) -> Path:
    """Write a project with a library beside the directory that the user stands in."""
    for name, text in {
        "lib/helper.py": "import numpy\n\ndef double(x):\n    return int(numpy.add(x, x))\n",
        "work/inner/part.py": "value = 21\n",
        "work/inner/__main__.py": "from inner.part import value\nprint('module', value)\n",
        "work/train.py": train,
    }.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory / "work"


def jobs(toolkit: Any) -> set[str]:
    """Return the numbers of the cluster's jobs; Slurm forgets those that ended long ago."""
    known = toolkit("cluster", "exec", "--", "squeue", "--noheader", "--states=all", "--format=%i")
    assert known.returncode == 0, known.stderr
    return set(known.stdout.split())


@pytest.mark.parametrize("is_tree", [False, True])
def test_code_beside_the_working_directory_reaches_the_ranks(
    is_tree: bool, toolkit: Any, shared_dir: Path, pytorch_image: Path
) -> None:
    work = project(shared_dir)
    if is_tree:
        (shared_dir / ".git").mkdir()
    options = ("--image", str(pytorch_image), "--nodes", "2", "--launcher", "none")
    planned = toolkit("run", "--dry-run", "--explain", *options, "train.py", cwd=work)
    assert planned.returncode == 0, planned.stderr
    reason = "the git work tree of the working directory" if is_tree else "train.py imports helper"
    assert reason in planned.stderr
    done = toolkit("run", *options, "train.py", cwd=work, timeout=300)
    assert done.returncode == 0, done.stderr
    logs = [path.read_text() for path in work.glob("runs/*/logs/*-*-*.log")]
    assert [text for text in logs if "result 42 None" in text] == logs
    assert len(logs) == 2


def test_a_job_whose_imports_fail_does_not_queue(
    toolkit: Any, shared_dir: Path, pytorch_image: Path
) -> None:
    work = project(shared_dir, TRAIN + "import cv2, einops\n")
    before = jobs(toolkit)
    done = toolkit(
        *"run --image".split(),
        str(pytorch_image),
        *"--nodes 2 --launcher none train.py".split(),
        cwd=work,
    )
    assert done.returncode == 97, done.stderr
    assert "no cv2 (train.py, line 12), einops (train.py, line 12)" in done.stderr
    assert "--pip opencv-python-headless --pip einops" in done.stderr
    assert jobs(toolkit) <= before
    assert not list(work.glob("runs/*/job.sbatch"))


def test_the_ranks_would_have_failed(toolkit: Any, shared_dir: Path, pytorch_image: Path) -> None:
    """What is refused fails indeed: with a reason it is submitted all the same."""
    work = project(shared_dir, "import gone\n")
    options = (
        "--image",
        str(pytorch_image),
        *"--launcher none --force".split(),
        "see whether it is true",
    )
    done = toolkit("run", *options, "train.py", cwd=work, timeout=300)
    assert done.returncode == 1
    logs = "".join(path.read_text() for path in work.glob("runs/*/logs/*.log"))
    assert "No module named 'gone'" in logs


def test_a_module_after_m_is_read_and_runs(
    toolkit: Any, shared_dir: Path, pytorch_image: Path
) -> None:
    work = project(shared_dir)
    options = ("--image", str(pytorch_image), "--launcher", "none")
    done = toolkit("run", *options, "--", "python", "-m", "inner", cwd=work, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "module 21" in "".join(path.read_text() for path in work.glob("runs/*/logs/*-*-*.log"))
    (work / "inner/__main__.py").write_text("import gone\n")
    refused = toolkit("run", *options, "--", "python", "-m", "inner", cwd=work)
    assert refused.returncode == 97, refused.stderr


def test_a_package_is_trained_by_torchrun_as_a_module(
    toolkit: Any, shared_dir: Path, pytorch_image: Path
) -> None:
    """Both ways to write it; the run can be repeated, and relative imports work as for `python -m`."""
    work = project(shared_dir)
    (work / "inner/__init__.py").write_text("")
    (work / "inner/train.py").write_text(
        "import sys\nimport torch.distributed as dist\nfrom .part import value\n"
        "dist.init_process_group('gloo')\nprint('ranks', dist.get_world_size(), value, sys.argv[1:], flush=True)\n"
        "dist.barrier()\ndist.destroy_process_group()\n"
    )
    options = ("--image", str(pytorch_image), "--nodes", "2")
    for words in (
        ("-m", "inner.train", "--lr", "1"),
        ("--", "python", "-m", "inner.train", "--lr", "1"),
        ("runs/train-0001",),
    ):
        done = toolkit("run", *options, *words, cwd=work, timeout=300)
        assert done.returncode == 0, done.stderr
    runs = sorted(work.glob("runs/train-*"))
    assert len(runs) == 3
    for run in runs:
        logs = "".join(path.read_text() for path in run.glob("logs/*-*-*.log"))
        assert logs.count("ranks 2 21 ['--lr', '1']") == 2


def test_the_modules_of_an_image_are_recorded(pytorch_image: Path) -> None:
    manifest = json.loads(pytorch_image.with_suffix(".json").read_text())
    first = manifest["pythons"][0]
    assert first["path"].startswith("/opt/venv/bin/python")
    assert {"torch", "sklearn", "yaml", "json", "sys", "_ctypes"} <= set(first["modules"])
    assert not {"cv2", "einops", "msvcrt"} & set(first["modules"])
