"""The client of Slurm: all of its commands are run by this module.

Every command goes through ``Access.prefix``: nothing on a login node, the namespaces of the local
cluster.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit import shell
from toolkit.errors import CommandFailedError, NeedsInstallError, SubmissionError
from toolkit.files import write_atomically
from toolkit.model.run import JobState
from toolkit.model.site import Access, NodeFacts, Partition
from toolkit.model.slurm_options import Takes
from toolkit.slurm import failures, parse, queue

_DEFAULTS = ("SBATCH_", "SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_")
_ACCOUNTED_DAYS = 30  # how far back the accounting is searched for a job with a mark
_ANSWER_SECONDS = 60  # slurmctld under load is slow; a command that hangs longer does not return


def without_slurm_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that change what Slurm's commands do by default.

    ``SBATCH_*`` overrides the lines of a script, and ``SQUEUE_PARTITION`` and the like hide jobs.
    """
    return {name: value for name, value in environment.items() if not name.startswith(_DEFAULTS)}


def without_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what would change srun or salloc, or make it part of a job."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(("SBATCH_", "SALLOC_", "SLURM_")) or name == "SLURM_CONF"
    }


@dataclass(frozen=True)
class Client:
    """Slurm's commands as functions.

    Each raises ``SlurmUnreachableError`` if there is no Slurm, and its subclass
    ``SlurmSilentError`` if the controller does not answer.
    """

    access: Access

    def _run(self, argv: Sequence[str], *, check: bool = True) -> shell.Result:
        try:
            result = self._execute(argv)
        except failures.AnswerLostError as error:
            raise failures.silent(error.cause, error.place, error.details) from None
        if failures.is_silent(result):
            raise failures.silent("no Slurm controller answers", argv[0], result.tail(3))
        if check and not result.ok:
            raise SubmissionError(
                f"{argv[0]} failed with exit code {result.returncode}",
                place=" ".join(argv),
                details=result.tail(),
            )
        return result

    def _execute(self, argv: Sequence[str]) -> shell.Result:
        environment = without_slurm_defaults(os.environ)
        try:
            result = shell.run(
                [*self.access.prefix, *argv], env=environment, timeout=_ANSWER_SECONDS, check=False
            )
        except NeedsInstallError as error:
            raise failures.no_slurm(f"{error.cause}", error.place) from None
        except CommandFailedError as error:
            raise failures.answer_lost(error.cause, argv[0], error.details) from None
        if result.returncode == 127:
            raise failures.no_slurm("no Slurm controller answers", argv[0], result.tail(3))
        return result

    def partitions(self) -> tuple[Partition, ...]:
        """Return all partitions that this user may see."""
        return parse.partitions(
            self._run(["sinfo", "--noheader", "--exact", f"--format={parse.SINFO_FORMAT}"]).stdout
        )

    def mpi_types(self) -> tuple[str, ...]:
        """Return the types of ``srun --mpi``."""
        result = self._run(["srun", "--mpi=list"], check=False)
        return parse.mpi_types(result.stdout + result.stderr)

    def srun_help(self) -> str:
        """Return the text of ``srun --help``, plugins' options included."""
        return self._run(["srun", "--help"], check=False).stdout

    def sbatch_options(self) -> dict[str, Takes]:
        """Return what each option of ``sbatch --help`` takes; plugins' options are among them."""
        return parse.sbatch_options(self._run(["sbatch", "--help"], check=False).stdout)

    def ask(self, *argv: str) -> shell.Result:
        """Run a read-only command of Slurm and return its result, also if it fails."""
        return self._run(argv, check=False)

    def version(self) -> str:
        """Return the version of Slurm."""
        return self._run(["sinfo", "--version"]).stdout.split()[-1]

    def submit(self, script: Path, mark: str) -> int:
        """Submit a script and return the job's id.

        Args:
            script: a batch script.
            mark: a word that no other job has, of ``once.new_mark``. The script is submitted under
                a name with the mark in it, for as long as sbatch runs: every version of Slurm shows
                a job's owner the path of its script, as ``Command``. The name and the comment of
                the job stay the user's and the site's. The script has the mark as its argument,
                too, by which a second job knows that it is one.

        Raises:
            SubmissionError: Slurm refused the job; its message is in the details.
            AnswerLostError: it is unknown whether Slurm has the job.
            SlurmSilentError: no controller was reached, so Slurm cannot have the job.
        """
        marked = _marked_name(script, mark)
        try:
            result = self._execute(["sbatch", "--parsable", str(marked), mark])
        finally:
            with contextlib.suppress(OSError):  # the answer counts, even if the name remains
                marked.unlink()
        return failures.submitted_id(result, script)

    def marked(self, mark: str) -> tuple[int, ...]:
        """Return the ids of the jobs that were submitted with a mark, in rising order.

        Ended jobs are among them as long as Slurm or its accounting has them.
        """
        queued = queue.job_ids(self._queued(), mark)
        return queued or queue.job_ids(
            self._accounted(f"--starttime=now-{_ACCOUNTED_DAYS}days"), mark
        )

    def snapshot(self, ids: Sequence[int] = ()) -> queue.Snapshot:
        """Return all jobs of this user, and their marks.

        This is one query about one user, whatever the number of jobs. Ended jobs are included for
        as long as the controller remembers them (MinJobAge).

        Args:
            ids: jobs that are looked up in the accounting, all at once, if the controller has
                forgotten them.
        """
        return self._with_forgotten(self._queued(), ids)

    def jobs(self, ids: Sequence[int]) -> dict[int, JobState]:
        """Return the states of jobs by job id, of ended ones too.

        A job that Slurm has forgotten is missing.

        Several jobs are selected from those of this user, because squeue fetches the queue of the
        whole site for a list of ids. A single job may be another user's.
        """
        if not ids:
            return {}
        states = self._with_forgotten(self._queued(ids[0] if len(ids) == 1 else None), ids).states
        return {number: states[number] for number in ids if number in states}

    def _with_forgotten(self, entries: list[queue.Entry], ids: Sequence[int]) -> queue.Snapshot:
        states = queue.job_states(entries)
        # squeue forgets the tasks of an array one by one, the first ones first.
        arrays = {entry.array for entry in entries if entry.array and states[entry.array].ended}
        if incomplete := [number for number in ids if number not in states or number in arrays]:
            entries = queue.merge(entries, self._accounted(_jobs_option(incomplete)))
        return queue.snapshot(entries)

    def elements(self, job_id: int) -> dict[int, JobState]:
        """Return the states of the tasks of a job array by task id.

        Tasks that wait, or were cancelled, together in one entry of the queue are among them.
        """
        entries = queue.merge(self._queued(job_id), self._accounted(_jobs_option([job_id])))
        return queue.task_states(entries, job_id)

    def _queued(self, job_id: int | None = None) -> list[queue.Entry]:
        """Ask squeue about one job, or about all jobs of this user."""
        separator = _new_separator()
        which = "--me" if job_id is None else f"--jobs={job_id}"
        words = (
            "squeue",
            "--noheader",
            which,
            "--states=all",
            f"--Format={queue.squeue_format(separator)}",
        )
        result = self._run(["env", *queue.ENVIRONMENT, *words], check=False)
        if not result.ok and "Invalid job id" not in result.stderr:
            raise failures.silent("squeue does not list the jobs", "squeue", result.tail(3))
        return queue.squeue_entries(result.stdout, separator)

    def _accounted(self, which: str) -> list[queue.Entry]:
        """Ask the accounting about jobs; the answer is empty where a cluster keeps none."""
        separator = _new_separator()
        shape = ("--noheader", "--parsable", f"--delimiter={separator}", "--allocations")
        words = ("sacct", *shape, f"--format={queue.sacct_format()}", which)
        result = self._run(["env", *queue.ENVIRONMENT, *words], check=False)
        return queue.sacct_entries(result.stdout, separator) if result.ok else []

    def expected_start(self, job_id: int) -> str:
        """Return Slurm's estimate of when a pending job starts; empty if unknown."""
        result = self._run(
            ["squeue", "--noheader", "--start", f"--jobs={job_id}", "--format=%S"], check=False
        )
        text = result.stdout.strip()
        return "" if text in ("", "N/A") else text

    def unhealthy_nodes(self, hosts: str, since: int) -> dict[str, str]:
        """Return those of some nodes that are down or do not answer since a time, or since later.

        Args:
            hosts: host list as Slurm writes it.
            since: seconds since the epoch.

        Returns:
            node -> Slurm's state and reason: ``{"nid002": "down*: Not responding"}``.
        """
        words = ["sinfo", "--noheader", "--Node", f"--nodes={hosts}", "--format=%N|%T|%H|%E"]
        result = self._run(["env", "SLURM_TIME_FORMAT=%s", *words], check=False)
        return parse.unhealthy_nodes(result.stdout, since)

    def node_states(self, partition: str | None = None) -> dict[str, tuple[str, str]]:
        """Return the state of each node of a partition, or of all nodes.

        The state is Slurm's long form; with it is the reason that an administrator or Slurm gave.
        """
        words = [
            "sinfo",
            "--noheader",
            "--Node",
            "--format=%N|%T|%E",
            *((f"--partition={partition}",) if partition else ()),
        ]
        rows = [
            line.split("|", 2)
            for line in self._run(words).stdout.splitlines()
            if line.count("|") >= 2
        ]
        return {name.strip(): (state, reason.strip()) for name, state, reason in rows}

    def nodes(self) -> dict[str, NodeFacts]:
        """Return all nodes by name, those of hidden partitions too; empty if Slurm hides them."""
        words = ("sinfo", "--all", "--noheader", "--Node", f"--format={parse.NODE_FORMAT}")
        return parse.nodes(self._run(words).stdout)

    def on_nodes(self, job_id: int, nodes: int, script: str) -> str:
        """Run a bash script once on each node of a running job, and return the output.

        The script runs beside the job's tasks. The lines of a node stay together: Slurm sends what
        a task prints in chunks of 1,024 bytes and does not keep lines whole at its end. So a task
        prints one line, and srun says of each chunk whose it is (``--label``).

        Raises:
            SubmissionError: the job does not run, or Slurm refuses the job step.
        """
        shape = (
            f"--nodes={nodes}",
            f"--ntasks={nodes}",
            "--ntasks-per-node=1",
            "--cpus-per-task=1",
        )
        how = (f"--jobid={job_id}", "--overlap", "--input=none", "--label", *shape)
        joined = f"set -o pipefail; {{ {script}\n}} | tr '\\n' '\\036'"
        printed = parse.labelled(self._run(["srun", *how, "bash", "-c", joined]).stdout)
        return "".join(printed).replace("\036", "\n")

    def cancel(self, job_id: int) -> None:
        """Cancel a job; if it has ended already, that is no error."""
        result = self._run(["scancel", str(job_id)], check=False)
        if (
            not result.ok
            and "Invalid job id" not in result.stderr
            and "already completing" not in result.stderr
        ):
            raise SubmissionError(
                f"job {job_id} could not be cancelled", place="scancel", details=result.tail()
            )


def _jobs_option(ids: Sequence[int]) -> str:
    return f"--jobs={','.join(map(str, ids))}"


def _new_separator() -> str:
    """Return a random word to end each value of an answer; no job's name or path contains it."""
    return f"<{os.urandom(4).hex()}>"


def _marked_name(script: Path, mark: str) -> Path:
    """Give a script a second name with the mark in it, in the same directory, and return that."""
    marked = script.with_name(f"{script.stem}.{mark}{script.suffix}")
    marked.unlink(missing_ok=True)  # left by a submission that was killed
    try:
        marked.hardlink_to(script)
    except OSError:  # a file system without hard links
        mode = script.stat().st_mode & 0o777
        write_atomically(marked, script.read_text(encoding="utf-8"), mode=mode)
    return marked
