"""Jobs whose imports fail do not queue, and code beside the script reaches the ranks: with a real image, on real nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.samples import write_files

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
    helper = "import numpy\n\ndef double(x):\n    return int(numpy.add(x, x))\n"
    files = {"lib/helper.py": helper, "work/inner/part.py": "value = 21\n", "work/train.py": train}
    write_files(directory, files)
    return directory / "work"


def logs(work: Path) -> list[str]:
    return [path.read_text() for path in work.glob("runs/*/logs/*-*-*.log")]


@pytest.mark.parametrize("is_tree", [False, True])
def test_code_beside_the_working_directory_reaches_the_ranks(
    is_tree, toolkit, shared_dir, pytorch_image
):
    work = project(shared_dir)
    if is_tree:
        (shared_dir / ".git").mkdir()
    options = ("--image", str(pytorch_image), *"--nodes 2 --launcher none train.py".split())
    planned = toolkit("run", "--dry-run", "--explain", *options, cwd=work)
    assert planned.returncode == 0, planned.stderr
    reason = "the git work tree of the working directory" if is_tree else "train.py imports helper"
    assert reason in planned.stderr
    done = toolkit("run", *options, cwd=work, timeout=300)
    assert done.returncode == 0, done.stderr
    assert ["result 42 None" in text for text in logs(work)] == [True, True]


def test_a_job_whose_imports_fail_does_not_queue_and_would_have_failed(
    toolkit, shared_dir, pytorch_image
):
    """What is refused fails indeed: with a reason it is submitted all the same."""
    work = project(shared_dir, "import torch\nimport cv2, einops\n")
    options = ("--image", str(pytorch_image), *"--launcher none train.py".split())
    refused = toolkit("run", *options, cwd=work)
    assert refused.returncode == 97, refused.stderr
    assert "no cv2 (train.py, line 2), einops (train.py, line 2)" in refused.stderr
    assert "--pip opencv-python-headless --pip einops" in refused.stderr
    assert not list(work.glob("runs/*/job.sbatch"))
    forced = toolkit("run", "--force", "see whether it is true", *options, cwd=work, timeout=300)
    assert forced.returncode == 1
    assert "No module named 'cv2'" in "".join(logs(work))
