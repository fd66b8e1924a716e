"""The one door to Slurm. Every command goes through ``Access.prefix``: nothing on a login node, the namespaces of the local cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit import shell
from toolkit.errors import NeedsInstallError, SlurmUnreachableError, SubmissionError
from toolkit.model.run import JobState
from toolkit.model.site import Access, Partition
from toolkit.slurm import parse

# What Slurm's commands say when nobody answers, whichever command it is.
_UNREACHABLE = re.compile(
    r"Unable to contact slurm controller|Could not establish a configuration source|fetch_config|Connection refused"
    r"|Unable to establish control machine address|Zero Bytes were transmitted|Protocol authentication error"
    r"|munge.*(?:refused|No such file)",
    re.IGNORECASE,
)
_ANSWER_SECONDS = 60  # slurmctld under load is slow; a command that hangs longer is not coming back


def without_sbatch_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """``SBATCH_*`` variables override the script's own lines; a run must not depend on who has them set."""
    return {name: value for name, value in environment.items() if not name.startswith("SBATCH_")}


@dataclass(frozen=True)
class Client:
    """Slurm's commands as functions. Every one raises ``SlurmUnreachableError`` where no Slurm answers."""

    access: Access

    def _run(self, argv: Sequence[str], *, check: bool = True) -> shell.Result:
        try:
            result = shell.run([*self.access.prefix, *argv], env=without_sbatch_variables(os.environ), timeout=_ANSWER_SECONDS, check=False)
        except NeedsInstallError as error:
            raise no_slurm(f"{error.cause}", error.place) from None
        if not result.ok and (_UNREACHABLE.search(result.stderr) or result.returncode == 127):
            raise no_slurm("no Slurm controller answers", argv[0], result.tail(3))
        if check and not result.ok:
            raise SubmissionError(f"{argv[0]} failed with exit code {result.returncode}", place=" ".join(argv), details=result.tail())
        return result

    def partitions(self) -> tuple[Partition, ...]:
        """All partitions that this user may see."""
        return parse.partitions(self._run(["sinfo", "--noheader", "--exact", f"--format={parse.SINFO_FORMAT}"]).stdout)

    def mpi_types(self) -> tuple[str, ...]:
        """What ``srun --mpi`` accepts here."""
        result = self._run(["srun", "--mpi=list"], check=False)
        return parse.mpi_types(result.stdout + result.stderr)

    def version(self) -> str:
        return self._run(["sinfo", "--version"]).stdout.split()[-1]

    def submit(self, script: Path) -> int:
        """Submit a script and return the job's id.

        Raises:
            SubmissionError: Slurm refused it; its own words are in the details.
        """
        result = self._run(["sbatch", "--parsable", str(script)], check=False)
        match = re.search(r"^(\d+)(?:;.*)?$", result.stdout, re.MULTILINE)
        if not result.ok or not match:
            words = [re.sub(r"^sbatch: (?:error: )?", "", line) for line in result.tail()]
            raise SubmissionError("Slurm refused the job; nothing was submitted", place=str(script), details=words)
        return int(match[1])

    def jobs(self, ids: Sequence[int]) -> dict[int, JobState]:
        """The states of jobs, also of ended ones; a job that Slurm has forgotten is missing."""
        if not ids:
            return {}
        found = self._queued(ids)
        lost = [number for number in ids if number not in found]
        if lost:
            asked = ["sacct", "--noheader", "--parsable2", "--allocations", f"--format={parse.SACCT_FORMAT}", f"--jobs={_list(lost)}"]
            result = self._run(["env", "SLURM_TIME_FORMAT=%s", *asked], check=False)
            if result.ok:
                found |= {number: state for number, state in parse.accounts(result.stdout).items() if number in lost}
        return found

    def _queued(self, ids: Sequence[int]) -> dict[int, JobState]:
        # 22.05 prints all jobs whatever is asked for; later versions only these, and fail for one that they do not know.
        result = self._run(["squeue", "--json", "--states=all", f"--jobs={_list(ids)}"], check=False)
        try:
            states = parse.jobs(result.stdout) if result.ok and "{" in result.stdout else None
        except ValueError:
            states = None
        if states is None:
            states = {}
            for number in ids:
                states |= parse.job_lines(self._show(number))
        return {number: state for number, state in states.items() if number in ids}

    def _show(self, job_id: int) -> str:
        """What scontrol says of a job, empty where Slurm does not know it; a Slurm that answers nothing is another matter."""
        result = self._run(["scontrol", "--oneliner", "show", "job", str(job_id)], check=False)
        if not result.ok and "Invalid job id" not in result.stderr:
            raise no_slurm("Slurm gives no answer about a job", "scontrol show job", result.tail(3))
        return result.stdout

    def expected_start(self, job_id: int) -> str:
        """When Slurm thinks that a waiting job starts, in its words; empty where it does not know."""
        result = self._run(["squeue", "--noheader", "--start", f"--jobs={job_id}", "--format=%S"], check=False)
        text = result.stdout.strip()
        return "" if text in ("", "N/A") else text

    def unwell_nodes(self, hosts: str) -> dict[str, str]:
        """Of these nodes the ones that are down or not answering, and what Slurm says of each: ``{"nid002": "down*: Not responding"}``."""
        result = self._run(["sinfo", "--noheader", "--Node", f"--nodes={hosts}", "--format=%N|%T|%E"], check=False)
        rows = [line.split("|", 2) for line in result.stdout.splitlines() if line.count("|") >= 2]
        return {name: f"{state}: {reason}" for name, state, reason in rows if state.startswith(("down", "fail")) or state.endswith("*")}

    def cancel(self, job_id: int) -> None:
        """Cancel a job; one that has ended already is no error."""
        result = self._run(["scancel", str(job_id)], check=False)
        if not result.ok and "Invalid job id" not in result.stderr and "already completing" not in result.stderr:
            raise SubmissionError(f"job {job_id} could not be cancelled", place="scancel", details=result.tail())


def no_slurm(cause: str, place: str | None = None, details: Sequence[str] = ()) -> SlurmUnreachableError:
    """The error for a place without Slurm, with what to do about it."""
    return SlurmUnreachableError(
        cause,
        place=place,
        details=details,
        next_step="on a cluster: log in to a login node. Here: toolkit cluster up (a real Slurm on this machine)",
    )


def _list(ids: Sequence[int]) -> str:
    return ",".join(str(number) for number in ids)
