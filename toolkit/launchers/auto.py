"""auto, the default: a launcher from what the script imports and what the image holds, and why. The script was read, not run.

It is no launcher itself: a plan names the one that was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from toolkit.model.job import Job
from toolkit.model.source import Source

# They call torch.distributed where the script does not show it, and take over what torchrun tells
# them.
_ABOVE_TORCH = (
    "accelerate",
    "deepspeed",
    "fairscale",
    "lightning",
    "pytorch_lightning",
    "torchtitan",
    "transformers",
)

_STRATEGIES = ("MultiWorkerMirroredStrategy", "MirroredStrategy", "ParameterServerStrategy")


class Choice(NamedTuple):
    """A launcher, and why it is this one."""

    launcher: str
    reason: str


class _Rule(NamedTuple):
    launcher: str
    applies: Callable[[Source, Job], bool]
    because: str


def _ranged(job: Job) -> bool:
    least, most = job.node_range
    return least != most


def _imports(library: str) -> _Rule:
    """Return the rule that a script which imports a library over torch wants torchrun."""
    return _Rule("torchrun", lambda source, _: source.imports_any(library), f"imports {library}")


# In order: what is more telling comes first. A script for horovod.torch also imports torch, one
# that forks also imports torch.distributed.
_RULES = (
    _Rule(
        "horovod-elastic",
        lambda source, _: source.calls_any("elastic.run"),
        "runs horovod's elastic.run",
    ),
    _Rule("horovod", lambda source, _: source.imports_any("horovod"), "imports horovod"),
    _Rule("ray", lambda source, _: source.imports_any("ray"), "imports ray"),
    _Rule(
        "spawn",
        lambda source, _: source.calls_any(
            "multiprocessing.spawn", "multiprocessing.start_processes"
        ),
        "calls mp.spawn",
    ),
    _Rule(
        "spawn",
        lambda source, _: source.option("multiprocessing-distributed") is not None,
        "has --multiprocessing-distributed",
    ),
    _Rule(
        "torchrun",
        lambda source, _: source.imports_any("torch.distributed"),
        "imports torch.distributed",
    ),
    _Rule(
        "torchrun",
        lambda source, _: source.calls_any("DistributedDataParallel"),
        "uses DistributedDataParallel",
    ),
    _Rule(
        "tensorflow",
        lambda source, _: source.calls_any(*_STRATEGIES),
        "uses a strategy of tf.distribute",
    ),
    _Rule("mpi", lambda source, _: source.imports_any("mpi4py"), "imports mpi4py"),
    _Rule(
        "none",
        lambda source, job: source.calls_any("DataParallel") and not _ranged(job),
        "uses DataParallel, in one process",
    ),
    *(_imports(name) for name in _ABOVE_TORCH),
)


def choose(
    script: str,
    source: Source,
    frameworks: Collection[str] | None,
    job: Job,
    registered: Collection[str],
    noun: str = "image",
) -> Choice:
    """The launcher for a script.

    Args:
        script: its name, for the reason.
        source: what was read of it.
        frameworks: what the image holds; None: nobody knows.
        job: how many nodes and ranks are asked for.
        registered: the launchers that there are.
        noun: what the reason calls the thing that ranks run in: ``image`` or ``environment``.
    """
    if not script.endswith(".py"):
        return Choice("none", f"{script} is no Python script")
    found = next(
        (rule for rule in _RULES if rule.launcher in registered and rule.applies(source, job)), None
    )
    if found is not None:
        return Choice(found.launcher, f"{script} {found.because}")
    if frameworks is not None and "torch" not in frameworks:
        reason = f"{script} imports nothing that spreads it, and the {noun} holds no torch"
        return Choice("none", reason)
    if job.node_range == (1, 1) and (job.ntasks_per_node or job.most_gpus or 1) == 1:
        return Choice(
            "none", f"{script} imports nothing that spreads it, and one rank was asked for"
        )
    return Choice("torchrun", f"{script} imports nothing that says otherwise")


# Launchers that tell ranks about each other in the words of one framework, and how a script shows
# that it speaks it.
_SPEAKS = {
    "torchrun": "torch.distributed",
    "srun": "torch.distributed",
    "spawn": "torch.distributed",
    "horovod": "horovod",
}
_SPEAKS |= {
    "horovod-gloo": "horovod",
    "horovod-elastic": "horovod",
    "ray": "ray",
    "tensorflow": "tf.distribute",
}
_BETTER = {
    "horovod": "horovod",
    "ray": "ray",
    "tf.distribute": "tensorflow",
    "torch.distributed": "torchrun",
}


def _uses(source: Source, framework: str) -> bool:
    return (
        source.calls_any(*_STRATEGIES)
        if framework == "tf.distribute"
        else source.imports_any(framework)
    )


def warnings(script: str, source: Source, launcher: str) -> tuple[str, ...]:
    """Where the script speaks of one framework and the launcher of another: it would start, and every rank would believe it is alone."""
    speaks = _SPEAKS.get(launcher)
    if speaks is None or not source.python or _uses(source, speaks):
        return ()
    other = next((name for name in _BETTER if name != speaks and _uses(source, name)), None)
    if other is None:
        return ()
    better = _BETTER[other]
    return (
        f"{script} uses {other}, which {launcher} says nothing to: every rank may believe that it is alone; --launcher {better}",
    )
