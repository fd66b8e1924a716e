"""The comparisons of `python -m benchmarks.cli`: our commands and the programs in use today."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import peers
from benchmarks.cluster import JOB_NAME
from benchmarks.measure import Comparison, Side
from toolkit import __version__
from toolkit.errors import ToolkitError
from toolkit.quoting import shell_words

RECIPE = "pytorch_cpu"
_STAND_IN = "stand-in.sif"

# The recipe pytorch_cpu as hpccm's input: a Debian base, packages of apt, Open MPI, packages of
# pip.
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
executor.update_parameters(name="{JOB_NAME}", nodes=2, tasks_per_node=2, cpus_per_task=1,
                           timeout_min=10)
print(executor.submit(task).job_id)
"""

_TRAIN = "import torch.distributed  # planned and submitted, never run\n"


class Setting(NamedTuple):
    """The command, the cluster's prefix and the image that the comparisons use."""

    toolkit: tuple[str, ...]
    prefix: tuple[str, ...]
    image: str


def prepare(directory: Path) -> None:
    """Write the files that both sides read."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "train.py").write_text(_TRAIN, encoding="utf-8")
    (directory / "recipe.py").write_text(_HPCCM_RECIPE, encoding="utf-8")
    (directory / "submit.py").write_text(_SUBMITIT_SCRIPT, encoding="utf-8")
    (directory / _STAND_IN).write_bytes(stand_in())


def stand_in() -> bytes:
    """Return the header of an empty SIF.

    It is enough for planning and submitting, since no job of the benchmark ever starts.
    """
    head = b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0") + b"SIF_MAGIC\0"
    start = (128).to_bytes(8, "little")  # of its table of no objects, and of its data
    return head.ljust(96, b"\0") + start + bytes(8) + start + bytes(8)


def image(directory: Path) -> str:
    """Return the built image if there is one, because users plan with that; else the stand-in."""
    from toolkit.images.store.store import find

    try:
        return find(RECIPE).path
    except ToolkitError:
        return str(directory / _STAND_IN)


def _ours(setting: Setting, words: Sequence[str], *, on_cluster: bool = True) -> Side:
    prefix = setting.prefix if on_cluster else ()
    return Side(
        name=f"toolkit {__version__}",
        argv=(*prefix, *setting.toolkit, *words),
        shown=shell_words(("toolkit", *words)),
    )


def _peer(
    peer: str,
    setting: Setting,
    words: Sequence[str],
    *,
    program: str | None = None,
    on_cluster: bool = True,
) -> Side:
    prefix = setting.prefix if on_cluster else ()
    called = program or peer
    return Side(
        name=peers.name(peer),
        argv=(*prefix, peers.program(called), *words),
        shown=shell_words((called, *words)),
    )


def plan(setting: Setting) -> Comparison:
    """Compare planning: a job of 2 nodes x 2 ranks becomes a script, which is shown."""
    shape = ("--nodes", "2", "--ntasks-per-node", "2")
    return Comparison(
        what="plan",
        ours=_ours(
            setting,
            ("run", "--dry-run", "--site", "generic", "--image", setting.image, *shape, "train.py"),
        ),
        peer=_peer(
            "torchx",
            setting,
            ("run", "-s", "slurm", "--dryrun", "dist.ddp", "-j", "2x2", "--script", "train.py"),
        ),
        bar=0.6,
    )


def render(setting: Setting) -> Comparison:
    """Compare rendering: a recipe becomes a definition file."""
    return Comparison(
        what="render",
        ours=_ours(setting, ("image", "render", RECIPE), on_cluster=False),
        peer=_peer(
            "hpccm", setting, ("--recipe", "recipe.py", "--format", "singularity"), on_cluster=False
        ),
        bar=1.0,
    )


def submit(setting: Setting) -> Comparison:
    """Compare submitting: a job enters the queue."""
    shape = ("--nodes", "2", "--ntasks-per-node", "2", "--job-name", JOB_NAME)
    return Comparison(
        what="submit",
        ours=_ours(
            setting,
            ("run", "--detach", "--site", "generic", "--image", setting.image, *shape, "train.py"),
        ),
        peer=_peer("submitit", setting, ("submit.py",), program="python"),
        bar=1.5,
    )


COMPARISONS: Mapping[str, Callable[[Setting], Comparison]] = {
    "plan": plan,
    "render": render,
    "submit": submit,
}
NEED_CLUSTER = frozenset({"plan", "submit"})
