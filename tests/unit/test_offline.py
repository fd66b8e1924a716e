"""Plans on a machine without Slurm, Apptainer or the image: the command itself runs with an empty PATH."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toolkit import sites
from toolkit.errors import (
    ShapeError,
    ToolkitError,
    UnknownImageError,
    UnknownPartitionError,
    UsageError,
)

SCRIPT = "import torch.distributed as dist\ndist.init_process_group()\n"
SUBMIT = ("--site", "neuron", "--image", "pytorch_22.03", "--nodes", "2", "--gpus", "4")
PLAN = (*SUBMIT, "--dry-run")


def laptop(place: Path, *words: str, program: tuple[str, ...] = ("-m", "toolkit")) -> Any:
    """Run the command where no program at all is on PATH, as a user without any settings."""
    (place / "train.py").write_text(SCRIPT)
    env = {"HOME": f"{place}/home", "PATH": f"{place}/nothing", "TOOLKIT_CLUSTER": "none"}
    env["PYTHONPATH"] = str(Path(sites.__file__).parents[2])
    argv = [sys.executable, *program, *words]
    return subprocess.run(
        argv, cwd=place, env=env, capture_output=True, text=True, timeout=60, check=False
    )


# Modules of ours that a dry run may import. Each takes a moment of every command.
_MOST_MODULES = 60
_COUNTING = """
import sys
from toolkit.cli.main import main
try:
    main()
except SystemExit as end:
    names = sorted(name for name in sys.modules if name.partition(".")[0] == "toolkit")
    print(end.code, len(names), *names, file=sys.stderr)
"""


def test_a_dry_run_imports_few_modules(tmp_path):
    (tmp_path / "counting.py").write_text(_COUNTING)
    # Of an image that is no recipe: for GPUs, a recipe that is not built here is planned, too.
    words = ("run", *PLAN, "--image", "/apps/images/foreign.sif", "train.py")
    done = laptop(tmp_path, *words, program=("counting.py",))
    code, count, *names = done.stderr.splitlines()[-1].split()
    assert code == "0", done.stderr
    assert int(count) <= _MOST_MODULES, names


def test_the_script_is_printed_with_one_warning(tmp_path):
    done = laptop(tmp_path, "run", *PLAN, "train.py")
    assert done.returncode == 0, done.stderr
    for line in ("#SBATCH --nodes=2", "#SBATCH --gres=gpu:4", "module load singularity/4.3.4"):
        assert line in done.stdout
    assert "singularity run --cleanenv" in done.stdout
    assert "images/pytorch_22.03.sif" in done.stdout
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning")]
    assert len(warnings) == 1
    for words in ("without the cluster", "site neuron, 2026-08", "Not checked", "the image ("):
        assert words in warnings[0]
    assert "the job's comment is the example" in warnings[0]
    assert not (tmp_path / "runs").exists(), "a dry run writes nothing"


REFUSED: list[tuple[str, type[ToolkitError], str]] = [
    ("--partition cas_v100_4 --gpus 9", ShapeError, "has 4 GPU"),
    ("--partition cas_v100", UnknownPartitionError, "close     cas_v100_4"),
    ("--partition jupyter --gpus 0", UsageError, "takes no batch jobs"),
    ("--comment pytorch", UsageError, "this site wants field="),
    ("--mem 5G", UsageError, "memory goes with the cores"),
    ("--time 72:00:00", ShapeError, "2880 minutes at most"),
    ("--runtime conda --env torch", UsageError, "which this machine does not reach"),
    ("--image pytorch_22.3", UnknownImageError, "close     pytorch_22.03"),
]


@pytest.mark.parametrize(("words", "code", "says"), REFUSED)
def test_what_the_sites_file_alone_refuses_is_refused(tmp_path, words, code, says):
    done = laptop(tmp_path, "run", *PLAN, *words.split(), "train.py")
    assert (done.returncode, done.stdout) == (code.exit_code, ""), done.stderr
    assert says in done.stderr


GRANTED = [
    ("--partition cas_v100_4", "#SBATCH --cpus-per-task=40"),  # the GPUs' share, from the file
    ("--image /apps/images/foreign.sif", "singularity exec --cleanenv"),
    ("--bind /apps/data:/data:ro", "--bind /apps/data:/data:ro"),
    ("--launcher mpirun", "mpirun"),
    ("--launcher horovod", "--mpi=pmix"),
    ("--runtime pyxis --image nvcr.io/nvidia/pytorch:22.03-py3", "--container-image"),
    ("--comment field=nlp;appl=pytorch", "field=nlp;appl=pytorch"),
]


@pytest.mark.parametrize(("words", "says"), GRANTED)
def test_what_only_the_cluster_could_tell_is_taken_for_granted(tmp_path, words, says):
    done = laptop(tmp_path, "run", *PLAN, *words.split(), "train.py")
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
    assert "without the cluster" in done.stderr
