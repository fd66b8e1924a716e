"""mpirun: the Open MPI of the host or of a module starts the ranks, each in its container.

No ssh: Slurm starts the daemons of mpirun.

For scripts of Horovod over MPI, for any program of MPI, and for sites whose srun speaks no PMI that
the image's MPI knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from toolkit.errors import (
    CommandFailedError,
    LauncherMismatchError,
    NeedsInstallError,
    ToolkitError,
)
from toolkit.launchers.shared import horovod_build, pmi
from toolkit.launchers.shared.base import Launcher, sockets
from toolkit.launchers.shared.step_log import batch_lines, rank_failure
from toolkit.model.case import Case
from toolkit.model.plan import Launch
from toolkit.model.run import Failure
from toolkit.model.site import Facts

_OPEN_MPI = re.compile(r"Open MPI\)? (\d{1,9})\.(\d{1,9})")
_TRIED = (("5", "4"),)  # of the host, of the image: ranks of 4.1.4 under mpirun 5.0.7, over PMIx
_KILLED = re.compile(
    r"process rank (?P<rank>\d{1,9}) with PID \d{1,9} on node (?P<host>\S+) "
    r"exited on\s+signal (?P<signal>\d{1,9})"
)
# Open MPI 4: [[25134,1],1], and 5: [prterun-nid001-681@1,1].
_NAMED = re.compile(r"Process name: \[(?:\[\d+,\d+\]|[^\s\[\]]+@\d+),(?P<rank>\d{1,9})\]")
_CODE = re.compile(r"Exit code:\s+(?P<code>\d{1,9})")
_ABORTED = re.compile(r"MPI_ABORT was invoked on rank (?P<rank>\d{1,9})")
_ERROR_CODE = re.compile(r"with errorcode (?P<code>\d{1,9})")


class Mpirun(Launcher):
    """Ranks of Open MPI that the host's mpirun starts."""

    summary = "the host's Open MPI starts every rank in its container; for Horovod and any MPI"
    needs = frozenset(("command", "nodes"))
    has_pty = False
    rank_variables = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK")
    starters = ("mpirun",)
    waits_for_failed = True

    def discover(self, case: Case) -> Facts:
        """Read the version of the mpirun on PATH."""
        return replace(case.facts, mpirun=_version_on_path())

    def check(self, case: Case) -> Sequence[ToolkitError]:
        """Require an Open MPI on the nodes, and an MPI in the image, or Horovod built with it."""
        if case.source.imports_any("horovod"):
            findings: list[ToolkitError] = list(horovod_build.check(self, case, "mpi"))
        else:
            findings = list(pmi.require_mpi(self, case))
        version = case.facts.mpirun
        if version is None and not case.site.modules:
            findings.append(
                NeedsInstallError(
                    "there is no mpirun on PATH, and the site names no module that brings one",
                    place="--launcher mpirun",
                    next_step="--launcher horovod or mpi does without it; or load the site's Open "
                    "MPI; on Debian: apt-get install openmpi-bin",
                )
            )
        elif version and not _OPEN_MPI.search(version):
            findings.append(
                LauncherMismatchError(
                    f"mpirun here is not Open MPI's: {version}",
                    place="--launcher mpirun",
                    next_step="load the site's Open MPI, or use --launcher mpi",
                )
            )
        return findings

    def launch(self, case: Case) -> Launch:
        """Let Slurm give a slot for each rank, and mpirun fill them.

        mpirun binds no rank to a core: that is the business of Slurm and the user.
        """
        interface = case.interface
        parameters = {
            **pmi.parameters(interface),
            **({"oob_tcp_if_include": interface} if interface else {}),
        }
        decided = super().launch(case)
        return replace(
            decided,
            # The MPI plugin that a site's Slurm starts by default is for ranks; mpirun starts its
            # daemons with it, and brings a PMIx of its own.
            exports={**pmi.EXPORTS, "SLURM_MPI_TYPE": "none"},
            environment={**decided.environment, **sockets(case, "NCCL")},
            options=(
                "-n",
                str(case.ranks),
                "--map-by",
                f"ppr:{case.ranks_per_node}:node",
                "--bind-to",
                "none",
                *(word for name, value in parameters.items() for word in ("--mca", name, value)),
            ),
            warnings=_warnings(case),
        )

    def failures(self, logs: Iterable[tuple[str, Sequence[str]]]) -> list[Failure]:
        """Return the ranks that mpirun reports as failed.

        With an exit code mpirun names the rank only; the rank's log names the host. A rank that
        calls MPI_Abort is named for that first, and then again with the same code.
        """
        lines = batch_lines(logs)
        return [
            failure
            for index, line in enumerate(lines)
            if (failure := _failure(line, lines[index + 1 : index + 4]))
        ]


def _version_on_path() -> str | None:
    """Return the first line of ``mpirun --version``; None if there is none."""
    from toolkit import shell

    if shell.which("mpirun") is None:
        return None
    try:
        answer = shell.run(["mpirun", "--version"], timeout=20, check=False)
    except CommandFailedError:
        return None
    return next((line.strip() for line in answer.stdout.splitlines() if line.strip()), None)


def _warnings(case: Case) -> tuple[str, ...]:
    """Warn of two versions of Open MPI that may not work together.

    Open MPI promises that ranks find a daemon of the same major version; of others, what was tried
    is known.
    """
    host = _OPEN_MPI.search(case.facts.mpirun or "")
    image = _OPEN_MPI.search(horovod_build.detail_of("openmpi", case.manifest) or "")
    if host is None or image is None or host[1] == image[1] or (host[1], image[1]) in _TRIED:
        return ()
    return (
        f"mpirun here is Open MPI {host[1]}.{host[2]}, "
        f"the {case.noun} has {image[1]}.{image[2]}: ranks may not find it; "
        "--launcher horovod or mpi does without the host's",
    )


def _failure(line: str, following: Sequence[str]) -> Failure | None:
    killed = _KILLED.search(" ".join((line, *following[:1])))  # mpirun 5 wraps its lines
    if killed:
        return rank_failure(128 + int(killed["signal"]), int(killed["rank"]), killed["host"])
    for first, then in ((_NAMED, _CODE), (_ABORTED, _ERROR_CODE)):
        named = first.search(line)
        code = (
            next((match for other in following if (match := then.search(other))), None)
            if named
            else None
        )
        if named and code:
            return rank_failure(int(code["code"]), int(named["rank"]), None)
    return None


LAUNCHER = Mpirun()
