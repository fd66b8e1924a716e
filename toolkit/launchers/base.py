"""A launcher as a row of functions and facts, and what several of these functions share. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from toolkit.errors import LauncherMismatchError, ToolkitError
from toolkit.model.case import Case, Source
from toolkit.model.run import Launch

# What a launcher may need of a runtime:
#   command    a command enters the container, so that not only srun can start ranks in it
#   nodes      ranks on several nodes
#   pmi        ranks reach the PMI server of Slurm
#   terminal   a rank can have a terminal
Capability = Literal["command", "nodes", "pmi", "terminal"]
Ability = Literal["elastic", "unequal", "pty", "max_restarts", "init"]


def default(case: Case, environment: Mapping[str, str] | None = None, **changes: Any) -> Launch:
    """Return the decisions of a launcher that starts a task for each rank, or for each node.

    Args:
        case: of the run.
        environment: further variables of each rank.
        changes: fields of the launch that are decided otherwise.
    """
    launcher, share, ranks = case.launcher, case.cpus_per_rank, case.ranks_per_node
    assert launcher is not None
    decided: dict[str, Any] = {
        "launcher": launcher.name,
        "ntasks_per_node": 1 if launcher.is_per_node else ranks,
        "cpus_per_task": share * ranks if launcher.is_per_node else share,
        "environment": {"OMP_NUM_THREADS": str(share), **(environment or {})},
        "program": (*case.command, *case.job.arguments),
    }
    return Launch(**(decided | changes))


def require(framework: str, case: Case) -> Iterator[ToolkitError]:
    """Yield an error if an image lacks a framework; a foreign image is not refused."""
    if case.manifest is None or framework in case.manifest.frameworks:
        return
    held = ", ".join(sorted(case.manifest.frameworks)) or "none"
    yield LauncherMismatchError(
        f"the launcher {case.job.launcher} needs {framework}, "
        f"which this {case.noun} does not hold (it holds: {held})",
        place="--launcher",
        next_step=f"choose another {case.noun} or launcher",
    )


def sockets(case: Case, *libraries: str) -> dict[str, str]:
    """Return the variables that bind ``GLOO`` or ``NCCL`` to the network between nodes."""
    name = case.interface
    return {f"{library}_SOCKET_IFNAME": name for library in libraries} if name else {}


SLURM_RANKS = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")


class Launcher(NamedTuple):
    """A way to start ranks, by default one task of Slurm for each.

    Attributes:
        name: of the launcher, and of its template if ``Launch`` names no other.
        about: for ``--help`` and the documentation.
        launch: what the launcher's template writes out.
        check: why the launcher cannot work with this image and site.
        facts: of the cluster that only some launchers need: ``Facts.mpi``, ``Facts.mpirun``.
        needs: what a runtime must offer so that the launcher can start ranks in it.
        framework: the module by which ranks learn of each other.
        modules: that a script imports if it uses the framework; empty: the framework itself.
        calls: functions or classes that it calls then.
        can: what a job may ask for and only some launchers do: a number of nodes that may change
            (``elastic``), as many ranks on each node as it has GPUs (``unequal``), terminals of
            ranks (``pty``), and the job's keys of that name.
        commands: programs whose whole command it takes, as ``accelerate launch train.py``.
        starters: programs that start its ranks: their own errors are about the ranks.
        task_noun: what messages call a task: ``rank`` or ``task``.
        rank_variables: that hold a rank's number; the first that is set counts. What launchers
            report of failures is read by ``launchers.failures``.
        is_per_node: starts one task on each node, which has the CPUs of all the node's ranks.
        takes_node: a rank takes all GPUs of its node, so that there is one on each node by default.
        takes_programs: what it starts may be a program of the image instead of a file of the user.
        is_server: starts a server of ours: no file of the user is its program, its run has secrets
            that the job writes, and a site can have a time limit for it.
        is_internal: only another command starts it, such as `toolkit shell`; messages and help
            texts do not propose it.
        writes_reports: failing ranks of Python may write down why they fail.
    """

    name: str
    about: str
    launch: Callable[[Case], Launch] = default
    check: Callable[[Case], Iterable[ToolkitError]] = lambda _: ()
    facts: tuple[Literal["mpi", "mpirun"], ...] = ()
    needs: frozenset[Capability] = frozenset()
    framework: str = ""
    modules: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    can: frozenset[Ability] = frozenset(("pty",))
    commands: tuple[str, ...] = ()
    starters: tuple[str, ...] = ()
    task_noun: str = "rank"
    rank_variables: tuple[str, ...] = SLURM_RANKS
    is_per_node: bool = False
    takes_node: bool = False
    takes_programs: bool = False
    is_server: bool = False
    is_internal: bool = False
    writes_reports: bool = True

    def is_used_by(self, source: Source) -> bool:
        """Return whether a script uses the launcher's framework."""
        modules = self.modules or filter(None, (self.framework,))
        return source.imports_any(*modules) or source.calls_any(*self.calls)
