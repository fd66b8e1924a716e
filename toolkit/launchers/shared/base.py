"""The base class of launchers, and what a launcher decides from.

A launcher is pure, but for ``discover``: it recognizes the scripts that it is for, decides
(``launch``), refuses (``check``), and reads its own failures out of logs (``failures``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from toolkit.errors import LauncherMismatchError, ToolkitError
from toolkit.launchers.shared.step_log import batch_lines, failures_of_step
from toolkit.model.case import Case
from toolkit.model.plan import Launch
from toolkit.model.run import Failure
from toolkit.model.site import Facts
from toolkit.model.source import Source

if TYPE_CHECKING:
    from toolkit.model.run import Report

# What a launcher may need of a runtime:
#   command    a command enters the container, so that not only srun can start ranks in it
#   nodes      ranks on several nodes
#   pmi        ranks reach the PMI server of Slurm
#   terminal   a rank can have a terminal
Capability = Literal["command", "nodes", "pmi", "terminal"]


# Programs whose arguments say what they start: that is the user's, and is not spread over ranks.
SHELLS = ("bash", "sh")


class Recognition(NamedTuple):
    """A launcher's claim to a script.

    Attributes:
        priority: the smallest number of all launchers wins. What tells more has the smaller number:
            a script for ``horovod.torch`` also imports torch, one that forks also imports
            ``torch.distributed``.
        reason: the rest of a sentence that begins with the script's name: ``imports horovod``.
    """

    priority: int
    reason: str


class Launcher:
    """A way to start ranks: the base class, which starts one task of Slurm for each rank.

    Attributes:
        summary: what the launcher is for, for ``--help`` and the documentation.
        needs: what a runtime must offer so that the launcher can start ranks in it.
        substitute: the launcher that does the same in other runtimes; empty if there is none.
        framework: the module that a script imports so that its ranks learn of each other.
        is_elastic: can start with a number of nodes that may change (``--nodes 1:4``).
        is_unequal: can start as many ranks on each node as it has GPUs (``--gpus 8,4``).
        is_per_node: starts one task on each node, which has the CPUs of all the node's ranks.
        takes_node: a rank takes all GPUs of its node, so that there is one on each node by default.
        has_pty: its ranks can have a terminal.
        is_internal: only another command starts it, such as `toolkit shell`; messages and help
            texts do not propose it.
        is_notebook: serves notebooks, for which a site can have a time limit of its own.
        options: keys of a job that only some launchers know: ``max_restarts``, ``init``.
        takes_programs: what it starts may be a program of the image instead of a file of the user.
        commands: programs whose whole command it takes, as ``accelerate launch train.py``.
        has_own_program: it starts a program of its own: no file of the user is one of its name.
        is_private: the directory of its run has secrets that the job writes.
        starts_python: what it starts is Python, whatever the program is called.
        writes_reports: failing ranks of Python may write down why they fail.
        task_noun: what messages call a task: ``rank`` or ``task``.
        rank_variables: variables that tell a process its rank, in order of preference.
        starters: programs that start its ranks: their own errors are about the ranks.
        waits_for_failed: a rank that an exception ends waits for the others before it exits.
    """

    summary: str = ""
    needs: frozenset[Capability] = frozenset()
    substitute: str = ""
    framework: str = ""
    is_elastic: bool = False
    is_unequal: bool = False
    is_per_node: bool = False
    takes_node: bool = False
    has_pty: bool = True
    is_internal: bool = False
    is_notebook: bool = False
    options: tuple[str, ...] = ()
    takes_programs: bool = False
    commands: tuple[str, ...] = ()
    has_own_program: bool = False
    is_private: bool = False
    starts_python: bool = False
    writes_reports: bool = True
    task_noun: str = "rank"
    rank_variables: tuple[str, ...] = (
        "HOROVOD_RANK",
        "OMPI_COMM_WORLD_RANK",
        "PMIX_RANK",
        "SLURM_PROCID",
    )
    starters: tuple[str, ...] = ()
    waits_for_failed: bool = False

    @property
    def name(self) -> str:
        """The launcher's name, which is that of its module."""
        return type(self).__module__.rpartition(".")[2].replace("_", "-")

    def recognize(self, case: Case) -> Recognition | None:
        """Return the claim of ``--launcher auto`` to a script; None if it is for others."""
        del case
        return None

    def is_used_by(self, source: Source) -> bool:
        """Return whether a script uses the launcher's framework."""
        return bool(self.framework) and source.imports_any(self.framework)

    def discover(self, case: Case) -> Facts:
        """Return the facts of the cluster, with those that only this launcher needs."""
        return case.facts

    def check(self, case: Case) -> Sequence[ToolkitError]:
        """Return why the launcher cannot work with this image and site; empty if it can."""
        del case
        return ()

    def launch(self, case: Case) -> Launch:
        """Return the decisions that the launcher's template writes out."""
        share = case.cpus_per_rank
        return Launch(
            launcher=self.name,
            reason=case.origins.get("launcher", "default"),
            ntasks_per_node=1 if self.is_per_node else case.ranks_per_node,
            cpus_per_task=share * case.ranks_per_node if self.is_per_node else share,
            environment={"OMP_NUM_THREADS": str(share)},
            program=(*case.command, *case.job.arguments),
        )

    def failures(self, logs: Iterable[tuple[str, Sequence[str]]]) -> list[Failure]:
        """Return the ranks that failed, the first one first.

        Args:
            logs: the lines of each log with its host, which is "" for the log of the batch shell.
        """
        return failures_of_step(batch_lines(logs), task=self.task_noun)

    def rank_of(self, report: Report) -> int | None:
        """Return the global rank of a process that wrote a report; None if it is not known."""
        numbers = (number_of(report.env.get(name)) for name in self.rank_variables)
        return next((number for number in numbers if number is not None), None)

    def of_last_start(
        self, reports: Sequence[Report], reported: Sequence[Failure]
    ) -> Sequence[Report]:
        """Return the reports since ranks were last started; the run survived failures before that.

        Args:
            reports: of the whole run, in order of time.
            reported: what ``failures`` returned.
        """
        del reported
        return reports

    def require(self, framework: str, case: Case) -> list[ToolkitError]:
        """Return an error if an image lacks a framework; a foreign image is not refused."""
        if case.manifest is None or framework in case.manifest.frameworks:
            return []
        held = ", ".join(sorted(case.manifest.frameworks)) or "none"
        return [
            LauncherMismatchError(
                f"the launcher {self.name} needs {framework}, "
                f"which this {case.noun} does not hold (it holds: {held})",
                place="--launcher",
                next_step=f"choose another {case.noun} or launcher",
            )
        ]


def number_of(text: str | None) -> int | None:
    """Return a rank from a variable's value; None if the value is not a number."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 10 else None


def sockets(case: Case, *libraries: str) -> dict[str, str]:
    """Return the variables that bind ``GLOO`` or ``NCCL`` to the network between nodes."""
    name = case.interface
    return {f"{library}_SOCKET_IFNAME": name for library in libraries} if name else {}
