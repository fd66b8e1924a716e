"""Commands of other launchers, as people paste them after ``--``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from toolkit.cli.main import cli
from toolkit.errors import ScriptMissingError

NEURON = ["--site", "neuron", "--image", "pytorch_22.03", "--partition", "amd_a100nv_8"]

# What was typed after the options of toolkit run; nodes, ranks on each, the launcher and the program that follow.
PASTED = [
    ("torchrun --nproc-per-node 2 --nnodes=2 --rdzv-backend=c10d --rdzv_endpoint=h:29500 train.py -x 'a b'", (2, 2, "torchrun", ["train.py", "-x", "a b"])),
    ("torchrun --standalone --nproc_per_node=4 -m pkg.train --lr 1", (1, 4, "torchrun", ["-m", "pkg.train", "--lr", "1"])),
    ("torchrun --nnodes 1:3 --max-restarts 2 --nproc-per-node 1 train.py", ("1:3", 1, "torchrun", ["train.py"])),
    ("python -m torch.distributed.run --nproc-per-node=2 train.py", (1, 2, "torchrun", ["train.py"])),
    ("python -W ignore -u -m torch.distributed.run --nproc-per-node=2 train.py", (1, 2, "torchrun", ["train.py"])),
    ("python3 -m torch.distributed.launch --nproc_per_node=2 --use_env train.py", (1, 2, "torchrun", ["train.py"])),
    ("horovodrun -np 4 -H a:2,b:2 --verbose python hvd.py", (2, 2, "horovod", ["python3", "hvd.py"])),
    ("mpirun -np 4 --allow-run-as-root --mca btl tcp,self -x A=1 python hvd.py", (1, 4, "mpi", ["python3", "hvd.py"])),
    ("mpiexec -n 2 -ppn 1 -hosts a,b ./train.py", (2, 1, "mpi", ["python3", "train.py"])),
    ("srun -N 2 --ntasks-per-node=4 --mpi=pmix python -u train.py", (2, 4, "srun", ["python3", "train.py"])),
    ("composer -n 2 train.py", (1, 2, "torchrun", ["train.py"])),
    ("fabric run --num-nodes=2 --devices=4 train.py", (2, 4, "srun", ["python3", "train.py"])),
    ("ray job submit --address http://h:8265 --working-dir . -- python ray_train.py", (1, 1, "ray", ["python3", "ray_train.py"])),
    ("horovodrun -np 2 -H a:4 python hvd.py", (1, 2, "horovod", ["python3", "hvd.py"])),
    ("mpirun -np 2 -x PATH -x LD_LIBRARY_PATH python hvd.py", (1, 2, "mpi", ["python3", "hvd.py"])),
    ("mpirun -np 16 -N 8 --hostfile hosts ./train.py", (2, 8, "mpi", ["python3", "train.py"])),
    ("composer --world_size 4 -n 2 train.py", (2, 2, "torchrun", ["train.py"])),
    ("srun -N 2 --ntasks-per-node 1 torchrun --nnodes 2 --nproc_per_node 4 --rdzv_backend c10d --rdzv_endpoint h:1 train.py", (2, 4, "torchrun", ["train.py"])),
    ("srun -N2 -n4 python train.py", (2, 2, "srun", ["python3", "train.py"])),
    ("srun -N 2 -n 2 accelerate launch train.py", (2, 1, "accelerate", ["train.py"])),
    ("srun -N 2 -n 8 accelerate launch --num_machines 2 --num_processes 4 train.py", (2, 2, "accelerate", ["train.py"])),
    ("deepspeed --bind_cores_to_rank --num_gpus 2 train.py --deepspeed", (1, 2, "torchrun", ["train.py", "--deepspeed"])),
    ("fabric run train.py --devices 2 --accelerator=cpu --lr 1", (1, 2, "srun", ["python3", "train.py", "--lr", "1"])),
    ("trl sft --model_name_or_path m --num_processes 2 --config c.yaml", (1, 2, "accelerate", ["-m", "trl.scripts.sft", "--model_name_or_path", "m", "--config", "c.yaml"])),
    ("colossalai run --nproc_per_node 2 --host a,b train.py", (2, 2, "torchrun", ["train.py"])),
    ("CUDA_VISIBLE_DEVICES=0,1 OMP_NUM_THREADS=1 torchrun --nproc_per_node=2 train.py", (1, 2, "torchrun", ["train.py"])),
    ("nohup uv run torchrun --nproc_per_node=2 train.py", (1, 2, "torchrun", ["train.py"])),
    ("env A=1 python hvd.py", (1, 1, "horovod", ["python3", "hvd.py"])),
    ("accelerate launch --mixed_precision no --num_processes=4 --num_machines 2 train.py --num_processes 9", (2, 2, "accelerate", ["--mixed_precision", "no", "train.py", "--num_processes", "9"])),
    ("python -m pkg.train --lr 1", (1, 1, "torchrun", ["-m", "pkg.train", "--lr", "1"])),
    ("python3 -u -m pkg", (1, 1, "torchrun", ["-m", "pkg"])),
    ("python train.py -m x", (1, 1, "torchrun", ["train.py", "-m", "x"])),
    ("python -W error train.py", (1, 1, "none", ["python", "-W", "error", "train.py"])),
    ("python -m mpi4py.futures train.py", (1, 1, "mpi", ["python", "-m", "mpi4py.futures", "train.py"])),
    ("/usr/bin/python3 train.py", (1, 1, "none", ["/usr/bin/python3", "train.py"])),
    ("bash train.sh 1", (1, 1, "none", ["bash", "train.sh", "1"])),
    ("mytool fit --x 1", (1, 1, "none", ["mytool", "fit", "--x", "1"])),
    ("python -m mytool.cli fit", (1, 1, "none", ["python", "-m", "mytool.cli", "fit"])),
]  # fmt: skip
REFUSED = [
    ("-- fabric run --acelerator cpu train.py", "--acelerator is not known here"),
    ("--nodes 3 -- torchrun --nnodes 2 train.py", "torchrun says --nodes 2, and the command line says --nodes 3"),
    ("-- torchrun --nproc-per-node 2", "nothing to start"),
    ("-- mpirun -np 4 torchrun --nproc-per-node 2 train.py", "mpirun would start torchrun, which starts ranks, too"),
    ("--launcher srun -- torchrun train.py", "torchrun says --launcher torchrun, and the command line says --launcher srun"),
    ("-- mpirun -np 4 -ppn 0 ./train.py", "4 ranks, which 1 nodes cannot have in equal numbers"),
    ("--time 5 -- srun -t 10 -n 2 python train.py", "srun says --time 10, and the command line says --time 5"),
    ("-- srun -n 2 --gpus-per-task 1 python train.py", "--gpus-per-task is not known here"),
    ("--nodes 2 -- mpirun -np 3 python hvd.py", "3 ranks, which 2 nodes cannot have in equal numbers"),
    ("-- horovodrun -np 4 -H a:2 python hvd.py", "4 ranks, which a:2 cannot have in equal numbers"),
    ("-- mpirun -np 4 -H a:3,b:1 python hvd.py", "4 ranks, which a:3,b:1 cannot have in equal numbers"),
    ("-- torchrun --nproc-per-node 2 -m torch.distributed.run train.py", "would start torch.distributed.run, which starts ranks, too"),
    ("-- python -m pkg.trian", "no module pkg.trian"),
    ("digits-dpp", "no script or job digits-dpp"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    for name, framework in {
        **dict.fromkeys(
            ("train.py", "pkg/train.py", "pkg/__init__.py", "pkg/__main__.py"), "torch.distributed"
        ),
        **{"hvd.py": "horovod.torch", "ray_train.py": "ray"},
    }.items():
        (tmp_path / name).write_text(f"import {framework}\n")


def dry_run(words: list[str]) -> Result:
    return CliRunner().invoke(cli, ["run", *NEURON, "--dry-run", "--json", *words])


@pytest.mark.parametrize(("text", "expected"), PASTED)
def test_a_pasted_command_becomes_the_launcher_that_does_the_same(text, expected):
    done = dry_run(["--", *shlex.split(text)])
    assert done.exit_code == 0, done.output
    plan = json.loads(done.stdout)["plan"]
    nodes = dict(plan["directives"])["nodes"].replace("-", ":")
    program = plan["launch"]["program"]
    launcher = plan["launch"]["launcher"]
    assert (nodes, plan["ranks_per_node"], launcher) == (str(expected[0]), *expected[1:3])
    assert program[-len(expected[3]) :] == expected[3]


@pytest.mark.parametrize("name", ["torch.distributed.launcher", "pkg.missing", "pkg.", "a/b"])
def test_a_module_that_is_not_here_is_refused_with_the_way_to_run_one_of_the_image(name):
    error = dry_run(["-m", name]).exception
    assert isinstance(error, ScriptMissingError)
    assert f"-- python -m {name}" in (error.next_step or "")


def test_what_a_pasted_command_says_of_the_job_is_said_of_the_job():
    """As PrincetonUniversity/multi_gpu_training and BIGBALLON/distribuuuu write it."""
    text = "-- srun -t 10 -c 4 -J x --gres=gpu:2 -n 2 python train.py"
    directives = dict(json.loads(dry_run(text.split()).stdout)["plan"]["directives"])
    said = {"time": "10", "job-name": "x", "gres": "gpu:2", "cpus-per-task": "4"}
    assert directives.items() >= said.items()


def test_variables_before_a_command_are_those_of_the_ranks():
    done = dry_run("-- CUDA_VISIBLE_DEVICES=0 A=1 B=2=3 torchrun train.py".split())
    plan = json.loads(done.stdout)["plan"]
    variables = plan["environment"] | plan["launch"]["environment"]
    assert (variables["A"], variables["B"]) == ("1", "2=3")
    assert "with --env A, --env B" in done.output + done.stderr
    assert "CUDA_VISIBLE_DEVICES" not in variables


def test_everything_after_the_script_belongs_to_it():
    words = "train.py --nodes 9 --help -- -x --image=y --dry-run".split()
    plan = json.loads(dry_run(["--nodes", "2", *words]).stdout)["plan"]
    assert (plan["nodes"], plan["launch"]["program"]) == (2, words)


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_what_contradicts_or_is_not_known_is_refused(text, message):
    done = dry_run(text.split())
    assert done.exit_code != 0
    assert message in f"{done.output} {done.exception}"


# Scripts, the options with which they are run, and what the refusal says.
ALONE = [
    ("import torch\nfrom .vgg import VGG\n", "--nodes 2", "nothing in alone.py connects its ranks"),
    ("import os\nimport torch.distributed as dist\nfrom torch.multiprocessing import Process\nos.environ['MASTER_ADDR'] = '127.0.0.1'\nProcess()\n", "--nodes 2", "the ranks of alone.py meet at localhost"),
    ("import torch\n", "--nodes 2 --launcher torchrun", "nothing in alone.py connects its ranks"),
    ("import submitit\nsubmitit.AutoExecutor(folder='x')\n", "", "alone.py submits jobs of its own"),
    ("#!/bin/bash\n#SBATCH --nodes=4\nsrun python train.py\n", "", "sbatch alone.sh"),
    ("from mpi4py import MPI\nMPI.COMM_SELF.Spawn('x')\n", "", "-- python3 -m mpi4py.futures alone.py"),
    ("from mpi4py.futures import MPIPoolExecutor as P\nP()\n", "", "-- python3 -m mpi4py.futures alone.py"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "options", "message"), ALONE)
def test_a_script_whose_ranks_would_not_meet_is_refused(text, options, message):
    name = "alone.sh" if text.startswith("#!") else "alone.py"
    Path(name).write_text(text)
    done = dry_run([*options.split(), name])
    assert done.exit_code != 0
    assert message in f"{done.output} {done.exception}"
