"""The client of Slurm: all of its commands are run by this module.

Every command goes through ``Access.prefix``: nothing on a login node, the namespaces of the local
cluster.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from toolkit import shell
from toolkit.errors import (
    CommandFailedError,
    NeedsInstallError,
    SlurmSilentError,
    SlurmUnreachableError,
    SubmissionError,
)
from toolkit.model.run import JobState
from toolkit.model.site import Access, Partition
from toolkit.slurm import parse, queue
from toolkit.slurm.hostlist import task_ids
from toolkit.units import human_time

# Messages of 22.05 to 26.05 (slurm_errno.c, slurm_protocol_api.c, auth_munge.c, conf.c) for what no
# controller executed: it received no request, or is not the one that executes any.
_UNREACHED = (
    r"(?i)connect failure|Communication connection failure|Connection refused|No route to host"
    r"|Could not establish a configuration source|fetch_config|failed to fetch remote configs"
    r"|Unable to establish control(?:ler)? machine|Munge encode failed|auth_g_create"
    r"|in standby mode|Rate limit exceeded"
)
# Messages for a connection that broke after the request, or for an answer that could not be read:
# the controller may have executed it.
_LOST = (
    r"(?i)Unable to contact slurm controller(?! \(connect)|Zero Bytes were transmitted"
    r"|Connection reset by peer|Socket timed out|Connection timed out"
    r"|Message (?:send|receive) failure"
    r"|Communication shutdown failure|Unexpected m(?:essage received|issing socket)|Broken pipe"
    r"|Transport endpoint is not connected|Insane message length|Header lengths are longer"
    r"|Munge decode failed|auth_g_(?:verify|unpack)|closing all communications"
    r"|Connection forced closed|delayed socket error|talking to the database"
)
# Either the controller could not read the request, or the command could not read the answer.
_EITHER = "Protocol authentication error"
_MOST_SIGNALS = 64


class AnswerLostError(
    SlurmUnreachableError, exit_code=89, kind="slurm silent", step=SlurmSilentError.step
):
    """It is unknown whether Slurm has a job."""


def is_silent(result: shell.Result) -> bool:
    """Return whether a command failed because no controller answered."""
    stderr = result.stderr
    return not result.ok and bool(re.search(_UNREACHED, stderr) or _is_lost(stderr))


def _is_lost(stderr: str) -> bool:
    return bool(re.search(_LOST, stderr)) or (
        _EITHER in stderr and not re.search(_UNREACHED, stderr)
    )


def submitted_id(result: shell.Result, script: Path) -> int:
    """Return the id of the job that sbatch submitted.

    Raises:
        SubmissionError: Slurm refused the job; its message is in the details.
        AnswerLostError: it is unknown whether Slurm has the job.
        SlurmSilentError: no controller was reached, so Slurm cannot have the job.
    """
    # The last one: a site's plugin may print a number before it.
    ids = re.findall(r"^(\d{1,10})(?:;.*)?$", result.stdout, re.MULTILINE)
    if result.ok and ids:
        return int(ids[-1])
    # sbatch ends with 255 for an option that it cannot read.
    killed = result.returncode < 0 or 128 < result.returncode <= 128 + _MOST_SIGNALS
    if result.ok or ids or killed or not result.tail() or _is_lost(result.stderr):
        raise AnswerLostError("sbatch gave no answer", place=str(script), details=result.tail(3))
    if re.search(_UNREACHED, result.stderr):
        raise SlurmSilentError(
            "no Slurm controller answers", place="sbatch", details=result.tail(3)
        )
    words = [re.sub(r"^sbatch: (?:error: )?", "", line) for line in result.tail()]
    raise SubmissionError(
        "Slurm refused the job; nothing was submitted",
        place=str(script),
        details=words,
    )


_DEFAULTS = ("SBATCH_", "SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SLURM_EXIT_")
_HELP_OPTION = re.compile(r"^ {2,8}(?:-\w,? +)?--([A-Za-z][\w-]*)", re.MULTILINE)
_SILENCE = "no Slurm controller answers"
_ANSWER_SECONDS = 60  # slurmctld under load is slow; a command that hangs longer does not return


def without_slurm_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that change what Slurm's commands do by default.

    ``SBATCH_*`` overrides the lines of a script, ``SQUEUE_PARTITION`` and the like hide jobs, and
    ``SLURM_EXIT_ERROR`` is the exit code of what fails.
    """
    return {name: value for name, value in environment.items() if not name.startswith(_DEFAULTS)}


def without_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what would change srun or salloc, or make it part of a job."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(("SBATCH_", "SALLOC_", "SLURM_")) or name == "SLURM_CONF"
    }


class Client:
    """Slurm's commands as functions.

    Each raises ``SlurmUnreachableError`` if there is no Slurm, and its subclass
    ``SlurmSilentError`` if the controller does not answer.
    """

    def __init__(self, access: Access) -> None:
        self.access = access

    def _run(self, argv: Sequence[str], *, check: bool = True) -> shell.Result:
        try:
            result = self._execute(argv)
        except AnswerLostError as error:
            raise SlurmSilentError(error.cause, place=error.place, details=error.details) from None
        if is_silent(result):
            raise SlurmSilentError(_SILENCE, place=argv[0], details=result.tail(3))
        if check and not result.ok:
            raise SubmissionError(
                f"{argv[0]} failed with exit code {result.returncode}",
                place=" ".join(argv),
                details=result.tail(),
            )
        return result

    def _execute(self, argv: Sequence[str], pass_fds: Sequence[int] = ()) -> shell.Result:
        environment = without_slurm_defaults(os.environ)
        try:
            result = shell.run(
                [*self.access.prefix, *argv],
                env=environment,
                timeout=_ANSWER_SECONDS,
                check=False,
                pass_fds=pass_fds,
            )
        except NeedsInstallError as error:
            raise SlurmUnreachableError(error.cause, place=error.place) from None
        except CommandFailedError as error:
            raise AnswerLostError(error.cause, place=argv[0], details=error.details) from None
        if result.returncode == 127:
            raise SlurmUnreachableError(_SILENCE, place=argv[0], details=result.tail(3))
        return result

    def partitions(self) -> tuple[Partition, ...]:
        """Return all partitions that this user may see."""
        words = ("sinfo", "--noheader", "--exact", f"--format={parse.SINFO_FORMAT}")
        by_name: dict[str, list[list[str]]] = {}
        for name, *row in parse.rows(self._run(words).stdout, parse.SINFO_FORMAT):
            by_name.setdefault(name, []).append(row)
        return tuple(parse.partition(name, lines) for name, lines in by_name.items())

    def mpi_types(self) -> tuple[str, ...]:
        """Return the types of ``srun --mpi`` in Slurm's order, versions of a plugin among them.

        Slurm 22.05 prints ``MPI plugin types are...`` and indented names, later versions ``specific
        pmix plugin versions available: pmix_v4``.
        """
        result = self._run(["srun", "--mpi=list"], check=False)
        names: list[str] = []
        for line in (result.stdout + result.stderr).splitlines():
            head, colon, rest = line.partition(":")
            if colon and "versions available" in head:
                names += re.findall(r"[\w.]+", rest)
            elif re.fullmatch(r"(?:srun: )?\s*[\w.]+", line.strip()):
                names.append(line.replace("srun:", "").strip())
        return tuple(dict.fromkeys(names))

    def sbatch_options(self) -> tuple[str, ...]:
        """Return the options of ``sbatch --help``; plugins' options are among them."""
        return tuple(_HELP_OPTION.findall(self._run(["sbatch", "--help"], check=False).stdout))

    def ask(self, *argv: str) -> shell.Result:
        """Run a read-only command of Slurm and return its result, also if it fails."""
        return self._run(argv, check=False)

    def version(self) -> str:
        """Return the version of Slurm; empty if it tells none."""
        text = self._run(["sinfo", "--version"]).stdout
        return "".join(re.findall(r"^slurm\S* (\d\S*)$", text, re.MULTILINE)[:1])

    def submit(self, script: Path, pass_fds: Sequence[int] = ()) -> int:
        """Submit a script and return the job's id.

        Args:
            script: a batch script; every version of Slurm shows a job's owner its path.
            pass_fds: open files that sbatch gets.

        Raises:
            SubmissionError: Slurm refused the job; its message is in the details.
            AnswerLostError: it is unknown whether Slurm has the job.
            SlurmSilentError: no controller was reached, so Slurm cannot have the job.
        """
        return submitted_id(self._execute(["sbatch", "--parsable", str(script)], pass_fds), script)

    def find(self, script: str, since: float, known: queue.Snapshot | None = None) -> int | None:
        """Return the newest job of this user that runs a script, or None.

        Ended jobs are found as long as Slurm or its accounting has them.

        Args:
            script: absolute path, as sbatch got it.
            since: when the submission began, in seconds since the epoch.
            known: the jobs in the queue; None: ask for them.
        """
        entries = self._queued() if known is None else known.entries
        if (job := queue.job_of(entries, script, since)) is not None:
            return job
        minutes = max(time.time() - since, 0) / 60 + 10  # the clocks of two hosts
        return queue.job_of(self._accounted(f"--starttime=now-{minutes:.0f}minutes"), script, since)

    def snapshot(self, ids: Sequence[int] = ()) -> queue.Snapshot:
        """Return all jobs of this user.

        This is one query about one user, whatever the number of jobs. Ended jobs are included for
        as long as the controller remembers them (MinJobAge).

        Args:
            ids: jobs that are looked up in the accounting, all at once, if the controller has
                forgotten them; they are missing if the accounting does not answer.
        """
        queued = self._queued()
        try:
            return self._with_forgotten(queued, ids)
        except SlurmSilentError:
            return queue.Snapshot(queue.job_states(queued), queued)

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
            states = queue.job_states(entries)
        return queue.Snapshot(states, entries)

    def elements(self, job_id: int) -> dict[int, JobState]:
        """Return the states of the tasks of a job array by task id, in rising order.

        Tasks that wait, or were cancelled, together in one entry of the queue are among them.
        """
        states = {
            task: entry.state
            for entry in queue.merge(self._queued(job_id), self._accounted(_jobs_option([job_id])))
            if entry.array == job_id
            for task in task_ids(entry.tasks)
        }
        return {task: states[task] for task in sorted(states)}

    def _queued(self, job_id: int | None = None) -> list[queue.Entry]:
        separator = _new_separator()
        which = "--me" if job_id is None else f"--jobs={job_id}"
        words = (
            "squeue",
            "--noheader",
            which,
            "--states=all",
            f"--Format={','.join(f'{field}:0{separator}' for field in queue.SQUEUE)}",
        )
        result = self._run(["env", *queue.ENVIRONMENT, *words], check=False)
        if not result.ok and "Invalid job id" not in result.stderr:
            cause = "squeue does not list the jobs"
            raise SlurmSilentError(cause, place="squeue", details=result.tail(3))
        return queue.squeue_entries(result.stdout, separator)

    def _accounted(self, which: str) -> list[queue.Entry]:
        """Ask the accounting about jobs; the answer is empty where a cluster keeps none.

        Raises:
            SlurmSilentError: the accounting does not answer.
        """
        separator = _new_separator()
        shape = ("--noheader", "--parsable", f"--delimiter={separator}", "--allocations")
        words = ("sacct", *shape, f"--format={queue.SACCT_FORMAT}", which)
        try:
            result = self._run(["env", *queue.ENVIRONMENT, *words], check=False)
        except SlurmSilentError as error:
            cause = "Slurm's accounting does not answer"
            raise SlurmSilentError(cause, place="sacct", details=error.details) from None
        return queue.sacct_entries(result.stdout, separator) if result.ok else []

    def expected_start(self, job_id: int) -> str:
        """Return Slurm's estimate of when a pending job starts; empty if unknown."""
        result = self._run(
            ["squeue", "--noheader", "--start", f"--jobs={job_id}", "--format=%S"], check=False
        )
        text = (result.stdout.splitlines() or [""])[-1]  # a site's plugins may print lines before
        return "" if text == "N/A" else text

    def unhealthy_nodes(self, hosts: str, since: int) -> dict[str, str]:
        """Return those of some nodes that are down or do not answer since a time, or since later.

        Args:
            hosts: host list as Slurm writes it.
            since: seconds since the epoch.

        Returns:
            node -> Slurm's state and reason: ``{"nid002": "down*: Not responding"}``.
        """
        shape = "%N|%T|%H|%E"
        words = ("sinfo", "--noheader", "--Node", f"--nodes={hosts}", f"--format={shape}")
        result = self._run(["env", "SLURM_TIME_FORMAT=%s", *words], check=False)
        unhealthy = {}
        for row in parse.rows(result.stdout, shape):
            name, state, when, reason = (part.strip() for part in row)
            down = state.startswith(("down", "fail")) or state.endswith("*")
            # A node that does not answer yet (idle*) has no time: it stopped too recently.
            if name and down and (not when.isdigit() or int(when) >= since):
                unhealthy[name] = f"{state}: {reason}"
        return unhealthy

    def node_states(self, partition: str | None = None) -> dict[str, tuple[str, str]]:
        """Return the state of each node of a partition, or of all nodes.

        The state is Slurm's long form; with it is the reason that an administrator or Slurm gave.
        """
        shape = "%N|%T|%E"
        words = ["sinfo", "--noheader", "--Node", f"--format={shape}"]
        words += [f"--partition={partition}"] if partition else []
        rows = parse.rows(self._run(words).stdout, shape)
        return {name.strip(): (state, reason.strip()) for name, state, reason in rows}

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
        chunks: dict[int, list[str]] = {}
        # srun adds a newline after each chunk (write_labelled_message of Slurm's source).
        for line in self._run(["srun", *how, "bash", "-c", joined]).stdout.split("\n"):
            task, _, chunk = line.partition(": ")
            if task.strip().isdigit():
                chunks.setdefault(int(task), []).append(chunk)
        printed = (chunk for task in sorted(chunks) for chunk in chunks[task])
        return "".join(printed).replace("\036", "\n")

    def signal(self, job_id: int, name: str) -> None:
        """Send a signal to all processes of a job's steps; the batch shell does not get it.

        Raises:
            SubmissionError: the job does not run, or belongs to another user.
        """
        self._run(["scancel", f"--signal={name}", str(job_id)])

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


# Slurm's versions, and patience with a controller that does not answer.

# Version -> how it was tested. All of tests/cluster ran with these, on the Debian release that
# `make test-slurm` names; of the others, built from their sources, the answers of the commands are
# examples for the tests (tests/golden/slurm), and tests/cluster/test_slurm_client.py ran.
TESTED = {
    **dict.fromkeys(("22.05", "24.11", "26.05"), "tested with all tests"),
    **dict.fromkeys(("23.02", "23.11", "24.05", "25.05", "25.11"), "tested: the commands for jobs"),
}

PATIENCE = 300.0  # seconds; a restart of the controller or a takeover by its backup is faster
PAUSE = 2.0  # seconds between two queries

Notify = Callable[[str], object]
_Answer = TypeVar("_Answer")


class Wait(NamedTuple):
    """The patience of one command with a silent controller.

    Attributes:
        seconds: how long to repeat a query, each time that the controller falls silent; 0: no
            repetition.
        notify: is called once with a message when the waiting begins.
    """

    seconds: float = 0.0
    notify: Notify = bool


def patiently(ask: Callable[[], _Answer], wait: Wait) -> _Answer:
    """Call ``ask`` until Slurm answers, and return its answer.

    ``ask`` must only read: a repeated action could act twice.

    Raises:
        SlurmSilentError: Slurm was silent for longer than the patience of ``wait``.
    """
    until = None
    while True:
        try:
            return ask()
        except SlurmSilentError as error:
            now = time.monotonic()
            if not wait.seconds:
                raise
            if until is None:
                until = now + wait.seconds
                wait.notify(f"{error.cause}; asking again for {human_time(wait.seconds)}")
            if now >= until:
                raise type(error)(
                    f"{error.cause}; the query was repeated for {human_time(wait.seconds)}",
                    place=error.place,
                    details=error.details,
                    next_step=error.next_step,
                ) from None
            time.sleep(min(PAUSE, until - now))
