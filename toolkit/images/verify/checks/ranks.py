"""Checks of communication: ranks sum their vectors by each backend, on this machine and on nodes.

The backends are one table: what a backend needs, and the programs by which its ranks are started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from toolkit.checks import Check, Result, Traits, unchecked
from toolkit.images.verify.case import ImageCase
from toolkit.images.verify.ranks import HOROVODRUN, MPIRUN, sum_here, sum_on_nodes


class Route(NamedTuple):
    """A way to start ranks that sum.

    Attributes:
        library: that ``scripts/ranks.py`` sums with.
        launcher: of `toolkit run`, for ranks on nodes.
        command: starts two ranks on this machine; empty if the script does that itself.
    """

    library: str
    launcher: str
    command: tuple[str, ...] = ()

    def fits(self, case: ImageCase, *, local: bool) -> bool:
        """Return whether the image has what this route takes, by Gloo."""
        if self.library == "torch":
            return case.has("torch")
        has_gloo = case.has("horovod") and "gloo" in (case.controllers or ("gloo",))
        return has_gloo and (not local or "horovodrun" in case.contents.programs)


class Backend(NamedTuple):
    """A library that carries messages between ranks.

    Attributes:
        name: as ``scripts/ranks.py`` calls it.
        title: as people call it.
        lacks: returns what an image lacks for it; empty if it lacks nothing.
        local, on_nodes: the routes, best first.
        takes_gpus: every rank needs a GPU of its own.
    """

    name: str
    title: str
    lacks: Callable[[ImageCase], str]
    local: tuple[Route, ...]
    on_nodes: tuple[Route, ...]
    takes_gpus: bool = False

    def run_locally(self, case: ImageCase) -> Result:
        """Have two ranks on this machine sum."""
        if reason := case.no_python or self.lacks(case):
            return unchecked(reason)
        if self.takes_gpus and case.gpus < 2:
            return unchecked(
                f"this machine has one GPU; two ranks of {self.title} need one each"
                if case.gpus
                else "this machine has no GPU"
            )
        route = self._route(case, local=True)
        if route is None:
            return unchecked("neither a Horovod with Gloo nor torch is in it")
        count = ("2",) if route.library == "torch" else ()
        return sum_here(case, route.command, (route.library, self.name, *count), self.name)

    def run_on_nodes(self, case: ImageCase) -> Result:
        """Have ranks on the site's nodes sum."""
        if reason := case.no_python or self.lacks(case):
            return unchecked(reason)
        if self.takes_gpus and case.options.nodes and not case.options.gpus:
            return unchecked("no GPUs were asked for: --gpus N")
        route = self._route(case, local=False)
        if route is None:
            return unchecked("neither torch nor a Horovod with Gloo is in it")
        return sum_on_nodes(case, route.launcher, (route.library, self.name), self.name)

    def _route(self, case: ImageCase, *, local: bool) -> Route | None:
        routes = self.local if local else self.on_nodes
        if len(routes) == 1:  # what it takes was asked of ``lacks``
            return routes[0]
        return next((route for route in routes if route.fits(case, local=local)), None)


def _lacks_mpi(case: ImageCase) -> str:
    if not case.has("horovod"):
        return "no Horovod is in it, by which ranks would sum over MPI"
    if case.controllers is not None and "mpi" not in case.controllers:
        return "its Horovod is built without MPI"
    return "" if "mpirun" in case.contents.programs else "no mpirun is in it"


def _lacks_nccl(case: ImageCase) -> str:
    if not case.contents.cuda:
        return "no CUDA is in it"
    return "" if case.has("torch") else "no torch is in it, by which ranks would sum over NCCL"


def _lacks_nothing(_: ImageCase) -> str:
    return ""


_TORCH = Route("torch", "torchrun")
_HOROVOD_GLOO = Route("horovod", "horovod-gloo", HOROVODRUN)
_HOROVOD_MPI = Route("horovod", "horovod", MPIRUN)
BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend("mpi", "MPI", _lacks_mpi, (_HOROVOD_MPI,), (_HOROVOD_MPI,)),
        Backend("gloo", "Gloo", _lacks_nothing, (_HOROVOD_GLOO, _TORCH), (_TORCH, _HOROVOD_GLOO)),
        Backend("nccl", "NCCL", _lacks_nccl, (_TORCH,), (_TORCH,), takes_gpus=True),
    )
}


def _checks(number: int, backend: Backend) -> Iterator[Check[ImageCase]]:
    """Yield the two checks of a backend; ``number`` is its place in the table."""
    local = f"two ranks on this machine sum by {backend.title}"
    nodes = f"ranks on several nodes sum by {backend.title}"
    yield Check(f"ranks-{backend.name}", local, backend.run_locally, Traits(order=100 + number))
    traits = Traits(order=140 + number, scope="nodes")
    yield Check(f"nodes-{backend.name}", nodes, backend.run_on_nodes, traits)


CHECKS = tuple(
    check for number, backend in enumerate(BACKENDS.values()) for check in _checks(number, backend)
)
