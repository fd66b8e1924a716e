"""Failures that are provoked on the real cluster, and what `toolkit explain` says of them.

What their logs hold is kept for the unit tests: UPDATE_GOLDEN=1 captures it anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import explain_evidence
from toolkit.explain.gather import of_run
from toolkit.runs.run import Run
from toolkit.runs.status import query

pytestmark = pytest.mark.usefixtures("cluster")

RANK = """\
import os, sys, time; rank = int(os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0')))
print('rank', rank, 'begins', flush=True)

"""
GROUP = "import torch, torch.distributed as dist\nfrom datetime import timedelta\n"
# A directory of the host that the ranks are not shown: that of the clusters.
ABOVE = "above = os.path.dirname(os.path.dirname(os.getcwd())) + '/c'\n"
# A sharded model, and its checkpoint in parts.
SHARDED = (
    GROUP
    + "import torch.distributed.checkpoint as dcp\nfrom torch.distributed.fsdp import fully_shard\n"
    + "dist.init_process_group('gloo')\nmodel = torch.nn.Linear(8, 8)\nfully_shard(model)\n"
    + "state = {'model': model.state_dict()}\ndcp.save(state, checkpoint_id='saved')\ndist.barrier()\n"
)


class Failure(NamedTuple):
    """A way to fail.

    Attributes:
        rule: that must name it.
        script: Python, after the lines of ``RANK``.
        launcher: by which two ranks are started.
        says: a part of the cause.
        options: more options of `toolkit run`.
        rank: the rank that must be named; None: any.
    """

    rule: str
    script: str
    launcher: str = "srun"
    says: str = ""
    options: tuple[str, ...] = ()
    rank: int | None = None


FAILURES = {
    "one rank raises": Failure(
        "python-exception",
        "if rank == 1: raise ValueError('the label 12 is unknown')\ntime.sleep(60)",
        says="line 4",
        rank=1,
    ),
    "one rank raises under torchrun": Failure(
        "python-exception",
        "if rank == 1: raise ValueError('the label 12 is unknown')\ntime.sleep(60)",
        "torchrun",
        "the label 12",
        rank=1,
    ),
    "one rank raises while another waits for it": Failure(
        "python-exception",
        GROUP
        + "dist.init_process_group('gloo')\nif rank == 1: raise ValueError('the label 12 is unknown')\ndist.barrier()",
        "torchrun",
        "the label 12",
        rank=1,
    ),
    "a rank is killed": Failure(
        "killed",
        "import signal\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)",
        rank=None,
    ),
    "a rank crashes": Failure(
        "crashed", "import ctypes\nif rank == 0: ctypes.string_at(0)\ntime.sleep(60)"
    ),
    "a module is missing": Failure(
        "module-missing",
        "import importlib\nimportlib.import_module('tensorflow')",  # an import statement is refused before the job queues
        says="tensorflow is not in the image",
    ),
    "a file is missing": Failure(
        "file-missing", "open('/data/imagenet/train')", says="/data/imagenet/train"
    ),
    "the image is read-only": Failure(
        "read-only", "open('/opt/venv/cache', 'w')", says="/opt/venv/cache"
    ),
    "a disk is full": Failure(
        "disk-full", "with open('/dev/full', 'w') as file: file.write('x' * 100000)"
    ),
    "too many files": Failure(
        "open-files",
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\nkept = [open('/dev/null') for _ in range(30)]",
    ),
    "no terminal": Failure("no-terminal", "os.get_terminal_size()"),
    "a package of the home": Failure(
        "user-site",
        "import importlib\nimportlib.import_module('sklearn')",
        says=".local/lib/python3",
        options=("--env", "PYTHONPATH=.local/lib/python3.11/site-packages"),
    ),
    "a program is missing": Failure("command-missing", "", launcher="none", says="nosuchprogram"),
    "another processor": Failure("architecture", "import subprocess\nsubprocess.run(['./other'])"),
    "memory": Failure("memory", GROUP + "torch.empty(10**15)"),
    "the port is taken": Failure(
        "port-in-use",
        GROUP
        + "import socket\nif rank == 0:\n    taken = socket.create_server(('', 29777))\nos.environ['MASTER_PORT'] = '29777'\n"
        + "dist.init_process_group('gloo', timeout=timedelta(seconds=90))",
    ),
    "a name is unknown": Failure(
        "name-resolution",
        GROUP
        + "os.environ['MASTER_ADDR'] = 'nid999'\ndist.init_process_group('gloo', timeout=timedelta(seconds=4))",
        says="nid999",
    ),
    "an interface is unknown": Failure(
        "interface",
        GROUP + "os.environ['GLOO_SOCKET_IFNAME'] = 'ib7'\ndist.init_process_group('gloo')",
    ),
    "a rank hangs": Failure(
        "hang",
        GROUP
        + "dist.init_process_group('gloo')\ndist.barrier()\n"  # both are there: the limit is for what follows
        + "late = dist.new_group(timeout=timedelta(seconds=4))\nif rank == 1: time.sleep(60)\n"
        + "dist.all_reduce(torch.ones(1), group=late)",
    ),
    "too few come": Failure(
        "rendezvous",
        GROUP
        + "dist.init_process_group('gloo', world_size=3, rank=rank, timeout=timedelta(seconds=4))",
    ),
    "a download": Failure(
        "no-internet",
        "import urllib.request\nurllib.request.urlretrieve('https://example.org/x.gz', 'x.gz')",
    ),
    "pip during the run": Failure(
        "pip-at-run-time",
        "import subprocess\nsubprocess.run([sys.executable, '-m', 'pip', 'install', '--retries', '0', 'einops'], check=True)",
        says="installs einops with pip",
    ),
    "a removed name": Failure("removed-api", "import numpy\nnumpy.float(1)", says="'float'"),
    "a removed module": Failure("removed-api", "from torch._six import string_classes"),
    "a module of another version": Failure(
        "submodule-missing", "import sklearn.utils.linear_assignment_"
    ),
    "an operator": Failure("operator-missing", "import torch\ntorch.ops.my_ext.scale(1)"),
    "a device of CUDA": Failure("cpu-torch", "import torch\ntorch.cuda.set_device(0)"),
    "device ids on a CPU": Failure(
        "ddp-devices",
        GROUP + "dist.init_process_group('gloo')\n"
        "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2), device_ids=[rank])",
        "torchrun",
    ),
    "a file of the host": Failure(
        "file-missing", ABOVE + "open(above + '/x.csv')", says="not shown /"
    ),
    "a file for the host": Failure(
        "file-missing", ABOVE + "import torch\ntorch.save({}, above + '/x.pt')", says="not shown /"
    ),
    "a directory of the host": Failure(
        "read-only", ABOVE + "os.makedirs(above + '/x')", says="not shown /"
    ),
    "a path that leads out": Failure("outside", "open('../x.csv')", says="../x.csv is outside"),
    "a command beyond the binds": Failure(
        "file-missing",
        ABOVE + "os.execvp('cat', ['cat', above + '/x.csv'])",
        says="not shown /",
    ),
    "no GPU": Failure("cpu-torch", GROUP + "torch.ones(1).cuda()"),
    "Horovod for TensorFlow": Failure(
        "horovod-not-built",
        "import importlib\nhvd = importlib.import_module('horovod.tensorflow')\nhvd.init()",
    ),
    "shapes differ": Failure(
        "shape-mismatch",
        "import torch, horovod.torch as hvd\nhvd.init()\nhvd.allreduce(torch.ones(3 + hvd.rank()))",
        "horovod",
    ),
    "no PMI": Failure(
        "pmi-missing",
        "import horovod.torch as hvd\nhvd.init()\nprint(hvd.size())\nassert hvd.size() == 2",
    ),
    "a checkpoint is cut off": Failure(
        "checkpoint",
        GROUP + "open('snapshot.pt', 'wb').write(b'PK' + b'0' * 100)\ntorch.load('snapshot.pt')",
    ),
    "a mesh is larger than the job": Failure(
        "mesh",
        "from torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cpu', (2, 2, 2))",
        "torchrun",
        "world size 2, but found 8 ranks",
    ),
    "a checkpoint lacks a key": Failure(
        "dcp-model",
        SHARDED + "dcp.load({**state, 'new': torch.ones(2)}, checkpoint_id='saved')",
        "torchrun",
        "state_dict: new",
    ),
    "a checkpoint has lost a part": Failure(
        "dcp-incomplete",
        SHARDED
        + "if rank == 0: os.unlink('saved/__1_0.distcp')\ndist.barrier()\ndcp.load(state, checkpoint_id='saved')",
        "torchrun",
        "saved/__1_0.distcp",
    ),
    "plain and distributed tensors": Failure(
        "dtensor-mixed",
        SHARDED + "torch.add(model.weight, torch.ones(8, 8))",
        "torchrun",
        "aten.add",
    ),
    "a batch is too small for the pipeline": Failure(
        "pipeline-batch",
        GROUP
        + "from torch.distributed.pipelining import PipelineStage, Schedule1F1B\ndist.init_process_group('gloo')\n"
        + "stage = PipelineStage(torch.nn.Linear(8, 8), rank, 2, torch.device('cpu'))\n"
        + "Schedule1F1B(stage, 1, loss_fn=torch.nn.functional.mse_loss)",
        "torchrun",
        "(1) must be greater",
    ),
    "ranks send different sizes": Failure(
        "shape-mismatch",
        GROUP + "dist.init_process_group('gloo')\ndist.all_reduce(torch.ones(4 if rank else 8))",
        "torchrun",
    ),
}


def provoked(
    failure: Failure, toolkit: Any, image: Path, directory: Path
) -> subprocess.CompletedProcess[str]:
    """Run it; two ranks on one node, which is faster and as good."""
    (directory / "fails.py").write_text(RANK + textwrap.dedent(failure.script) + "\n")
    planted = directory / ".local/lib/python3.11/site-packages/sklearn"
    planted.mkdir(parents=True)
    (planted / "__init__.py").write_text("import no_such_thing_of_mine\n")
    elf = bytearray(Path("/bin/true").read_bytes()[:4096])
    elf[18:20] = (243).to_bytes(2, "little")  # RISC-V
    (directory / "other").write_bytes(elf)
    (directory / "other").chmod(0o755)
    words = ("--", "nosuchprogram") if failure.launcher == "none" else ("fails.py",)
    shape = () if failure.launcher == "none" else ("--ntasks-per-node", "2")
    done = toolkit(
        *"run --image".split(),
        str(image),
        "--launcher",
        failure.launcher,
        *shape,
        *failure.options,
        *words,
        cwd=directory,
        timeout=120,
    )
    assert isinstance(done, subprocess.CompletedProcess)
    return done


# One of each way to end; test_first_failure.py has failures under torch, and the logs of all are
# replayed by tests/unit/test_explain.py.
_SHORT = (
    "one rank raises",
    "a rank is killed",
    "a rank crashes",
    "a module is missing",
    "a program is missing",
    "a file of the host",
)
_CASES = [pytest.param(name, marks=() if name in _SHORT else pytest.mark.long) for name in FAILURES]


@pytest.mark.parametrize("name", _CASES)
def test_a_provoked_failure_is_named(
    name: str, toolkit: Any, pytorch_image: Path, shared_dir: Path
) -> None:
    failure = FAILURES[name]
    done = provoked(failure, toolkit, pytorch_image, shared_dir)
    assert done.returncode not in (0, 64, 65), done.stderr
    (run,) = (shared_dir / "runs").iterdir()
    if os.environ.get("UPDATE_GOLDEN"):
        file = (
            explain_evidence.GOLDEN / "captured" / f"{failure.rule}.{name.replace(' ', '-')}.json"
        )
        read = Run(run)
        query(read)
        explain_evidence.write(file, of_run(read), shared_dir, pytorch_image)
    said = toolkit("explain", "--json", run.name, cwd=shared_dir)
    found = json.loads(said.stdout)
    assert found["match"], (said.stdout, done.stdout + done.stderr)
    assert found["match"]["rule"] == failure.rule, (found, done.stdout + done.stderr)
    assert failure.says in found["match"]["cause"]
    assert failure.rank is None or found["match"]["rank"] == failure.rank
    assert f"cause      {found['match']['cause']}" in done.stderr, (
        "a failed run ends with its explanation"
    )


def test_what_is_gone_when_the_job_starts(
    toolkit: Any, pytorch_image: Path, shared_dir: Path
) -> None:
    """Both were there when the job was planned."""
    for what, rule in (("bind", "bind-missing"), ("image", "image-missing")):
        place = shared_dir / what
        (place / "data").mkdir(parents=True)
        (place / "true.py").write_text("pass\n")
        options = ("--image", str(pytorch_image), "--launcher", "srun", "--bind", "data:/data")
        text = toolkit("run", "--dry-run", *options, "true.py", cwd=place).stdout
        text = (
            text.replace(f"{place}/data", f"{place}/gone")
            if what == "bind"
            else text.replace(str(pytorch_image), f"{place}/gone.sif")
        )
        (place / "job.sbatch").write_text(text)
        (place / "runs/true-0001/logs").mkdir(parents=True)
        toolkit("cluster", "exec", "--", "sbatch", "--wait", "job.sbatch", cwd=place)
        (log,) = (place / "runs/true-0001/logs").glob("*-0-*.log")
        found = json.loads(toolkit("explain", "--json", str(log), cwd=place).stdout)
        assert found["match"]["rule"] == rule, found


def test_a_healthy_run_has_nothing_to_explain(
    toolkit: Any, pytorch_image: Path, shared_dir: Path
) -> None:
    (shared_dir / "well.py").write_text(RANK + "print('loss 0.3, 0 errors')\n")
    done = toolkit(
        *"run --image".split(),
        str(pytorch_image),
        *"--launcher srun --ntasks-per-node 2 well.py".split(),
        cwd=shared_dir,
    )
    assert done.returncode == 0, done.stderr
    assert "succeeded" in toolkit("explain", cwd=shared_dir).stderr
