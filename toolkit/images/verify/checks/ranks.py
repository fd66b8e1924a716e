"""Checks of communication: ranks on a site's nodes sum their vectors by each backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from toolkit.checks import Check, Result, unchecked
from toolkit.images.verify.case import ImageCase, RankSum, ScriptRun


def rank_sum(run: ScriptRun) -> RankSum:
    """Return what came of a job on nodes.

    A job that was refused before it queued, or that Slurm did not answer for, says nothing of the
    image.
    """
    if run.outcome is None:
        return RankSum(outcome="unchecked", detail=run.refusal)
    report = run.results
    return RankSum(
        outcome="passed" if report.get("passed") is True else "failed",
        detail=str(report.get("detail") or run.complaint),
        drivers=tuple(report.get("drivers", ())),
        speed=float(report.get("gigabytes_per_second") or 0.0),
    )


class Backend(NamedTuple):
    """A library that carries messages between ranks.

    Attributes:
        name: as ``checks/ranks.py`` calls it.
        title: as people call it.
        lacks: returns what an image lacks for it; empty if it lacks nothing.
        routes: pairs of the library that sums and the launcher of `toolkit run`, best first.
        takes_gpus: every rank needs a GPU of its own.
    """

    name: str
    title: str
    lacks: Callable[[ImageCase], str]
    routes: tuple[tuple[str, str], ...]
    takes_gpus: bool = False

    def run_on_nodes(self, case: ImageCase) -> Result:
        """Have ranks on the site's nodes sum, once for each backend."""
        options = case.options
        if reason := case.no_python or self.lacks(case):
            return unchecked(reason)
        if self.takes_gpus and options.nodes and not options.gpus:
            return unchecked("no GPUs were asked for: --gpus N")
        if case.run_ranks is None:
            return unchecked("no nodes were asked for: --nodes N")
        if self.name not in case.sums:
            library, launcher = next(route for route in self.routes if case.has(route[0]))
            ranks = options.nodes * (options.gpus or 1)
            words = (library, self.name, str(ranks), str(options.nodes))
            case.sums[self.name] = rank_sum(case.run_ranks(launcher, words))
        made = case.sums[self.name]
        return Result(made.outcome, made.detail)


def lacks_mpi(case: ImageCase) -> str:
    """Return what an image lacks for ranks that sum by MPI; empty if it lacks nothing."""
    if not case.has("horovod"):
        return "no Horovod is in it, by which ranks would sum over MPI"
    if "mpirun" not in case.contents.programs:
        return "no mpirun is in it"
    without = case.controllers and "mpi" not in case.controllers
    return "its Horovod is built without MPI" if without else ""


def lacks_gloo(case: ImageCase) -> str:
    """Return what an image lacks for ranks that sum by Gloo; empty if it lacks nothing."""
    has_horovod = case.has("horovod") and "gloo" in (case.controllers or ("gloo",))
    has_any = has_horovod or case.has("torch")
    return "" if has_any else "neither a Horovod with Gloo nor torch is in it"


def lacks_nccl(case: ImageCase) -> str:
    """Return what an image lacks for ranks that sum by NCCL; empty if it lacks nothing."""
    if not case.contents.cuda:
        return "no CUDA is in it"
    return "" if case.has("torch") else "no torch is in it, by which ranks would sum over NCCL"


_TORCH = ("torch", "torchrun")
BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend("mpi", "MPI", lacks_mpi, (("horovod", "horovod"),)),
        Backend("gloo", "Gloo", lacks_gloo, (_TORCH, ("horovod", "horovod-gloo"))),
        Backend("nccl", "NCCL", lacks_nccl, (_TORCH,), takes_gpus=True),
    )
}
ON_NODES = tuple(
    Check(
        f"nodes-{name}",
        f"ranks on several nodes sum by {backend.title}",
        backend.run_on_nodes,
        scope="nodes",
    )
    for name, backend in BACKENDS.items()
)
