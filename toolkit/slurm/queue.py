"""Parse the jobs that ``squeue --Format`` and ``sacct --parsable`` print. Pure.

Text is read rather than ``--json``: squeue of 22.05 prints the jobs of the whole site as JSON,
whatever user or job is asked for, and gives 0 as the return code of a job that failed. ``--Format``
exists in every version, and a width of 0 prints a value whole. Job names and paths may contain any
character, so each value ends with a separator that the caller makes at random.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from toolkit.model.run import JobState
from toolkit.slurm.hostlist import task_ids
from toolkit.slurm.parse import number
from toolkit.units import whole

SQUEUE = (  # each with a width of 0, and the separator behind it
    *("JobID", "ArrayJobID", "ArrayTaskID", "State", "Reason", "NodeList", "Partition"),
    *("exit_code", "StartTime", "EndTime", "Name", "BatchFlag", "Command"),
)
_SACCT = (
    *("JobIDRaw", "JobID", "State", "Reason", "NodeList", "Partition"),
    *("ExitCode", "Start", "End", "JobName", "SubmitLine"),
)
SACCT_FORMAT = ",".join(_SACCT)
# Times as seconds since the epoch; task ids in full, which Slurm otherwise cuts after 64
# characters.
ENVIRONMENT = ("SLURM_TIME_FORMAT=%s", "SLURM_BITSTR_LEN=0")
# Seconds by which the clocks of two hosts may differ; munge refuses credentials of others.
_CLOCK_SKEW = 300


class Entry(NamedTuple):
    """One job, one task of a job array, or tasks of an array that are still together in the queue.

    Attributes:
        state: of the job.
        array: job id of the array; 0 if the job is not one.
        tasks: ids of the tasks in Slurm's notation (``3`` or ``3-9%2``); empty if the job is not an
            array.
    """

    state: JobState
    array: int
    tasks: str


class Snapshot(NamedTuple):
    """Jobs as Slurm knows them at one moment.

    Attributes:
        states: job id -> state; a job array is one job under the array's id, and each of its tasks
            one under its own.
        entries: what the states were made from.
    """

    states: dict[int, JobState]
    entries: Sequence[Entry] = ()


def squeue_entries(text: str, separator: str) -> list[Entry]:
    """Parse the answer of squeue."""
    entries = []
    for row in _rows(text, separator, len(SQUEUE)):
        number, array, task, *common, batch, command = row
        job = _job(number, *common)
        if batch != "0":  # a job of salloc has no script
            job = replace(job, command=_word(command))
        known = task != "N/A"
        entries.append(Entry(job, int(array) if known else 0, task if known else ""))
    return entries


def sacct_entries(text: str, separator: str) -> list[Entry]:
    """Parse the answer of sacct."""
    entries = []
    for raw, name, *common, submit_line in _rows(text, separator, len(_SACCT)):
        array, _, task = name.partition("_")
        # The raw id of tasks that were cancelled together is written with their range, too.
        job = replace(_job(raw.partition("_")[0], *common), command=submit_line)
        entries.append(Entry(job, int(array) if task else 0, task.strip("[]")))
    return entries


def _rows(text: str, separator: str, width: int) -> Iterator[list[str]]:
    """Yield the values of each job, the first of which is its number."""
    values = text.split(separator)[:-1]
    for start in range(0, len(values) - width + 1, width):
        # Before the first value: the end of the line before, and warnings of a site's plugins.
        first = values[start].rpartition("\n")[2]
        if first.partition("_")[0].isdigit():
            yield [first, *values[start + 1 : start + width]]


def _job(
    number: str,
    state: str,
    reason: str,
    nodes: str,
    partition: str,
    code: str,
    start: str,
    end: str,
    name: str,
) -> JobState:
    exit_code, signal = _exit(code)
    job = JobState(
        job_id=int(number),
        state=next(iter(state.upper().split()), ""),  # sacct writes CANCELLED by 1000
        name=name,
        reason=_word(reason),
        nodes=_word(nodes),
        partition=partition,
        exit_code=exit_code,
        signal=signal,
    )
    # Slurm also prints when it expects a pending job to start and a running one to end.
    started = 0 if job.state == "PENDING" else whole(start) or 0
    return replace(job, start=started, end=(whole(end) or 0) if job.ended else 0)


def is_command_of(command: str, script: str) -> bool:
    """Return whether a command is a script, or ends with it as ``sbatch --parsable SCRIPT`` does.

    Every version of Slurm prints the words as they are given, and quotes none.
    """
    return command == script or command.endswith(f" {script}")


def _word(text: str) -> str:
    """Return a value, or an empty one for any of Slurm's words for none."""
    return "" if text in ("None", "None assigned", "(null)", "Unknown", "n/a") else text


def _exit(text: str) -> tuple[int, int]:
    """Return exit code and signal: ``3:0``, or before 23.02 the status that wait(2) gives."""
    code, colon, signal = text.partition(":")
    if colon:
        return whole(code) or 0, whole(signal) or 0
    status = whole(code) or 0
    return (status >> 8) & 255, status & 127


def merge(queued: Sequence[Entry], accounted: Iterable[Entry]) -> list[Entry]:
    """Return the entries of the queue, and those of the accounting that have left the queue.

    The accounting is some seconds late, so of a job array that is in the queue only ended tasks are
    taken.
    """
    known = {task for entry in queued for task in _tasks_of(entry)}
    arrays = {entry.array for entry in queued if entry.array}
    late = [entry for entry in accounted if entry.state.ended or entry.array not in arrays]
    return [*queued, *(entry for entry in late if known.isdisjoint(_tasks_of(entry)))]


def _tasks_of(entry: Entry) -> set[tuple[int, int]]:
    """Return what identifies a job (its id and 0) or the tasks of an array (its id and theirs)."""
    if not entry.array:
        return {(entry.state.job_id, 0)}
    return {(entry.array, task) for task in task_ids(entry.tasks)}


def job_states(entries: Iterable[Entry]) -> dict[int, JobState]:
    """Return the state of each job by job id; a job array is one job under the array's id."""
    arrays: dict[int, list[JobState]] = {}
    states: dict[int, JobState] = {}
    for entry in sorted(entries, key=lambda entry: number(entry.tasks) or 0):
        states[entry.state.job_id] = entry.state
        if entry.array:
            arrays.setdefault(entry.array, []).append(entry.state)
    return states | {array: array_state(array, members) for array, members in arrays.items()}


def array_state(number: int, members: Sequence[JobState]) -> JobState:
    """Return the state of a job array as one job.

    It runs while a task does, has ended when all have, and then has the state of the first task
    that did not complete.
    """
    alive = [state for state in members if not state.ended]
    running = next((state for state in alive if state.state != "PENDING"), None)
    failed = next((state for state in members if state.ended and state.state != "COMPLETED"), None)
    shown = running or (alive[0] if alive else failed or members[0])
    is_partly_done = alive and not running and len(alive) < len(members)
    return replace(
        shown,
        job_id=number,
        state="RUNNING" if is_partly_done else shown.state,
        nodes=",".join(dict.fromkeys(state.nodes for state in members if state.nodes)),
        start=min((state.start for state in members if state.start), default=0),
        end=0 if alive else max(state.end for state in members),
    )


def job_of(entries: Iterable[Entry], script: str, since: float) -> int | None:
    """Return the newest job that runs a script, or None; a job array is one job.

    Jobs of a removed run, whose name a later run may get, are left out: they had started or ended
    before.

    Args:
        entries: jobs of this user.
        script: absolute path, as sbatch got it.
        since: when the submission began, in seconds since the epoch.
    """
    newest = None
    for entry in entries:
        job = entry.state
        # Of two hosts the clocks differ; the end of a job is exact to a second.
        is_older = job.end < int(since) if job.ended else 0 < job.start < since - _CLOCK_SKEW
        if is_command_of(job.command, script) and not is_older:
            newest = max(newest or 0, entry.array or job.job_id)
    return newest
