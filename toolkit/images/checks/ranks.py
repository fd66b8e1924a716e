"""Sum vectors over several ranks, of which this is one, and compare with the right sum.

Arguments: the library that sums (horovod, torch), the backend that carries it (mpi, gloo, nccl), how many ranks and hosts there must be,
and `start` if this program starts the ranks itself, in forks on this host. Rank 0 reports: a line of JSON, then the last line in words.
With RANKS_SPEED_MB it also measures how fast a vector of that many MB is summed.
"""

import json
import multiprocessing
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from importlib import import_module
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

LENGTH = 1000
SPEED = int(os.environ.get("RANKS_SPEED_MB", "0")) * 10**6  # bytes
PATIENCE = 240  # seconds for a rank that this program starts


class Torch:
    """A rank that sums by torch.distributed."""

    def __init__(self, backend: str) -> None:
        self.torch, self.dist = import_module("torch"), import_module("torch.distributed")
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.device = f"cuda:{os.environ.get('LOCAL_RANK', self.rank)}" if backend == "nccl" else "cpu"
        if backend == "nccl":
            self.torch.cuda.set_device(self.device)
        meeting = os.environ.get("RANKS_MEET_AT", "env://")
        self.dist.init_process_group(backend, init_method=meeting, rank=self.rank, world_size=self.size)
        self.backend = self.dist.get_backend()

    def vector(self, numbers: Any) -> Any:
        return self.torch.tensor(numbers, device=self.device)

    def add_up(self, vector: Any) -> Any:
        self.dist.all_reduce(vector)
        if self.backend == "nccl":
            self.torch.cuda.synchronize()
        return vector

    def gather(self, value: Any) -> Any:
        values = [None] * self.size
        self.dist.all_gather_object(values, value)
        return values

    def close(self) -> None:
        self.dist.barrier()
        self.dist.destroy_process_group()


def import_horovod() -> "tuple[Any, Any]":
    """Return Horovod's module for the first framework that it is built for, and what makes a vector there."""
    try:
        return import_module("horovod.torch"), import_module("torch").tensor
    except ImportError:
        return import_module("horovod.tensorflow"), import_module("tensorflow").constant


class Horovod:
    """A rank that sums by Horovod, on its CPU."""

    def __init__(self) -> None:
        self.hvd, self.vector = import_horovod()
        self.hvd.init()
        self.rank, self.size = self.hvd.rank(), self.hvd.size()
        self.backend = "mpi" if self.hvd.mpi_enabled() else "gloo" if self.hvd.gloo_enabled() else "none"
        self.gather, self.close = self.hvd.allgather_object, self.hvd.shutdown

    def add_up(self, vector: Any) -> Any:
        return self.hvd.allreduce(vector, op=self.hvd.Sum, name="sum")


def measure(group: Any) -> float:
    """Return the GB/s that each rank sends and receives while all sum a long vector; 0 if that is not wanted.

    The best of three counts, after one to warm up. A ring moves 2 (n - 1) / n times the vector through each of n ranks.
    """
    vector, times = group.vector([1.0] * (SPEED // 4)), []
    for _ in range(4 if SPEED else 0):
        group.gather(0)
        began = time.perf_counter()
        group.add_up(vector)
        times.append(time.perf_counter() - began)
    return SPEED * 2 * (group.size - 1) / group.size / min(times[1:]) / 1e9 if SPEED else 0.0


def driver() -> str:
    """Return the version of this node's NVIDIA driver; empty if there is none."""
    try:
        match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return ""
    return match.group(1) if match else ""


def judge(gathered: Any, used: str, backend: str, ranks: int, nodes: int) -> str:
    """Return what is wrong with a sum; empty if nothing is."""
    hosts = sorted({each["host"] for each in gathered})
    if len(gathered) != ranks:
        return f"{len(gathered)} {'rank' if len(gathered) == 1 else 'ranks'} found each other, not {ranks}"
    if len(hosts) != nodes:
        return f"the ranks were on {', '.join(hosts)}: {len(hosts)} {'node' if len(hosts) == 1 else 'nodes'}, not {nodes}"
    if used != backend:
        return f"it went by {used}, not by {backend}"
    if sorted(each["rank"] for each in gathered) != list(range(ranks)) or not all(each["right"] for each in gathered):
        return "the sum over all ranks is wrong"
    return ""


def be_rank(library: str, backend: str, ranks: int, nodes: int) -> int:
    """Sum as the rank that the environment says; rank 0 reports. Return the exit code."""
    group = Horovod() if library == "horovod" else Torch(backend)
    total = group.add_up(group.vector([float(index + group.rank) for index in range(LENGTH)]))
    right = [group.size * index + group.size * (group.size - 1) // 2 for index in range(LENGTH)] == [float(number) for number in total]
    speed = measure(group)
    gathered = group.gather({"rank": group.rank, "host": socket.gethostname(), "right": right, "driver": driver()})
    wrong = judge(gathered, group.backend, backend, ranks, nodes)
    if group.rank == 0:
        where = f" on {', '.join(sorted({each['host'] for each in gathered}))}" if nodes > 1 else ""
        text = wrong or f"{ranks} ranks by {backend}{where}: the sum of their vectors is right"
        drivers = sorted({each["driver"] for each in gathered if each["driver"]})
        print(json.dumps({"passed": not wrong, "detail": text, "drivers": drivers, "gigabytes_per_second": round(speed, 4)}))
        print(text, flush=True)
    group.close()
    return 1 if wrong else 0


def be_forked(rank: int, address: str, *arguments: Any) -> None:
    """Sum as a rank that this program started; `address` is where the ranks meet: a file, or a port of this host."""
    signal.alarm(PATIENCE)
    counts = {"RANK": rank, "SIZE": arguments[2], "LOCAL_RANK": rank, "LOCAL_SIZE": arguments[2], "CROSS_RANK": 0, "CROSS_SIZE": 1}
    os.environ.update({f"HOROVOD_{name}": str(count) for name, count in counts.items()})
    os.environ.update(dict.fromkeys(("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"), "gloo"))
    os.environ.update(dict.fromkeys(("HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME"), "lo"))
    os.environ.update(HOROVOD_HOSTNAME="localhost", HOROVOD_GLOO_RENDEZVOUS_ADDR="127.0.0.1", HOROVOD_GLOO_RENDEZVOUS_PORT=address)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(arguments[2]), RANKS_MEET_AT=f"file://{address}")
    sys.exit(be_rank(*arguments))


def open_meeting(ranks: int) -> Any:
    """Return the server at which Horovod's ranks meet."""
    hosts = import_module("horovod.runner.common.util.hosts")
    http = import_module("horovod.runner.http.http_server")
    server = http.RendezvousHTTPServer(("127.0.0.1", 0), http.RendezvousHandler, 0)
    server.init(hosts.get_host_assignments(hosts.parse_hosts(f"localhost:{ranks}"), ranks))
    return server


def start(directory: str, library: str, backend: str, ranks: int, nodes: int) -> int:
    """Fork the ranks from this process, which imports their framework, and wait for them; return 1 if one failed."""
    server, address = None, f"{directory}/meet"
    if library == "horovod" and import_horovod()[0].gloo_built():
        server = open_meeting(ranks)
        address = str(server.server_address[1])
    else:
        library = "torch"
        import_module("torch.distributed")
    fork = multiprocessing.get_context("fork").Process
    forked = [fork(target=be_forked, args=(rank, address, library, backend, ranks, nodes)) for rank in range(ranks)]
    for each in forked:
        each.start()
    if server:  # only now: a thread would not outlive a fork
        threading.Thread(target=server.serve_forever, daemon=True).start()
    running = forked
    while running:
        wait([each.sentinel for each in running])
        running = [each for each in running if each.is_alive()]
        for each in running if any(each.exitcode for each in forked) else ():
            each.kill()  # it would wait for the one that failed
    return int(any(each.exitcode for each in forked))


if __name__ == "__main__":
    words = (sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    if "start" in sys.argv[5:]:
        with tempfile.TemporaryDirectory() as directory:
            code = start(directory, *words)
        sys.exit(code)
    code = be_rank(*words)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # while Python shuts down, a thread of Gloo may still hold a tensor, and abort (pytorch#179291)
