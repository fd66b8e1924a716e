"""Checks of communication: ranks sum their vectors by each backend, on this machine and on nodes.

The backends are one table: what a backend needs, and the programs by which its ranks are started.
What rank 0 reports is judged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from toolkit import shell
from toolkit.checks import Check, Result, failed, passed, unchecked
from toolkit.images.verify.case import ImageCase, RankSum, ScriptRun, at
from toolkit.units import counted

# What horovodrun and srun put before the lines of their ranks.
_RANK = re.compile(r"^(?:\[\d+(?:,\d+)?\]<std(?:out|err)>: ?|\d+\| )")
# What two ranks need as root on a machine with fewer than two free cores.
_VARIABLES = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
# By env: Apptainer starts a program by its path, and an mpirun that is started so puts its own
# directory before all others.
MPIRUN = (
    "env",
    "mpirun",
    "-n",
    "2",
    "--oversubscribe",
    "--bind-to",
    "none",
    "--mca",
    "btl",
    "self,vader",
    "--mca",
    "plm",
    "isolated",
)
HOROVODRUN = ("horovodrun", "--disable-cache", "--gloo", "--network-interfaces", "lo", "-np", "2")


def sum_here(
    case: ImageCase, command: Sequence[str], arguments: Sequence[str], backend: str
) -> Result:
    """Start two ranks on this machine by ``command``, and judge their sum."""
    variables = {**_VARIABLES, **({"GLOO_SOCKET_IFNAME": "lo"} if backend == "gloo" else {})}
    argv = [*command, "python3", at("ranks.py"), *arguments]
    result = case.runner.run(argv, variables=variables)
    return judge(report_in(result.stdout.splitlines()), 2, backend, _complaint(result))


def sum_on_nodes(case: ImageCase, launcher: str, arguments: Sequence[str], backend: str) -> Result:
    """Have ranks on the site's nodes sum, once for each backend, and judge their sum."""
    if case.run_ranks is None:
        return unchecked("no nodes were asked for: --nodes N")
    if backend not in case.sums:
        run = case.run_ranks(launcher, arguments)
        nodes = case.options.nodes
        case.sums[backend] = rank_sum(run, nodes * (case.options.gpus or 1), nodes, backend)
    made = case.sums[backend]
    return Result(made.outcome, made.detail)


def rank_sum(run: ScriptRun, ranks: int, nodes: int, backend: str) -> RankSum:
    """Return what came of a job on nodes.

    A job that was refused before it queued, or that Slurm did not answer for, says nothing of the
    image.
    """
    if run.outcome is None:
        return RankSum(outcome="unchecked", detail=run.refusal)
    report = run.results
    judged = judge(report or None, ranks, backend, run.complaint, nodes)
    return RankSum(
        outcome="passed" if judged.outcome == "passed" else "failed",
        detail=judged.message,
        drivers=tuple(report.get("drivers", ())),
        speed=float(report.get("gigabytes_per_second") or 0.0),
    )


def report_in(lines: Sequence[str]) -> Mapping[str, Any] | None:
    """Return the object in which rank 0 reports the sum; None if no line is one."""
    for line in reversed(lines):
        text = _RANK.sub("", line.strip())
        if text.startswith("{") and '"ranks"' in text:
            try:
                report: Mapping[str, Any] = json.loads(text)
            except ValueError:
                continue
            return report
    return None


def judge(
    report: Mapping[str, Any] | None, ranks: int, backend: str, complaint: str, nodes: int = 1
) -> Result:
    """Judge a sum over ranks.

    Args:
        report: of rank 0.
        ranks: how many there should have been.
        backend: what should have carried the messages.
        complaint: what was printed instead of a report.
        nodes: how many hosts there should have been.
    """
    if report is None:
        return failed(complaint)
    hosts = sorted(set(report["hosts"]))
    if report["ranks"] != ranks:
        return failed(f"{counted(report['ranks'], 'rank')} found each other, not {ranks}")
    if len(hosts) != nodes:
        names = ", ".join(hosts)
        return failed(f"the ranks were on {names}: {counted(len(hosts), 'node')}, not {nodes}")
    if report["controller"] != backend:
        return failed(f"it went by {report['controller']}, not by {backend}")
    if not report["right"]:
        return failed("the sum over all ranks is wrong")
    where = f" on {', '.join(hosts)}" if nodes > 1 else ""
    return passed(
        f"{counted(ranks, 'rank')} by {backend}{where}: the sum of their vectors is right"
    )


def _complaint(result: shell.Result) -> str:
    """Return the last line that looks like an error, or else the last one with text."""
    lines = [
        _RANK.sub("", line).strip()
        for line in (*result.stdout.splitlines(), *result.stderr.splitlines())
    ]
    errors = [
        line for line in lines if re.match(r"(?:\w+\.)*\w*(?:Error|Exception|Exit)\b|FATAL", line)
    ]
    texts = [line for line in lines if line and not set(line) <= set("-=*# ")]
    return (errors or texts or [f"the ranks ended with {result.returncode}"])[-1]


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


ON_THIS_MACHINE = tuple(
    Check(f"ranks-{name}", f"two ranks on this machine sum by {backend.title}", backend.run_locally)
    for name, backend in BACKENDS.items()
)
ON_NODES = tuple(
    Check(
        f"nodes-{name}",
        f"ranks on several nodes sum by {backend.title}",
        backend.run_on_nodes,
        scope="nodes",
    )
    for name, backend in BACKENDS.items()
)
