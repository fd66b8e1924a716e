"""List the processes and GPUs of a running job, from within its allocation, without ssh."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import NamedTuple

from toolkit.config import package_directory
from toolkit.model.run import JobState
from toolkit.runs.run import Run
from toolkit.slurm.hostlist import expand

# Programs that start ranks and wait for them.
_WAITING = (
    *("bash", "sh", "srun", "slurm_script", "slurmstepd", "script", "sleep", "tail", "timeout"),
    *("starter", "starter-suid", "apptainer", "cat", "conmon"),
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


def query(run: Run, states: Iterable[JobState]) -> tuple[list[Process], list[Gpu]]:
    """Return the processes and GPUs on the nodes of a running job, or of elements of its array.

    Raises:
        SubmissionError: Slurm did not run the script on them.
    """
    script = (package_directory("scripts") / "top.sh").read_text(encoding="utf-8")
    texts = [
        run.client.on_nodes(state.job_id, len(expand(state.nodes)), script) for state in states
    ]
    used, gpus = parse("\n".join(texts).split("\n"), task_is_rank=run.plan.launch.task_is_rank)
    return working(used), gpus


def parse(lines: Iterable[str], *, task_is_rank: bool) -> tuple[list[Process], list[Gpu]]:
    """Parse the output of the script on all nodes.

    Args:
        lines: of all nodes, in any order.
        task_is_rank: the number of Slurm's task is a rank; else only launchers number ranks.
    """
    names = _RANKS if task_is_rank else _RANKS[:-1]
    processes = list[Process]()
    used = dict[tuple[str, str], int]()
    gpus = dict[tuple[str, int], Gpu]()
    for line in lines:
        match line.split("\t"):
            case ["process", host, pid, cpu, memory, numbers, command]:
                known = dict(pair.split("=", 1) for pair in numbers.split())
                ranks = [int(known[name]) for name in names if known.get(name, "").isdigit()]
                processes.append(
                    Process(
                        host=host,
                        rank=ranks[0] if ranks else None,
                        pid=int(pid),
                        cpu=int(cpu),
                        memory=int(memory) * 1024,
                        gpu_memory=0,
                        command=command.strip(),
                    )
                )
            case ["memory", host, pid, size]:
                used[host, pid] = _bytes(size)
            case ["gpu", host, number, busy, size, total]:
                percent = int(busy) if busy.isdigit() else 0
                gpu = Gpu(host, int(number), percent, _bytes(size), _bytes(total))
                gpus[host, gpu.number] = gpu  # also of two elements of an array, once
    listed = [
        each._replace(gpu_memory=used.get((each.host, str(each.pid)), 0)) for each in processes
    ]
    listed.sort(key=lambda each: (each.host, -1 if each.rank is None else each.rank, each.pid))
    return listed, sorted(gpus.values())


def _bytes(mebibytes: str) -> int:
    return int(mebibytes) * 1024 * 1024 if mebibytes.isdigit() else 0


def working(processes: Iterable[Process]) -> list[Process]:
    """Return the processes that are not just waiting for others that they started."""
    return [
        process
        for process in processes
        if process.cpu > 0
        or process.gpu_memory
        or PurePath(process.command.partition(" ")[0]).name.rstrip(":") not in _WAITING
    ]
