"""List the processes and GPUs of a running job, from within its allocation, without ssh."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from toolkit.config import package_directory
from toolkit.model.run import JobState
from toolkit.slurm.client import Client
from toolkit.slurm.hostlist import expand

# Programs that start ranks and wait for them.
_WAITING = frozenset(
    (
        "bash",
        "sh",
        "srun",
        "slurm_script",
        "slurmstepd",
        "script",
        "sleep",
        "tail",
        "timeout",
        "starter",
        "starter-suid",
        "apptainer",
        "cat",
        "conmon",
    )
)
# Variables that hold the rank of a process, the best first; the last is that of Slurm's task.
_RANKS = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")


class Process(NamedTuple):
    """A process of a job.

    ``cpu`` is in percent of one core over the last second, ``memory`` and ``gpu_memory`` in bytes.
    """

    host: str
    rank: int | None
    pid: int
    cpu: int
    memory: int
    gpu_memory: int
    command: str


class Gpu(NamedTuple):
    """A GPU of a job's node: its use in percent, and bytes of its memory."""

    host: str
    number: int
    busy: int
    used: int
    total: int


def script() -> str:
    """Return the script that runs on each node."""
    return (package_directory("scripts") / "top.sh").read_text(encoding="utf-8")


def query(
    client: Client, state: JobState, *, task_is_rank: bool
) -> tuple[list[Process], list[Gpu]]:
    """Return the processes and GPUs on the nodes of a running job.

    Raises:
        SubmissionError: Slurm did not run the script on them.
    """
    return parse(
        client.on_nodes(state.job_id, len(expand(state.nodes)), script()).split("\n"),
        task_is_rank=task_is_rank,
    )


def parse(lines: Iterable[str], *, task_is_rank: bool) -> tuple[list[Process], list[Gpu]]:
    """Parse the output of the script on all nodes.

    Args:
        lines: of all nodes, in any order.
        task_is_rank: the number of Slurm's task is a rank; else only launchers number ranks.
    """
    rows = [line.split("\t") for line in lines]
    used = {
        (row[1], row[2]): _bytes(row[3]) for row in rows if row[0] == "memory" and len(row) == 4
    }
    processes = [
        Process(
            host=row[1],
            rank=_rank(
                dict(pair.split("=", 1) for pair in row[5].split()), task_is_rank=task_is_rank
            ),
            pid=int(row[2]),
            cpu=int(row[3]),
            memory=int(row[4]) * 1024,
            gpu_memory=used.get((row[1], row[2]), 0),
            command=row[6].strip(),
        )
        for row in rows
        if row[0] == "process" and len(row) == 7
    ]
    gpus = [
        Gpu(
            row[1],
            int(row[2]),
            int(row[3]) if row[3].isdigit() else 0,
            _bytes(row[4]),
            _bytes(row[5]),
        )
        for row in rows
        if row[0] == "gpu" and len(row) == 6
    ]

    def order(process: Process) -> tuple[str, int, int]:
        return process.host, -1 if process.rank is None else process.rank, process.pid

    return sorted(processes, key=order), sorted(gpus)


def working(processes: Iterable[Process]) -> list[Process]:
    """Return the processes that are not just waiting for others that they started."""
    return [
        process
        for process in processes
        if process.cpu > 0 or process.gpu_memory or _name(process.command) not in _WAITING
    ]


def _name(command: str) -> str:
    words = command.split()
    return words[0].rsplit("/", 1)[-1].rstrip(":") if words else ""


def _rank(numbers: dict[str, str], *, task_is_rank: bool) -> int | None:
    names = _RANKS if task_is_rank else _RANKS[:-1]
    number = next((numbers[name] for name in names if numbers.get(name, "").isdigit()), None)
    return None if number is None else int(number)


def _bytes(mebibytes: str) -> int:
    return int(mebibytes) * 1024 * 1024 if mebibytes.isdigit() else 0
