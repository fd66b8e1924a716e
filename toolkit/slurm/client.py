"""The one door to Slurm. Every command goes through ``Access.prefix``: nothing on a login node, the namespaces of the local cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit import shell
from toolkit.errors import CommandFailedError, NeedsInstallError, SlurmSilentError, SlurmUnreachableError, SubmissionError
from toolkit.model.run import JobState
from toolkit.model.site import Access, Partition
from toolkit.slurm import parse

# What Slurm's commands say, whichever it is, when they reach nobody: then nothing was asked of the controller.
_UNREACHED = re.compile(
    r"connect failure|Could not establish a configuration source|fetch_config|Connection refused|No route to host"
    r"|Unable to establish control machine address|Protocol authentication error|munge.*(?:refused|No such file)",
    re.IGNORECASE,
)
# And when the connection breaks after that: the controller may have done what it was asked, and its answer was lost.
_LOST = re.compile(
    r"Unable to contact slurm controller|Zero Bytes were transmitted|Connection reset by peer|Socket timed out|Connection timed out"
    r"|Message receive failure|Unexpected message received|Broken pipe|Transport endpoint is not connected|Insane message length",
    re.IGNORECASE,
)
_ANSWER_SECONDS = 60  # slurmctld under load is slow; a command that hangs longer is not coming back


def without_sbatch_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """``SBATCH_*`` variables override the script's own lines; a run must not depend on who has them set."""
    return {name: value for name, value in environment.items() if not name.startswith("SBATCH_")}


class AnswerLostError(SlurmUnreachableError):
    """Nobody knows whether Slurm took a job: look for its mark before it is submitted again."""

    exit_code, kind = SlurmSilentError.exit_code, SlurmSilentError.kind


@dataclass(frozen=True)
class Client:
    """Slurm's commands as functions. Every one raises ``SlurmUnreachableError`` where there is no Slurm, and of this kind
    ``SlurmSilentError`` where its controller does not answer."""

    access: Access

    def _run(self, argv: Sequence[str], *, check: bool = True) -> shell.Result:
        try:
            result = self._said(argv)
        except AnswerLostError as error:
            raise silent(error.cause, error.place, error.details) from None
        if not result.ok and (_UNREACHED.search(result.stderr) or _LOST.search(result.stderr)):
            raise silent("no Slurm controller answers", argv[0], result.tail(3))
        if check and not result.ok:
            raise SubmissionError(f"{argv[0]} failed with exit code {result.returncode}", place=" ".join(argv), details=result.tail())
        return result

    def _said(self, argv: Sequence[str]) -> shell.Result:
        environment = without_sbatch_variables(os.environ)
        try:
            result = shell.run([*self.access.prefix, *argv], env=environment, timeout=_ANSWER_SECONDS, check=False)
        except NeedsInstallError as error:
            raise no_slurm(f"{error.cause}", error.place) from None
        except CommandFailedError as error:
            raise AnswerLostError(error.cause, place=argv[0], details=error.details, next_step=_SILENT_STEP) from None
        if result.returncode == 127:
            raise no_slurm("no Slurm controller answers", argv[0], result.tail(3))
        return result

    def partitions(self) -> tuple[Partition, ...]:
        """All partitions that this user may see."""
        return parse.partitions(self._run(["sinfo", "--noheader", "--exact", f"--format={parse.SINFO_FORMAT}"]).stdout)

    def mpi_types(self) -> tuple[str, ...]:
        """What ``srun --mpi`` accepts here."""
        result = self._run(["srun", "--mpi=list"], check=False)
        return parse.mpi_types(result.stdout + result.stderr)

    def srun_help(self) -> str:
        """What ``srun --help`` says, plugins' options included."""
        return self._run(["srun", "--help"], check=False).stdout

    def ask(self, *argv: str) -> shell.Result:
        """What a command of Slurm's says, also where it fails; what it is asked is up to the caller."""
        return self._run(argv, check=False)

    def version(self) -> str:
        return self._run(["sinfo", "--version"]).stdout.split()[-1]

    def submit(self, script: Path, mark: str) -> int:
        """Submit a script and return the job's id.

        Args:
            mark: a word that no other job has. It is the script's only argument, so that Slurm shows it as part of the job's command;
                name and comment, of which sites demand this and that, stay the user's.

        Raises:
            SubmissionError: Slurm refused it; its own words are in the details.
            AnswerLostError: it may have the job, or not.
            SlurmSilentError: no controller was reached, so that it cannot have the job.
        """
        result = self._said(["sbatch", "--parsable", str(script), mark])
        match = re.search(r"^(\d+)(?:;.*)?$", result.stdout, re.MULTILINE)
        if result.ok and match:
            return int(match[1])
        if not result.ok and _UNREACHED.search(result.stderr):
            raise silent("no Slurm controller answers", "sbatch", result.tail(3))
        killed = result.returncode < 0 or result.returncode > 128
        if result.ok or match or killed or not result.tail() or _LOST.search(result.stderr):
            raise AnswerLostError("sbatch gave no answer", place=str(script), details=result.tail(3), next_step=_SILENT_STEP)
        words = [re.sub(r"^sbatch: (?:error: )?", "", line) for line in result.tail()]
        raise SubmissionError("Slurm refused the job; nothing was submitted", place=str(script), details=words)

    def marked(self, mark: str) -> tuple[int, ...]:
        """The jobs that were submitted with a mark, the oldest first; also those that have ended, as far as Slurm remembers them."""
        result = self._run(["squeue", "--noheader", "--me", "--states=all", "--format=%F|%o"], check=False)
        if not result.ok:
            raise silent("Slurm does not tell which jobs it has", "squeue", result.tail(3))
        found = parse.marked(result.stdout, mark)
        if not found:
            asked = ["sacct", "--noheader", "--parsable2", "--allocations", "--starttime=now-1day", "--format=JobID,SubmitLine"]
            accounts = self._run(asked, check=False)
            found = parse.marked(accounts.stdout, mark) if accounts.ok else ()
        return found

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

    def elements(self, job_id: int) -> dict[int, JobState]:
        """The elements of a job array, by their numbers; those that wait together in one entry of the queue are missing."""
        result = self._run(["squeue", "--json", "--states=all", f"--jobs={job_id}"], check=False)
        try:
            found = parse.elements(result.stdout, job_id) if result.ok and "{" in result.stdout else {}
        except ValueError:
            found = {}
        found = found or parse.element_lines(self._show(job_id))
        if not found:
            asked = ["sacct", "--noheader", "--parsable2", "--allocations", f"--format={parse.SACCT_ELEMENTS}", f"--jobs={job_id}"]
            accounts = self._run(["env", "SLURM_TIME_FORMAT=%s", *asked], check=False)
            found = parse.element_accounts(accounts.stdout) if accounts.ok else {}
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
            raise silent("Slurm gives no answer about a job", "scontrol show job", result.tail(3))
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

    def node_states(self, partition: str | None = None) -> dict[str, tuple[str, str]]:
        """Of each node of a partition, or of all: its state in Slurm's long form, and the reason that somebody gave."""
        asked = ["sinfo", "--noheader", "--Node", "--format=%N|%T|%E", *((f"--partition={partition}",) if partition else ())]
        rows = [line.split("|", 2) for line in self._run(asked).stdout.splitlines() if line.count("|") >= 2]
        return {name.strip(): (state, reason.strip()) for name, state, reason in rows}

    def on_nodes(self, job_id: int, nodes: int, script: str) -> str:
        """What a bash script prints on the nodes of a running job, once on each, beside what runs there.

        Raises:
            SubmissionError: the job does not run, or Slurm does not let us.
        """
        shape = (f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--cpus-per-task=1")
        return self._run(["srun", f"--jobid={job_id}", "--overlap", "--input=none", *shape, "bash", "-c", script]).stdout

    def cancel(self, job_id: int) -> None:
        """Cancel a job; one that has ended already is no error."""
        result = self._run(["scancel", str(job_id)], check=False)
        if not result.ok and "Invalid job id" not in result.stderr and "already completing" not in result.stderr:
            raise SubmissionError(f"job {job_id} could not be cancelled", place="scancel", details=result.tail())


_SILENT_STEP = "ask again later; sinfo tells when Slurm answers. On a local cluster: toolkit cluster status"


def silent(cause: str, place: str | None = None, details: Sequence[str] = ()) -> SlurmSilentError:
    """The error for a Slurm whose controller does not answer."""
    return SlurmSilentError(cause, place=place, details=details, next_step=_SILENT_STEP)


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
