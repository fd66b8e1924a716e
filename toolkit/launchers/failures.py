"""The failed ranks that launchers report in their logs, and the ranks of processes. Pure.

Readers of logs get the lines of each log with its host, which is "" for the log of the batch shell,
and return the ranks that failed, the first one first. ``READERS`` has those of launchers; a plan is
made without them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, islice
from signal import SIGKILL, SIGTERM, Signals
from typing import TYPE_CHECKING, NamedTuple

from toolkit.model.run import Failure, Process
from toolkit.slurm.hostlist import task_ranges
from toolkit.units import signal_of, whole

if TYPE_CHECKING:
    from toolkit.launchers.base import Launcher

Logs = Iterable[tuple[str, Sequence[str]]]

_SRUN_EXIT = re.compile(r"srun: error: (?P<host>[^:\s]+): tasks? (?P<tasks>[\d,-]+): (?P<how>.+)")
_MOST_TASKS = 1000  # of one message
_CODE = re.compile(r"Exited with exit code (\d{1,9})")
# srun names a signal as strsignal(3) does; these are the ones that end ranks.
_SIGNALS = {
    "Killed": 9,
    "Segmentation fault": 11,
    "Aborted": 6,
    "Terminated": 15,
    "Bus error": 7,
    "Floating point exception": 8,
    "Illegal instruction": 4,
    "Out Of Memory": 9,
}


def describe_end(exit_code: int) -> str:
    """Return how a process ended: ``exit code 3`` or ``killed by signal 11 (SIGSEGV)``."""
    number = signal_of(exit_code)
    name = Signals(number).name if number else ""
    return f"killed by signal {number} ({name})" if number else f"exit code {exit_code}"


def rank_failure(
    exit_code: int, rank: int | str | None, host: str | None, *, task: str = "rank"
) -> Failure:
    """Return a failure with its message: ``rank 2 on nid002: exit code 3``.

    Args:
        exit_code: of the process; 128 + n if signal n ended it.
        rank: number of the rank or task; text where it is another number; None: not known.
        host: of the process; None if it is not known.
        task: what messages call it: ``rank``, ``task`` or ``agent``.
    """
    where = f" on {host}" if host else ""
    number = "?" if rank is None else rank
    return Failure(
        exit_code=exit_code,
        rank=rank if isinstance(rank, int) else None,
        host=host,
        text=f"{task} {number}{where}: {describe_end(exit_code)}",
    )


def of_step(logs: Logs, task: str = "rank") -> list[Failure]:
    """Return the failed tasks that srun reports in the batch shell's own log.

    Tasks that failed by themselves come first, then those that SIGTERM stopped.

    Args:
        logs: lines of each log.
        task: what messages call a task of Slurm: a rank, or an agent that starts ranks.
    """
    failures = [
        rank_failure(_exit_code(match["how"]), number, match["host"], task=task)
        for match in filter(None, map(_SRUN_EXIT.search, _batch_lines(logs)))
        for number in islice(chain.from_iterable(task_ranges(match["tasks"])), _MOST_TASKS)
    ]
    return sorted(failures, key=_is_stopped)


def _is_stopped(failure: Failure) -> bool:
    return failure.exit_code == 128 + SIGTERM


def _exit_code(text: str) -> int:
    if code := _CODE.search(text):
        return int(code[1])
    killed = (128 + number for name, number in _SIGNALS.items() if text.startswith(name))
    return next(killed, 1)


def _batch_lines(logs: Logs) -> list[str]:
    return [line for host, lines in logs if not host for line in lines]


# An entry of torchrun's summary ("Root Cause (first observed failure)").
_ENTRY = re.compile(
    r"^ {0,8}\[(?P<number>\d{1,9})\]:\n"
    r" {0,8}time {1,12}: (?P<time>.*)\n {0,8}host {1,12}: (?P<host>.*)\n"
    r" {0,8}rank {1,12}: (?P<rank>\d{1,9})\b.*\n {0,8}exitcode {1,12}: (?P<code>-?\d{1,9})\b",
    re.MULTILINE,
)


def of_torchrun(logs: Logs) -> list[Failure]:
    """Return the ranks in the agents' summaries by the time of their end.

    Ranks that their agent stopped (SIGTERM) come last. Without a summary, return the agents that
    srun reports.
    """
    by_host = list(logs)
    reported = summary_failures((host, lines) for host, lines in by_host if host)
    return reported or of_step(by_host, "agent")


def summary_failures(logs: Logs) -> list[Failure]:
    """Return the ranks in torchrun's summaries.

    They are in the order of their end, by seconds, then by their numbers: that of the root cause is
    0. Those that their agent stopped (SIGTERM) come last.

    Args:
        logs: lines of each log, and its host; empty: the host that the summary names.
    """
    entries = [(host, entry) for host, lines in logs for entry in _ENTRY.finditer("\n".join(lines))]
    entries.sort(key=lambda each: (each[1]["time"], int(each[1]["number"])))
    codes = [int(entry["code"]) for _, entry in entries]
    failures = [
        rank_failure(
            128 - code if code < 0 else code, int(entry["rank"]), host or entry["host"].strip()
        )
        for code, (host, entry) in zip(codes, entries, strict=True)
    ]
    return sorted(failures, key=_is_stopped)


def since_restart(processes: Sequence[Process], _: Sequence[Failure]) -> Sequence[Process]:
    """Return torchrun's agents, and the processes of ranks since their last restart."""
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    starts = [tuple(process.env.get(name, "") for name in names) for process in processes]
    last = next((start for start in reversed(starts) if start[0]), None)
    return [
        process
        for process, start in zip(processes, starts, strict=True)
        if not start[0] or start == last
    ]


# How the parent reports a process that torch.multiprocessing.spawn started.
_CHILD = re.compile(r"[Pp]rocess (?P<local_rank>\d{1,6}) terminated")
_ENDED = re.compile(
    _CHILD.pattern + r" with (?:exit code (?P<code>\d{1,9})|signal (?P<signal>SIG\w+))"
)


def end_of_spawned(text: str) -> tuple[int, int] | None:
    """Return the number on its node and the exit code of a process that ended without an error."""
    match = _ENDED.search(text)
    if match is None:
        return None
    killed = 128 + getattr(Signals, match["signal"] or "", SIGKILL)
    return int(match["local_rank"]), int(match["code"]) if match["code"] else killed


def of_spawn(logs: Logs) -> list[Failure]:
    """Return the ranks whose end a node's script reports, those that it stopped last.

    If no script reports one, return the scripts that srun reports.
    """
    by_host = list(logs)
    ends = [
        rank_failure(end[1], str(end[0]), host, task="local rank")
        for host, lines in by_host
        if host
        for end in filter(None, map(end_of_spawned, lines))
    ]
    return sorted(ends, key=_is_stopped) or of_step(by_host, "script")


def rank_of_spawned(process: Process) -> int | None:
    """Return the rank from the node's number and that of the process on the node.

    The parent of a process that has failed reports its number.
    """
    messages = [record.chain[0].message for record in process.records if record.chain]
    child = _CHILD.search(messages[0][:200]) if messages and not process.name else None
    local_rank = int(child["local_rank"]) if child else process.local_rank
    node = whole(process.env.get("NODE_RANK"))
    ranks = whole(process.env.get("NPROC_PER_NODE"))
    if local_rank is None or node is None or ranks is None:
        return None
    return local_rank + node * ranks


# What mpirun prints of a rank: that a signal has ended it, its exit code, or that it has called
# MPI_Abort. Version 5 wraps its lines, and has other names of processes: [[25134,1],1] is
# [prterun-nid001-681@1,1] there.
_OF_MPIRUN = re.compile(
    r"process rank (?P<killed>\d{1,9}) with PID \d{1,9} on node (?P<host>\S+) "
    r"exited on\s+signal (?P<signal>\d{1,9})"
    r"|Process name: \[(?:\[\d+,\d+\]|[^\s\[\]]+@\d+),(?P<ended>\d{1,9})\]"
    r"(?:.{0,200}\n){1,3}?.{0,200}Exit code:\s+(?P<code>\d{1,9})"
    r"|MPI_ABORT was invoked on rank (?P<aborted>\d{1,9})"
    r"(?:.{0,200}\n){1,3}?.{0,200}with errorcode (?P<error>\d{1,9})"
)


def of_mpirun(logs: Logs) -> list[Failure]:
    """Return the ranks that mpirun reports as failed.

    With an exit code mpirun names the rank only; the rank's log names the host. A rank that calls
    MPI_Abort is named for that first, and then again with the same code.
    """
    failures = []
    for match in _OF_MPIRUN.finditer("\n".join(_batch_lines(logs))):
        rank = int(match["killed"] or match["ended"] or match["aborted"])
        code = (
            128 + int(match["signal"]) if match["killed"] else int(match["code"] or match["error"])
        )
        failures.append(rank_failure(code, rank, match["host"]))
    return failures


# What the driver prints when it has put the ranks together, and when a rank has failed; at its end
# it repeats the first failure since it last put them together.
_STARTED = re.compile(r"elastic: \d{1,9} ranks on ")
_FAILED = re.compile(
    r"elastic: (?P<is_last>failed: )?rank (?P<rank>\d{1,9}) on (?P<host>\S+): "
    r"(?:exit code (?P<code>\d{1,9})|killed by signal (?P<signal>\d{1,9}))"
)


def of_elastic(logs: Logs) -> list[Failure]:
    """Return the failures that ended a run of Horovod's elastic driver.

    Those that the driver survived do not count.
    """
    failures: list[Failure] = []
    for line in _batch_lines(logs):
        if _STARTED.search(line):
            failures.clear()
        elif match := _FAILED.search(line):
            code = int(match["code"]) if match["code"] else 128 + int(match["signal"])
            failure = rank_failure(code, int(match["rank"]), match["host"])
            if match["is_last"]:
                return [failure, *(other for other in failures if other != failure)]
            failures.append(failure)
    return []


def of_last_processes(
    processes: Sequence[Process], reported: Sequence[Failure]
) -> Sequence[Process]:
    """Return the last processes of the ranks that the elastic driver reports.

    It reports them in the order in which their processes ended. A rank that failed first can take
    longer to end than another one.
    """
    if not reported:
        return processes
    failed = {(str(failure.rank), failure.host) for failure in reported}
    of_ranks = [
        ((process.env.get("HOROVOD_RANK", ""), process.host), process) for process in processes
    ]
    begun = {
        rank: process.time_ns for rank, process in of_ranks if process.is_rank and rank in failed
    }
    return [process for rank, process in of_ranks if process.time_ns >= begun.get(rank, math.inf)]


class Reader(NamedTuple):
    """The readers of a launcher's logs and processes.

    Attributes:
        of_logs: the ranks that failed according to the logs, the first one first.
        rank_of: the global rank of a process; None: it is in a variable of the process.
        of_last_start: of the processes of a run in order of time, and of its reported failures, the
            processes since ranks were last started; the run survived failures before that.
    """

    of_logs: Callable[[Logs], list[Failure]]
    rank_of: Callable[[Process], int | None] | None = None
    of_last_start: Callable[[Sequence[Process], Sequence[Failure]], Sequence[Process]] = (
        lambda processes, _: processes
    )


# Of all other launchers, srun reports the failed tasks.
READERS = {
    "accelerate": Reader(of_torchrun),
    "horovod-elastic": Reader(of_elastic, of_last_start=of_last_processes),
    "mpirun": Reader(of_mpirun),
    "spawn": Reader(of_spawn, rank_of_spawned),
    "torchrun": Reader(of_torchrun, of_last_start=since_restart),
}


def reader(launcher: Launcher) -> Reader:
    """Return how the failures of a launcher are read."""
    return READERS.get(launcher.name) or Reader(partial(of_step, task=launcher.task_noun))


def rank_of(launcher: Launcher, process: Process) -> int | None:
    """Return the global rank of a process; None: not known."""
    if own := reader(launcher).rank_of:
        return own(process)
    numbers = (whole(process.env.get(name)) for name in launcher.rank_variables)
    return next((number for number in numbers if number is not None), None)
