"""Rules about ranks that hold parts of a network: the sizes of their mesh, their checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import prod
from pathlib import PurePosixPath

from toolkit.checks import Result, check, from_error
from toolkit.errors import BindMissingError, ShapeError
from toolkit.model.case import Case
from toolkit.model.job import Job
from toolkit.units import counted

# As Megatron-LM, NeMo and torchtitan name the sizes. Their product divides the ranks; the quotient
# is the number of copies of the network (data parallelism).
SIZES = frozenset(
    f"{kind}{model}_parallel_{size}"
    for kind in ("tensor", "pipeline", "context")
    for model in ("", "_model")
    for size in ("size", "degree")
)
CHECKPOINTS = frozenset(
    (
        "checkpoint",
        "checkpoint_dir",
        "checkpoint_folder",
        "ckpt_dir",
        "save",
        "save_dir",
        "snapshot",
    )
)
_RANK_IS_PROCESS = ("torchrun", "srun")  # others may start processes of their own


@check("mesh", "a mesh that divides the ranks", order=65)
def check_mesh(case: Case) -> list[Result]:
    """Check that the sizes of a mesh among the script's arguments divide the number of ranks."""
    job = case.job
    given = {
        name: (flag, value) for name, flag, value in _arguments(job, SIZES)
    }  # the last one counts
    sizes = {flag: int(value) for flag, value in given.values() if value.isdecimal()}
    product = prod(sizes.values())
    if job.launcher not in _RANK_IS_PROCESS or not sizes or not product:
        return []
    ranks = case.ranks
    if ranks % product == 0:
        return []
    mesh = " x ".join(f"{flag} {size}" for flag, size in sizes.items())
    shown = (
        f"{counted(case.nodes, 'node')} x {case.ranks_per_node}"
        if not job.gpus_by_node
        else "one for each GPU"
    )
    cause = f"{counted(ranks, 'rank')} ({shown}) cannot form a mesh of {mesh}"
    step = f"--nodes and --ntasks-per-node whose product is a multiple of {product}"
    error = ShapeError(cause, place=next(iter(sizes)), next_step=step)
    return [from_error(error, "arguments of the script")]


@check("checkpoint", "a checkpoint that all nodes see", order=215)
def check_checkpoint(case: Case) -> list[Result]:
    """Check that the ranks of several nodes do not save to a directory of each node's own.

    Each would leave its part of a distributed checkpoint on its own node.
    """
    if case.job.node_range[1] == 1:
        return []
    return [
        from_error(
            BindMissingError(
                f"{path} is on each node's own {directory}: "
                "parts of a distributed checkpoint would lie on different nodes",
                place=flag,
                next_step=f"{flag} with a directory that all nodes see",
            ),
            case.site.cited,
            stops=False,
        )
        for _, flag, path in _arguments(case.job, CHECKPOINTS)
        for directory in case.site.private_directories
        if PurePosixPath(path).is_relative_to(directory)
    ]


def _arguments(job: Job, names: frozenset[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the flag and the value of each argument that has one of these names.

    ``-`` and ``_`` are equal, and a prefix does not count: ``--parallelism.checkpoint-dir``.
    """
    words = [*job.arguments, ""]
    for word, following in pairwise(words):
        flag, equals, value = word.partition("=")
        if not flag.startswith("--"):
            continue
        name = flag.removeprefix("--").rpartition(".")[2].replace("-", "_")
        if name in names:
            yield name, flag, value if equals else following
