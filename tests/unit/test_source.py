"""What is read of a user's program without running it, and the launcher that follows from that."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from tests.unit.samples import findings, make_case, read_script, script_case, source_of, write_files
from toolkit import launchers, source
from toolkit.errors import LauncherMismatchError
from toolkit.model.case import Construction, Source
from toolkit.model.job import Job
from toolkit.planning.plan import decide

# The heads of scripts as they are found: which launcher they need, and the words that say why.
LIGHTNING = ", which takes each task of Slurm for a rank"
SCRIPTS = [
    ("import torch.distributed as dist\ndist.init_process_group()", "torchrun", "imports torch.distributed"),
    ("def f():\n    from torch.distributed import init_process_group", "torchrun", "imports torch.distributed"),
    ("import torch\ntorch.nn.parallel.DistributedDataParallel(x)", "torchrun", "uses DistributedDataParallel"),
    ("import torch, torch.distributed\nimport torch.multiprocessing as mp\nmp.spawn(main)", "spawn", "calls mp.spawn"),
    ("def f():\n    fork(main)\nfrom torch.multiprocessing import spawn as fork", "spawn", "calls mp.spawn"),
    ("p.add_argument('--multiprocessing-distributed', action='store_true')", "spawn", "has --multiprocessing-distributed"),
    ("import os, multiprocessing\nos.environ['MASTER_ADDR'] = 'localhost'\nmultiprocessing.Process(target=f)", "spawn", "starts processes that meet at localhost"),
    ("import horovod.torch as hvd, torch.distributed", "horovod", "imports horovod"),
    ("import horovod.torch as hvd\n@hvd.elastic.run\ndef train(): pass", "horovod-elastic", "runs horovod's elastic.run"),
    ("import mpi4py.MPI, torch.distributed", "mpi", "imports mpi4py"),
    ("def f():\n    import mpi4py\nimport torch.distributed", "torchrun", "imports torch.distributed"),
    ("import torch\nmodel = torch.nn.DataParallel(model)", "none", "uses DataParallel, in one process"),
    ("import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()", "tensorflow", "uses a strategy of tf.distribute"),
    ("import tensorflow as tf, horovod.tensorflow as hvd", "horovod", "imports horovod"),
    ("from ray import train\nimport torch.distributed", "ray", "imports ray"),
    ("import ignite.distributed as idist", "srun", f"imports ignite.distributed{LIGHTNING}"),
    ("import pytorch_lightning as pl, torch.distributed\npl.Trainer(devices=2)", "srun", f"imports pytorch_lightning{LIGHTNING}"),
    ("from lightning import LightningDataModule\nfrom transformers import Trainer\nTrainer()", "torchrun", "imports lightning"),
    ("from ray.train.lightning import x\nimport lightning", "ray", "imports ray"),
    ("from accelerate import Accelerator", "torchrun", "imports accelerate"),
    ("from transformers import Trainer\nTrainer()", "torchrun", "imports transformers"),
    ("import deepspeed\ndeepspeed.init_distributed()", "torchrun", "imports deepspeed"),
    ("import deepspeed, torch.distributed\np.add_argument('--local_rank', type=int)", "srun", "imports deepspeed and has --local_rank, which torchrun does not fill in"),
    ("import torch.distributed\nrank = os.environ['SLURM_PROCID']", "srun", "reads SLURM_PROCID"),
    ("import torch.distributed\ng('RANK') or g('SLURM_PROCID')", "torchrun", "imports torch.distributed"),
    ("import torch", "torchrun", "imports nothing that says otherwise"),
    ("from .ray import x", "torchrun", "imports nothing that says otherwise"),
    ("def broken(:", "torchrun", "imports nothing that says otherwise"),
]  # fmt: skip


def choose(tmp_path: Path, text: str, frameworks: set[str] | None = None, **job: Any) -> Any:
    read = read_script(write_files(tmp_path, {"train.py": text}))
    return script_case("train.py", read, frameworks=frameworks, job=Job(**{"nodes": 2, **job}))


@pytest.mark.parametrize(("text", "launcher", "why"), SCRIPTS)
def test_the_launcher_follows_from_what_the_script_imports_and_calls(text, launcher, why, tmp_path):
    assert launchers.choose(choose(tmp_path, text)) == (launcher, f"train.py {why}")


# What on two nodes x two ranks is refused, by a word of the message; all else is left alone.
COPIES = [
    ("import torch\nprint(torch.ones(1))", {}, "4 copies"),
    ("import numpy, helper", {"helper.py": "import torch"}, "4 copies"),
    ("import os, torch.multiprocessing as mp\nos.environ['MASTER_ADDR'] = 'localhost'\nmp.spawn(f)", {}, "train alone"),
    ("import os, torch.multiprocessing as mp\nos.environ.update(MASTER_ADDR='localhost')\nmp.spawn(f)", {}, "train alone"),
    ("import torch.multiprocessing as mp\ninit(init_method=f'tcp://127.0.0.1:{port}')\nmp.spawn(f)", {}, "train alone"),
    ("import os, torch.multiprocessing as mp\nos.environ.setdefault('MASTER_ADDR', 'localhost')\nmp.spawn(f)", {}, ""),
    ("import torch\ntorch.distributed.init_process_group()", {}, ""),
    ("import torch, helper", {"helper.py": "def broken(:"}, ""),
    ("import torch, pkg.sub", {"pkg/sub.py": "from . import deep", "pkg/deep.py": "import torch.distributed"}, ""),
    ("import torch, compiled", {"compiled.so": ""}, ""),
    ("import subprocess\nsubprocess.run(['torchrun', 'x.py'])", {}, ""),
    ("import argparse\np = argparse.ArgumentParser()\np.add_argument('--local_rank')", {}, ""),
]  # fmt: skip


MANY = Job(nodes=2, ntasks_per_node=2)


def copies(folder: Path, job: Job) -> str:
    case = script_case("train.py", read_script(folder), job=job)
    error = launchers.copies(case, launchers.choose(case)[0], is_auto=True)
    return error.cause if error else ""


@pytest.mark.parametrize(("text", "modules", "refused"), COPIES)
def test_copies_that_never_meet_are_refused_where_the_script_tells(
    text, modules, refused, tmp_path
):
    cause = copies(write_files(tmp_path, {**modules, "train.py": text}), MANY)
    assert refused in cause
    assert bool(refused) == bool(cause)


@pytest.mark.parametrize(
    "job", [Job(nodes=1), replace(MANY, array="0-3"), replace(MANY, sweep=("lr=1,2",))]
)
def test_one_rank_and_elements_of_an_array_are_no_copies(job, tmp_path):
    assert not copies(write_files(tmp_path, {"train.py": COPIES[0][0]}), job)


TRAINER = "import lightning\nlightning.Trainer()"


@pytest.mark.parametrize(
    ("text", "frameworks", "job", "launcher"),
    [
        ("import json", {"tensorflow"}, {}, "none"),
        ("import os\nos.environ['SLURM_PROCID']", {"tensorflow"}, {}, "none"),
        ("import torch", None, {"nodes": 1}, "none"),
        ("import horovod.torch", None, {"nodes": 1, "runtime": "docker"}, "horovod-gloo"),
        ("import torch", None, {"nodes": 1, "gpus": 4}, "torchrun"),
        *((TRAINER, None, job, "torchrun") for job in ({"nodes": "1:2"}, {"gpus": "2,1"}, {"max_restarts": 2})),
    ],
)  # fmt: skip
def test_the_launcher_follows_from_the_job_and_the_image_too(
    text, frameworks, job, launcher, tmp_path
):
    assert launchers.choose(choose(tmp_path, text, frameworks, **job))[0] == launcher


@pytest.mark.parametrize(
    ("content", "launcher"),
    [
        (b"#!/usr/bin/env python3\nimport horovod.torch as hvd\n", "horovod"),
        (b"#!/bin/sh\nexec python3 train.py\n", "none"),
        (b"\x7fELF python3\n", "none"),
        (b"\x7fELF\0\0libm.so.6\0libmpi.so.40\0", "mpi"),
    ],
)
def test_a_file_without_an_ending_is_read_by_its_first_bytes(content, launcher, tmp_path):
    (tmp_path / "train").write_bytes(content)
    case = script_case("train", read_script(tmp_path, "train"), job=Job(nodes=2))
    assert launchers.choose(case)[0] == launcher


def test_options_and_objects_are_read_with_their_arguments(tmp_path):
    text = """
import lightning as L
from lightning.pytorch import Trainer as Runs
L.Trainer(devices=-1, accelerator="cpu", num_nodes=args.nodes, fast_dev_run=True)
Runs(**options)
own.Trainer()
Local()
list.append(1)
parser.add_argument("data", nargs="?")
parser.add_argument("-e", "--epochs", type=int)
parser.add_argument("--multiprocessing-distributed", action="store_true")
group.add_argument("--dist_url", default="env://")
"""
    read = read_script(write_files(tmp_path, {"train.py": text}))
    keywords: dict[str, int | str | None]
    keywords = {"devices": -1, "accelerator": "cpu", "num_nodes": None, "fast_dev_run": None}
    assert read.constructions == (
        Construction(name="lightning.Trainer", line=4, keywords=keywords),
        Construction(name="lightning.pytorch.Trainer", line=5, is_whole=False),
        Construction(name="own.Trainer", line=6),
    )
    named = {"--epochs": True, "--multiprocessing-distributed": False, "--dist_url": True}
    assert read.options == named
    assert (read.option("dist-url"), read.option("rank")) == ("--dist_url", "")


# Ways to import ``gone``: every run does, or it does not or may do without.
CERTAIN = [
    *("import gone", "import gone.part as g", "from gone import *"),
    "from gone.part import (a,\n    b as c)",
    "class Settings:\n    import gone",
    'if __name__ == "__main__":\n    import gone',
    "try:\n    import gone\nexcept OSError:\n    pass\nimport gone",
    "import subprocess\nsubprocess.run(['nvidia-smi'])\nimport gone",
]
OPEN = [
    "if sys.version_info >= (3, 8):\n    import gone",
    "if __name__ == '__main__':\n    pass\nelse:\n    import gone",
    "async def plot():\n    from gone import x",
    "match 1:\n    case 2:\n        import gone",
    "try:\n    import gone\nexcept ImportError:\n    raise SystemExit('install gone')",
    "try:\n    import torch\nexcept ImportError:\n    import gone",
    "x = lambda: __import__('gone')",
    *("text = 'import gone'", "from . import gone", "import __main__"),
    *("import gone\ntype X = int\ndef broken(:", "import gone\n\0"),
]


@pytest.mark.parametrize("code", [*CERTAIN, *OPEN])
def test_an_import_is_certain_where_every_run_executes_it(code, tmp_path):
    text = f"import os, sys, contextlib, importlib.util, warnings\n{code}\n"
    read = read_script(write_files(tmp_path, {"train.py": text}))
    assert ("gone" in {each.name for each in read.needed}) is (code in CERTAIN)
    assert not read.doubt


@pytest.mark.parametrize(
    "code",
    [
        "sys.modules['gone'] = sys",
        "sys.meta_path.append(Finder())",
        "sys.path = ['lib']",
        "exec(text)",
        "import importlib\nimportlib.import_module('gone')",
        "from sys import path\npath.append(f())",
        "import site\nsite.addsitedir('x')",
    ],
)
def test_a_script_that_may_find_more_modules_than_are_seen_is_not_sure(code, tmp_path):
    write_files(tmp_path, {"train.py": f"import sys\n{code}\nimport gone\n"})
    read = read_script(tmp_path)
    assert read.doubt
    assert not read.directories


@pytest.mark.parametrize("seed", range(25))
def test_what_python_itself_imports_is_found(seed, tmp_path, monkeypatch):
    """Let Python run generated projects: just where an import fails, a module is missing."""
    draw = random.Random(seed)
    names = ["alpha", "beta", "gamma", "delta"]
    files: dict[str, str] = {}
    places = ["job/{}.py", "job/{}/__init__.py", "job/{}/inner.py", "", "lib/{}.py", "{}.py"]
    for number, name in enumerate(names):
        text = "import json\n"
        if number < 3 and draw.random() < 0.5:
            text += f"import {draw.choice(names[number + 1 :])}\n"
        if draw.random() < 0.4:
            text += f"try:\n    import {draw.choice(names)}_gone\nexcept ImportError:\n    pass\n"
        if place := draw.choice(places):
            files[place.format(name)] = text
    used = "".join(f"import {name}\n" for name in draw.sample(names, draw.randint(1, 4)))
    job = write_files(tmp_path, {**files, "job/train.py": f"import os\n{used}"}) / "job"
    monkeypatch.chdir(job)
    done = subprocess.run([sys.executable, "-S", "train.py"], capture_output=True, text=True)
    read = read_script(job, known=(*sys.stdlib_module_names, *sys.builtin_module_names))
    missing = {each.name for each in read.needed} & set(names)
    assert bool(missing) == (done.returncode != 0), (files, done.stderr)


# How scripts add a library outside of the working directory to the search path, or the job does.
OUTSIDE = [
    ("import sys\nsys.path.insert(0, '../lib')\nimport helper", "", True),
    ("import sys as s, helper\ns.path[0:0] = [os.path.join(os.path.pardir, 'lib')]", "", True),
    ("import settings, helper", "", True),
    ("import helper", "{}/lib", False),
    ("import helper", "{}/lib:/usr/lib", True),  # an image has a /usr/lib of its own
]


@pytest.mark.parametrize(("text", "path", "doubted"), OUTSIDE)
def test_a_directory_that_the_script_searches_is_read_and_bound(text, path, doubted, tmp_path):
    settings = "import sys\nsys.path.append('../lib')\n"
    files = {"lib/helper.py": "import json\n", "job/settings.py": settings, "job/train.py": text}
    root = write_files(tmp_path, files)
    job = Job(env={"PYTHONPATH": path.format(root)})
    read = read_script(root / "job", job=job)
    assert [*read.directories] == [str(root / "lib")]
    assert "helper" not in {each.name for each in read.needed}
    assert bool(read.doubt) is doubted, "whether it is found there, only a run shows"
    bound = replace(job, bind=(f"{root}/lib:{root}/lib:ro",))
    assert not read_script(root / "job", job=bound).directories


def test_a_directory_of_many_files_is_not_listed_for_a_module(tmp_path, monkeypatch):
    text = "import sys\nsys.path.append('../lib')\nimport helper"
    root = write_files(tmp_path, {"lib/helper.py": "", "job/train.py": text})
    monkeypatch.setattr(source, "_MOST_LISTED", 0)
    assert "helper" in {each.name for each in read_script(root / "job").needed}


def test_a_directory_that_cannot_be_listed_has_no_modules(tmp_path, monkeypatch):
    finder = Mock(find_spec=Mock(side_effect=OSError(5, "of a file server")))
    monkeypatch.setattr(source, "_finder", Mock(return_value=finder))
    write_files(tmp_path, {"train.py": "import gone"})
    assert [each.name for each in read_script(tmp_path).needed] == ["gone"]


def test_compiled_modules_of_another_python_are_found(tmp_path):
    files = dict.fromkeys(("a.so", "b.cpython-39-aarch64-linux-gnu.so", "c/__init__.pyc"), "")
    write_files(tmp_path, {**files, "train.py": "import a, b, c.d"})
    assert not read_script(tmp_path).needed


@pytest.mark.parametrize(
    ("link", "files"),
    [
        ("train.py", {"real/train.py": "import helper", "real/helper.py": "", "job/x": ""}),
        ("pkg", {"job/train.py": "import pkg", "real/pkg/__init__.py": ""}),
    ],
)
def test_what_is_a_link_is_bound_where_it_really_is(link, files, tmp_path):
    root = write_files(tmp_path, files)
    (root / "job" / link).symlink_to(f"../real/{link}")
    read = read_script(root / "job")
    assert not read.needed
    assert [*read.directories] == [str(root / "real")]


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00i",
        b"# coding: no-such\nimport gone",
        b"import gone\n" + b"(" * 9000,
        b"x = " + b"-" * 200000 + b"1",
        b"import gone\n" + b"#" * (1 << 20),
        b"\xef\xbb\xbfimport json",
        b"from ....... import gone",
        b"if x == 0:\n    pass\n" + b"elif x == 1:\n    pass\n" * 3000,
        b"import " + b".".join([b"a"] * 5000),
        b"import torch\nsys.path.append('\\0')\nsys.path.append('" + b"x" * 5000 + b"')",
    ],
    ids=range(10),
)  # fmt: skip
def test_what_cannot_be_parsed_is_left_to_python(content, tmp_path):
    (tmp_path / "train.py").write_bytes(content)
    read = read_script(tmp_path)
    assert not {each.name for each in read.needed} & {"gone"}
    assert read.sha256


def test_pipes_and_directories_under_a_modules_name_are_not_waited_for(tmp_path):
    write_files(tmp_path, {"train.py": "import pipe, folder\n"})
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()
    assert {each.name for each in read_script(tmp_path).needed} == {"pipe", "folder"}
    assert read_script(tmp_path, "pipe.py") == Source()


def test_circles_of_modules_and_of_links_end(tmp_path):
    files = {"train.py": "import a, loop.loop.loop.b\n", "a.py": "import b\n"}
    write_files(tmp_path, {**files, "b.py": "import a, train, gone\n"})
    (tmp_path / "loop").symlink_to(".")
    assert [each.name for each in read_script(tmp_path).needed] == ["gone"]


@pytest.mark.timeout(100)  # a linear reader needs three seconds
def test_a_script_of_endless_imports_is_read(tmp_path):
    text = "".join(f"import a{number}\n" for number in range(20_000))
    assert len(read_script(write_files(tmp_path, {"train.py": text})).needed) == 20_000


TRAINER_HEAD = "import lightning as L; from lightning.pytorch.cli import LightningCLI\n"


@pytest.mark.parametrize(
    ("call", "job", "places"),
    [
        ("L.Trainer(devices=2, num_nodes=2)", {}, []),
        ("L.Trainer(devices=4, num_nodes=2)", {}, ["--ntasks-per-node"]),
        ("L.Trainer(devices=2, num_nodes=1)", {}, ["--nodes"]),
        ("L.Trainer(devices=4)", {}, ["--ntasks-per-node"]),
        ("L.Trainer()", {}, []),
        ("L.Trainer()", {"env": {"PL_TRAINER_NUM_NODES": "1"}}, ["--nodes"]),
        ("L.Trainer()", {"pass_env": ("PL_TRAINER_DEVICES",)}, []),
        ("L.Trainer()", {"nodes": 1, "ntasks_per_node": 1}, []),
        ("L.Trainer(num_nodes=2, devices=-1)", {"gpus": 2, "ntasks_per_node": None}, []),
        ("L.Trainer(num_nodes=2, devices='auto', accelerator='cpu')", {"gpus": 2, "ntasks_per_node": None}, ["--ntasks-per-node"]),
        ("L.Fabric(devices=1, num_nodes=2)", {}, ["--ntasks-per-node"]),
        ("L.Trainer(devices=args.devices, num_nodes=args.nodes)", {}, []),
        ("L.Trainer(**options)", {}, []),
        ("L.Trainer(devices=1) or L.Trainer(devices=4)", {}, []),
        ("L.Trainer(devices=3)", {"launcher": "torchrun", "nodes": "1:2"}, []),
        ("L.Trainer(devices=2, num_nodes=2)", {"job_name": "interactive"}, ["--job-name"]),
        ("LightningCLI(Model)", {}, ["--nodes", "--ntasks-per-node"]),
        ("LightningCLI(Model)", {"arguments": ("fit", "--config=x.yaml")}, []),
        ("LightningCLI(Model, trainer_defaults={'devices': 2})", {}, []),
        ("LightningCLI(Model)", {"arguments": ("--trainer.devices", "2", "--trainer.num_nodes=2")}, []),
        ("LightningCLI(Model)", {"arguments": ("-c", "x", "--trainer.devices=4", "--trainer.num_nodes", "2")}, ["--ntasks-per-node"]),
    ],
)  # fmt: skip
def test_a_trainer_of_another_shape_than_the_jobs_does_not_queue(call, job, places):
    found = findings({"launcher": "srun", **job}, source=source_of(TRAINER_HEAD + call))
    assert [finding.place for finding in found] == places
    if places == ["--nodes"] and "num_nodes=1" in call:
        assert "num_nodes=1) in line 2 is for 1 node, and the job has 2" in str(found[0])
        assert found[0].next_step == "num_nodes=2 in the script, or --nodes 1"
    if "CLI" in call and "--nodes" in places:
        assert found[0].next_step == "--trainer.num_nodes 2, or --nodes 1"
    assert {type(finding) for finding in found} <= {LauncherMismatchError}


@pytest.mark.parametrize(
    ("text", "job", "variables"),
    [
        ("L.Trainer()", {}, {"PL_TRAINER_DEVICES": "2", "PL_TRAINER_NUM_NODES": "2"}),
        ("L.Trainer(devices=2, max_epochs=1)", {}, {"PL_TRAINER_NUM_NODES": "2"}),
        ("L.Trainer(**options)", {}, {"PL_TRAINER_DEVICES": "2", "PL_TRAINER_NUM_NODES": "2"}),
        ("L.Trainer(devices=2, num_nodes=2)", {}, {}),
        ("f = L.Fabric(num_nodes=2); f.launch()", {}, {"LT_DEVICES": "2"}),
        ("L.Fabric(num_nodes=2) or L.Fabric(devices=2)", {}, {"LT_CLI_USED": "1"}),
        ("f = L.Fabric(**options); f.launch()", {}, {}),
        ("L.Fabric()", {}, {"LT_CLI_USED": "1", "LT_DEVICES": "2", "LT_NUM_NODES": "2"}),
        ("LightningCLI(Model, trainer_defaults={'devices': 2})", {}, {}),
        ("import accelerate", {}, {"ACCELERATE_USE_CPU": "true"}),
        ("import accelerate", {"gpus": 2, "ntasks_per_node": None}, {}),
        ("import accelerate", {"env": {"ACCELERATE_USE_CPU": "false"}}, {"ACCELERATE_USE_CPU": "false"}),
    ],
)  # fmt: skip
def test_trainers_are_told_what_the_script_leaves_out(text, job, variables):
    source = source_of(text if "import" in text else TRAINER_HEAD + text)
    told = decide(make_case({"launcher": "srun", **job}, source=source)).environment
    names = {name for name in told if name.startswith(("PL_", "LT_", "ACCELERATE_"))}
    assert {name: told[name] for name in names} == variables
