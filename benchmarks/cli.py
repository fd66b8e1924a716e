"""Compare the speed of our commands with the field's: `make bench-cli`.

- plan: ``toolkit run --dry-run`` and ``torchx run -s slurm --dryrun``.
- render: ``toolkit image render`` and ``hpccm --format singularity``.
- submit: ``toolkit run --detach`` and a submit by submitit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks import runner
from toolkit import shell
from toolkit.errors import ToolkitError
from toolkit.images.store.store import find

RECIPE = "pytorch_cpu"
_JOB_NAME = "toolkit-bench"
# The recipe pytorch_cpu as hpccm's input.
_HPCCM_RECIPE = """
Stage0 += baseimage(image='debian:bookworm')
Stage0 += packages(ospackages=['ca-certificates', 'g++', 'make', 'cmake', 'openssh-client',
                               'python3-dev', 'python3-venv'])
Stage0 += openmpi(version='4.1.4', cuda=False, infiniband=False)
Stage0 += python(python2=False)
Stage0 += pip(packages=['torch==2.13.0', 'numpy', 'scikit-learn', 'horovod==0.28.1'], pip='pip3')
Stage0 += environment(variables={'OMP_NUM_THREADS': '1'})
"""
_SUBMITIT_SCRIPT = f"""
import submitit

def task():
    return 0

executor = submitit.AutoExecutor(folder="submitit", cluster="slurm")
executor.update_parameters(name="{_JOB_NAME}", nodes=2, tasks_per_node=2, cpus_per_task=1,
                           timeout_min=10)
print(executor.submit(task).job_id)
"""
_TRAIN = "import torch.distributed  # planned and submitted, never run\n"


def stand_in() -> bytes:
    """Return the header of an empty SIF, enough for planning: no job of the benchmark starts."""
    head = b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0") + b"SIF_MAGIC\0"
    start = (128).to_bytes(8, "little")  # of its table of no objects, and of its data
    return head.ljust(96, b"\0") + start + bytes(8) + start + bytes(8)


def _image(directory: Path) -> str:
    """Return the built image if there is one, because users plan with that; else the stand-in."""
    try:
        return find(RECIPE).path
    except ToolkitError:
        (directory / "stand-in.sif").write_bytes(stand_in())
        return str(directory / "stand-in.sif")


@contextmanager
def _busy(prefix: Sequence[str]) -> Iterator[None]:
    """Fill all nodes with a job of no tasks: jobs submitted meanwhile take no CPU time."""
    options = ("--nodes=2", "--exclusive", f"--job-name={_JOB_NAME}")
    shell.run([*prefix, "salloc", "--no-shell", *options], timeout=60)
    try:
        yield
    finally:
        shell.run([*prefix, "scancel", f"--name={_JOB_NAME}"], check=False)


def measure(runs: int, directory: Path) -> list[runner.Row]:
    """Measure all comparisons."""
    files = {"train.py": _TRAIN, "recipe.py": _HPCCM_RECIPE, "submit.py": _SUBMITIT_SCRIPT}
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
    own = (str(Path(sys.executable).with_name("toolkit")),)
    shape = ("--nodes", "2", "--ntasks-per-node", "2", "--job-name", _JOB_NAME)
    job = ("--site", "generic", "--image", _image(directory), *shape, "train.py")
    torchx = ("run", "-s", "slurm", "--dryrun", "dist.ddp", "-j", "2x2", "--script", "train.py")
    hpccm = ("--recipe", "recipe.py", "--format", "singularity")
    sides = {
        "plan": ((*own, "run", "--dry-run", *job), ("torchx", *torchx), 0.6),
        "render": ((*own, "image", "render", RECIPE), ("hpccm", *hpccm), 1.0),
        "submit": ((*own, "run", "--detach", *job), ("python", "submit.py"), 1.5),
    }
    rows = []
    with runner.cluster(directory, "--nodes", "2") as prefix, _busy(prefix):
        timed = partial(runner.seconds, cwd=directory, env=runner.environment())
        for name, (ours, (program, *words), bar) in sides.items():
            on = () if name == "render" else prefix
            theirs = (*on, str(runner.peers() / program), *words)
            peer = (program.replace("python", "submitit"), partial(timed, theirs))
            rows.append(
                runner.compare(name, partial(timed, (*on, *ours)), peer, bar=bar, runs=runs)
            )
    return rows


def main() -> int:
    """Measure and print; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=15, help="of each side (default: 15)")
    given = parser.parse_args()
    runner.CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=runner.CACHE, prefix="run-") as directory:
        return runner.report(measure(given.runs, Path(directory)))


if __name__ == "__main__":
    sys.exit(main())
