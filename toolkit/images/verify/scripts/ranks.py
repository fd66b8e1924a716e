"""Sum vectors over several ranks, of which this is one, and compare with the right sum.

Rank 0 reports all ranks in a line of JSON. Arguments: the library that sums (horovod, torch), the
backend that carries it (mpi, gloo, nccl), and the number of ranks if this program starts them
itself. With RANKS_SPEED_MB it also measures how fast a vector of that many MB is summed.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LENGTH = 1000
SPEED = int(os.environ.get("RANKS_SPEED_MB", "0")) * 10**6  # bytes


def driver() -> str:
    """Return the version of this node's NVIDIA driver; empty if there is none."""
    try:
        match = re.search(
            r"\s(\d+\.\d+(?:\.\d+)?)\s", Path("/proc/driver/nvidia/version").read_text()
        )
    except OSError:
        return ""
    return match.group(1) if match else ""


def expected(ranks: int) -> Any:
    """Return the right sum: rank r gives the vector 0, 1, 2, ... with r added to each element."""
    return [ranks * index + ranks * (ranks - 1) // 2 for index in range(LENGTH)]


def speed(ranks: int, add_up: Any, settle: Any) -> float:
    """Return the GB/s that each rank sends and receives while all sum a long vector.

    The best of three counts, after one to warm up.

    A ring moves 2 (n - 1) / n times the vector through each of n ranks.
    """
    if not SPEED:
        return 0.0
    times = []
    for _ in range(4):
        settle()
        began = time.perf_counter()
        add_up()
        times.append(time.perf_counter() - began)
    return SPEED * 2 * (ranks - 1) / ranks / min(times[1:]) / 1e9


def report(rank: int, gathered: Any, controller: str, gigabytes_per_second: float = 0.0) -> None:
    """Print the report, on rank 0."""
    if rank == 0:
        ranks = sorted(gathered, key=lambda each: each["rank"])
        numbers = [each["rank"] for each in ranks]
        right = all(each["right"] for each in ranks) and numbers == list(range(len(ranks)))
        hosts = [each["host"] for each in ranks]
        drivers = sorted({each["driver"] for each in ranks if each["driver"]})
        content = {
            "ranks": len(ranks),
            "right": right,
            "hosts": hosts,
            "controller": controller,
            "drivers": drivers,
        }
        if SPEED:
            content["gigabytes_per_second"] = round(gigabytes_per_second, 4)
        print(json.dumps(content), flush=True)


def by_horovod(wanted: str) -> None:
    """Sum by Horovod."""
    name = "torch" if find_spec("torch") else "tensorflow"
    hvd, framework = import_module("horovod." + name), import_module(name)
    hvd.init()
    controller = "mpi" if hvd.mpi_enabled() else "gloo" if hvd.gloo_enabled() else "none"
    rank, ranks = hvd.rank(), hvd.size()
    if name == "torch":
        device = f"cuda:{hvd.local_rank()}" if wanted == "nccl" else "cpu"
        total = hvd.allreduce(
            framework.arange(float(LENGTH), device=device) + rank, op=hvd.Sum
        ).tolist()
        long = framework.ones(max(SPEED // 4, 1), device=device)
    else:
        total = hvd.allreduce(framework.range(float(LENGTH)) + rank, op=hvd.Sum).numpy().tolist()
        long = framework.ones([max(SPEED // 4, 1)])
    fast = speed(
        ranks,
        lambda: hvd.allreduce(long, op=hvd.Sum, name="long"),
        lambda: hvd.allgather_object(rank),
    )
    if wanted == "nccl":
        controller = "nccl" if hvd.nccl_built() else controller
    mine = {
        "rank": rank,
        "host": socket.gethostname(),
        "right": total == expected(ranks),
        "driver": driver(),
    }
    report(rank, hvd.allgather_object(mine), controller, fast)
    hvd.shutdown()


def by_torch(wanted: str) -> None:
    """Sum by torch.distributed."""
    torch = import_module("torch")
    dist = import_module("torch.distributed")
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = f"cuda:{os.environ.get('LOCAL_RANK', rank)}" if wanted == "nccl" else "cpu"
    if wanted == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(
        wanted, init_method=os.environ.get("RANKS_MEET_AT", "env://"), rank=rank, world_size=ranks
    )
    total = torch.arange(float(LENGTH), device=device) + rank
    dist.all_reduce(total)
    right = total.tolist() == expected(ranks)
    long = torch.ones(max(SPEED // 4, 1), device=device)

    def add_up() -> None:
        dist.all_reduce(long)
        if wanted == "nccl":
            torch.cuda.synchronize()

    fast = speed(ranks, add_up, dist.barrier)
    mine = {"rank": rank, "host": socket.gethostname(), "right": right, "driver": driver()}
    gathered: Any = [None] * ranks
    dist.all_gather_object(gathered, mine)
    report(rank, gathered, dist.get_backend(), fast)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    # While Python shuts down, a thread of Gloo may still hold a tensor, and abort (pytorch#179291).
    os._exit(0)


def start(count: int) -> None:
    """Start the ranks, wait for them, and exit with 1 if one failed."""
    with tempfile.TemporaryDirectory() as directory:
        meet = f"file://{directory}/meet"
        common = dict(os.environ, WORLD_SIZE=str(count), RANKS_MEET_AT=meet)
        processes = [
            subprocess.Popen(
                [sys.executable, *sys.argv[:3]],
                env=dict(common, RANK=str(rank), LOCAL_RANK=str(rank)),
            )
            for rank in range(count)
        ]
        codes = [process.wait() for process in processes]
    sys.exit(1 if any(codes) else 0)


if len(sys.argv) > 3:
    start(int(sys.argv[3]))
elif sys.argv[1] == "horovod":
    by_horovod(sys.argv[2])
else:
    by_torch(sys.argv[2])
