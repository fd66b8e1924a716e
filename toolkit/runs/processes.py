"""The processes of a running job, seen from its own allocation: no ssh, and nothing but what Slurm lets its owner do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from toolkit.model.run import JobState
from toolkit.resources import package_directory
from toolkit.slurm.client import Client
from toolkit.slurm.hostlist import expand

# What starts ranks and waits for them.
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
# Of several numbers that a process may have been given the first that there is: the last one is
# Slurm's own, of its task.
_RANKS = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")


class Process(NamedTuple):
    """A process of a job: ``cpu`` in percent of one core over the last second, ``memory`` and ``gpu_memory`` in bytes."""

    host: str
    rank: int | None
    pid: int
    cpu: int
    memory: int
    gpu_memory: int
    command: str


class Gpu(NamedTuple):
    """A GPU of a job's node: how busy it was in percent, and bytes of its memory."""

    host: str
    number: int
    busy: int
    used: int
    total: int


def script() -> str:
    """What is run on each node."""
    return (package_directory("scripts") / "top.sh").read_text(encoding="utf-8")


def look(client: Client, state: JobState, *, task_is_rank: bool) -> tuple[list[Process], list[Gpu]]:
    """What runs on the nodes of a running job.

    Raises:
        SubmissionError: Slurm did not let us look.
    """
    return parse(
        client.on_nodes(state.job_id, len(expand(state.nodes)), script()).splitlines(),
        task_is_rank=task_is_rank,
    )


def parse(lines: Iterable[str], *, task_is_rank: bool) -> tuple[list[Process], list[Gpu]]:
    """What the script printed on all nodes. Pure.

    Args:
        lines: of all nodes, in any order.
        task_is_rank: the number of Slurm's task is a rank; else only a rank has one that a launcher gave it.
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
    return sorted(
        processes, key=lambda one: (one.host, -1 if one.rank is None else one.rank, one.pid)
    ), sorted(gpus)


def working(processes: Iterable[Process]) -> list[Process]:
    """Without those that only start others and wait for them, as far as they do."""
    return [
        one
        for one in processes
        if one.cpu > 0 or one.gpu_memory or _name(one.command) not in _WAITING
    ]


def _name(command: str) -> str:
    words = command.split()
    return words[0].rsplit("/", 1)[-1].rstrip(":") if words else ""


def _rank(numbers: dict[str, str], *, task_is_rank: bool) -> int | None:
    names = _RANKS if task_is_rank else _RANKS[:-1]
    found = next((numbers[name] for name in names if numbers.get(name, "").isdigit()), None)
    return None if found is None else int(found)


def _bytes(mebibytes: str) -> int:
    return int(mebibytes) * 1024 * 1024 if mebibytes.isdigit() else 0
