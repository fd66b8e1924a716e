"""What is read of a script without running it, and the launcher that follows from that."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.unit.samples import script_case
from toolkit import launchers
from toolkit.model.job import Job
from toolkit.model.source import Construction, Option, Source
from toolkit.planning.script_source import module_source, read

# The heads of scripts as they are found: which launcher they need, and the words that say why.
SCRIPTS = [
    (
        "import torch.distributed as dist\ndist.init_process_group()",
        "torchrun",
        "imports torch.distributed",
    ),
    ("from torch import distributed", "torchrun", "imports torch.distributed"),
    (
        "def main():\n    from torch.distributed import init_process_group",
        "torchrun",
        "imports torch.distributed",
    ),
    (
        "import torch\ntorch.nn.parallel.DistributedDataParallel(x)",
        "torchrun",
        "uses DistributedDataParallel",
    ),
    (
        "import torch, torch.distributed\nimport torch.multiprocessing as mp\nmp.spawn(main)",
        "spawn",
        "calls mp.spawn",
    ),
    ("from torch import multiprocessing\nmultiprocessing.spawn(main)", "spawn", "calls mp.spawn"),
    ("from torch.multiprocessing import spawn as fork\nfork(main)", "spawn", "calls mp.spawn"),
    (
        "parser.add_argument('--multiprocessing-distributed', action='store_true')",
        "spawn",
        "has --multiprocessing-distributed",
    ),
    ("import horovod.torch as hvd, torch.distributed", "horovod", "imports horovod"),
    (
        "import torch\nmodel = torch.nn.DataParallel(model)",
        "none",
        "uses DataParallel, in one process",
    ),
    (
        "import tensorflow as tf\ns = tf.distribute.MultiWorkerMirroredStrategy()",
        "tensorflow",
        "uses a strategy of tf.distribute",
    ),
    (
        "from tensorflow import distribute\ndistribute.MirroredStrategy()",
        "tensorflow",
        "uses a strategy of tf.distribute",
    ),
    ("import tensorflow as tf, horovod.tensorflow as hvd", "horovod", "imports horovod"),
    ("from ray import train\nimport torch.distributed", "ray", "imports ray"),
    (
        "import lightning as L",
        "srun",
        "imports lightning, which takes each task of Slurm for a rank",
    ),
    (
        "import pytorch_lightning as pl, torch.distributed\npl.Trainer(devices=2)",
        "srun",
        "imports pytorch_lightning, which takes each task of Slurm for a rank",
    ),
    (
        "from lightning import LightningDataModule\nfrom transformers import Trainer\nTrainer()",
        "torchrun",
        "imports lightning",
    ),
    ("from ray.train.lightning import x\nimport lightning", "ray", "imports ray"),
    ("from accelerate import Accelerator", "torchrun", "imports accelerate"),
    ("import accelerate, transformers", "torchrun", "imports accelerate"),
    ("from transformers import Trainer\nTrainer(1)", "torchrun", "imports transformers"),
    ("import deepspeed\ndeepspeed.init_distributed()", "torchrun", "imports deepspeed"),
    (
        "import deepspeed, torch.distributed\nparser.add_argument('--local_rank', type=int)",
        "srun",
        "imports deepspeed and has --local_rank, which torchrun does not fill in",
    ),
    (
        "import lightning, deepspeed\nlightning.Trainer(strategy='deepspeed')",
        "srun",
        "imports lightning, which takes each task of Slurm for a rank",
    ),
    ("import torch", "torchrun", "imports nothing that says otherwise"),
    ("import subprocess\nsubprocess.spawn()", "torchrun", "imports nothing that says otherwise"),
    ("def broken(:", "torchrun", "imports nothing that says otherwise"),
]


def choice(
    text: str, tmp_path: Path, frameworks: set[str] | None = None, **job: object
) -> launchers.Choice:
    (tmp_path / "train.py").write_text(text)
    settings = Job(nodes=2, **job)  # type: ignore[arg-type]
    return launchers.choose(
        script_case("train.py", read(tmp_path / "train.py"), frameworks=frameworks, job=settings)
    )


@pytest.mark.parametrize(("text", "launcher", "why"), SCRIPTS)
def test_the_launcher_follows_from_what_the_script_imports_and_calls(
    text: str, launcher: str, why: str, tmp_path: Path
) -> None:
    assert choice(text, tmp_path) == (launcher, f"train.py {why}")


# What on two nodes x two ranks is refused, by a word of the message; all else is left alone.
COPIES = [
    ("import torch\nprint(torch.ones(1))", {}, "4 copies"),
    ("import torch\nmodel = torch.nn.DataParallel(model)", {}, "4 copies"),
    ("import numpy, helper", {"helper.py": "import torch"}, "4 copies"),
    ("import os, torch.multiprocessing as mp\nos.environ['MASTER_ADDR'] = 'localhost'\nmp.spawn(f)", {}, "train alone"),
    ("import os, torch.multiprocessing as mp\nos.environ.setdefault('MASTER_ADDR', 'localhost')\nmp.spawn(f)", {}, ""),
    ("import torch.distributed", {}, ""),
    ("import torch\ntorch.distributed.init_process_group()", {}, ""),
    ("import torch, helper", {"helper.py": "from torch import distributed"}, ""),
    ("import torch, helper", {"helper.py": "def broken(:"}, ""),
    ("import torch, pkg.sub", {"pkg/sub.py": "from . import deep", "pkg/deep.py": "import torch.distributed"}, ""),
    ("import torch, unknown_trainer", {}, ""),
    ("import os\nrank = int(os.environ['SLURM_PROCID'])", {}, ""),
    ("import subprocess\nsubprocess.run(['torchrun', 'x.py'])", {}, ""),
    ("import argparse\np = argparse.ArgumentParser()\np.add_argument('--local_rank')", {}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "modules", "refused"), COPIES)
def test_copies_that_never_meet_are_refused_where_the_script_tells(
    text: str, modules: dict[str, str], refused: str, tmp_path: Path
) -> None:
    for name, content in modules.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "train.py").write_text(text)
    source = read(tmp_path / "train.py")
    for job, is_many in (
        (Job(nodes=2, ntasks_per_node=2), True),
        (Job(nodes=1), False),
        (Job(nodes=2, ntasks_per_node=2, array="0-3"), False),
        (Job(nodes=2, ntasks_per_node=2, sweep=("lr=1,2",)), False),
    ):
        script = script_case("train.py", source, job=job)
        error = launchers.copies(script, launchers.choose(script))
        assert (error is not None) == bool(refused and is_many)
        assert error is None or refused in error.cause


def test_a_package_chooses_the_launcher_and_is_named(tmp_path: Path) -> None:
    """As in diffusion models: scripts/train.py imports a package beside it, which imports mpi4py."""
    package = tmp_path / "diffusion"
    (tmp_path / "scripts").mkdir()
    package.mkdir()
    (tmp_path / "scripts/train.py").write_text("from diffusion import dist_util, logger")
    (package / "__init__.py").touch()
    (package / "logger.py").touch()
    (package / "dist_util.py").write_text("import torch.distributed\nfrom mpi4py import MPI")
    source = read(tmp_path / "scripts/train.py", tmp_path)
    assert launchers.choose(script_case("train.py", source)) == (
        "mpi",
        "train.py imports mpi4py (in diffusion/dist_util.py)",
    )


def test_nothing_is_run(tmp_path: Path) -> None:
    choice(f"open({str(tmp_path / 'ran')!r}, 'w')", tmp_path)
    assert not (tmp_path / "ran").exists()


def test_modules_beside_the_script_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("from parts.inner import work\n")
    (tmp_path / "parts" / "inner.py").write_text("import horovod.torch\nimport train\n")
    assert choice("from parts import work", tmp_path).launcher == "horovod"


def test_an_image_without_torch_starts_a_plain_script_as_it_is(tmp_path: Path) -> None:
    assert choice("import json", tmp_path, frameworks={"tensorflow"}).launcher == "none"


@pytest.mark.parametrize("job", [{"nodes": "1:2"}, {"gpus": "2,1"}, {"max_restarts": 2}])
def test_torchrun_starts_lightning_where_tasks_of_slurm_cannot(
    job: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import lightning\nlightning.Trainer()")
    settings = Job(**job)  # type: ignore[arg-type]
    script = script_case("train.py", read(tmp_path / "train.py"), job=settings)
    assert launchers.choose(script) == ("torchrun", "train.py imports lightning")


def test_the_command_of_accelerate_has_a_launcher_of_its_own() -> None:
    for word, launcher in (("launch", "accelerate"), ("env", "none")):
        job = Job(nodes=2, arguments=(word, "train.py"))
        assert launchers.choose(script_case("accelerate", job=job)).launcher == launcher


def test_one_rank_needs_nobody_to_start_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch")
    assert launchers.choose(script_case("train.py", read(tmp_path / "train.py"))).launcher == "none"
    assert (
        launchers.choose(
            script_case("train.py", read(tmp_path / "train.py"), job=Job(gpus=4))
        ).launcher
        == "torchrun"
    )


def test_a_program_is_run_as_it_is() -> None:
    assert launchers.choose(script_case("bench.sh", job=Job(nodes=4))).launcher == "none"


def test_a_python_script_without_an_ending_is_read_by_its_first_line(tmp_path: Path) -> None:
    body = "import horovod.torch as hvd\nhvd.init()\n"
    (tmp_path / "train").write_text(f"#!/usr/bin/env python3\n{body}")
    (tmp_path / "tool").write_bytes(b"#!/bin/sh\nexec python3 train.py\n")
    (tmp_path / "program").write_bytes(b"\x7fELF python3\n")
    source = read(tmp_path / "train")
    assert launchers.choose(script_case("train", source, job=Job(nodes=2))).launcher == "horovod"
    (warning,) = launchers.warnings(script_case("train", source, launcher="torchrun"))
    assert warning.endswith("--launcher horovod")
    for name in ("tool", "program"):
        assert read(tmp_path / name) == Source()
        assert launchers.choose(script_case(name, job=Job(nodes=2))).launcher == "none"


@pytest.mark.parametrize(
    ("imports", "launcher", "better"),
    [
        ("horovod.torch torch", "torchrun", "horovod"),
        ("torch.distributed", "horovod", "torchrun"),
        ("horovod.torch torch", "horovod", ""),
        ("horovod.torch torch.distributed", "torchrun", ""),
        ("horovod.tensorflow", "tensorflow", "horovod"),
        ("ray.train torch", "torchrun", "ray"),
        ("ray torch.distributed", "ray", ""),
        ("", "torchrun", ""),  # of what could not be read nothing is known
    ],
)
def test_a_script_of_another_framework_than_the_launchers_is_warned_of(
    imports: str, launcher: str, better: str
) -> None:
    source = Source(python=bool(imports), imports=tuple(imports.split()))
    warned = launchers.warnings(script_case("train.py", source, launcher=launcher))
    assert [text.partition("--launcher ")[2] for text in warned] == [better][: bool(better)]


def test_a_strategy_of_tensorflow_is_no_other_launchers() -> None:
    spread = Source(
        python=True,
        imports=("tensorflow",),
        calls=("tensorflow.distribute.MultiWorkerMirroredStrategy",),
    )
    for launcher, is_warned in (("horovod", True), ("tensorflow", False)):
        warned = launchers.warnings(script_case("train.py", spread, launcher=launcher))
        assert ["--launcher tensorflow" in text for text in warned] == [True][:is_warned]


def test_objects_of_imported_classes_are_read_with_the_arguments_that_are_written_out() -> None:
    text = """
import lightning as L
from lightning.pytorch import Trainer as Runs
L.Trainer(devices=2, accelerator="cpu", num_nodes=args.nodes, fast_dev_run=True)
Runs(**options)
own.Trainer()
Local()
list.append(1)
"""
    assert module_source(ast.parse(text)).constructions == (
        Construction(
            name="lightning.Trainer",
            line=4,
            keywords={"devices": 2, "accelerator": "cpu", "num_nodes": None, "fast_dev_run": None},
        ),
        Construction(name="lightning.pytorch.Trainer", line=5, is_whole=False),
        Construction(name="own.Trainer", line=6),
    )


def test_options_are_read_with_whether_they_take_a_value() -> None:
    text = """
parser.add_argument("data", nargs="?")
parser.add_argument("-e", "--epochs", type=int)
parser.add_argument("--multiprocessing-distributed", action="store_true")
group.add_argument("--dist_url", default="env://")
"""
    found = module_source(ast.parse(text)).options
    assert found == (
        Option(flag="--epochs"),
        Option(flag="--multiprocessing-distributed", takes_value=False),
        Option(flag="--dist_url"),
    )
    assert Source(options=found).option("dist-url") == Option(flag="--dist_url")
    assert Source(options=found).option("rank") is None
