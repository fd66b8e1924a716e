"""Sums vectors over several ranks, of which this is one, and compares with the right sum.

Arguments: the library that sums (horovod, torch), the backend that carries it (mpi, gloo, nccl), how many ranks and hosts there must be,
and `start` if this program starts the ranks itself, in forks on this host. Rank 0 reports: a line of JSON, then the last line in words.
With RANKS_SPEED_MB it also measures how fast a vector of that many MB is summed.
"""

import json
import os
import re
import signal
import socket
import sys
import tempfile
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

LENGTH = 1000
SPEED = int(os.environ.get("RANKS_SPEED_MB", "0")) * 10**6  # bytes
PATIENCE = 240  # seconds for a rank that this program starts


def driver() -> str:
    """Return the version of this node's NVIDIA driver; empty if there is none."""
    try:
        match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return ""
    return match.group(1) if match else ""


def expected(ranks: int) -> Any:
    """Return the right sum: rank r gives the vector 0, 1, 2, ... with r added to each element."""
    return [ranks * index + ranks * (ranks - 1) // 2 for index in range(LENGTH)]


def speed(ranks: int, add_up: Any, settle: Any) -> float:
    """Return the GB/s that each rank sends and receives while all sum a long vector.

    The best of three counts, after one to warm up. A ring moves 2 (n - 1) / n times the vector through each of n ranks.
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


def judge(gathered: Any, controller: str, backend: str, ranks: int, nodes: int) -> str:
    """Return what is wrong with a sum; empty if nothing is."""
    hosts = sorted({each["host"] for each in gathered})
    if len(gathered) != ranks:
        return f"{len(gathered)} {'rank' if len(gathered) == 1 else 'ranks'} found each other, not {ranks}"
    if len(hosts) != nodes:
        return f"the ranks were on {', '.join(hosts)}: {len(hosts)} {'node' if len(hosts) == 1 else 'nodes'}, not {nodes}"
    if controller != backend:
        return f"it went by {controller}, not by {backend}"
    if sorted(each["rank"] for each in gathered) != list(range(ranks)) or not all(each["right"] for each in gathered):
        return "the sum over all ranks is wrong"
    return ""


def report(gathered: Any, controller: str, gigabytes_per_second: float = 0.0) -> int:
    """Print the report of all ranks; return the exit code."""
    backend, ranks, nodes = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    wrong = judge(gathered, controller, backend, ranks, nodes)
    where = f" on {', '.join(sorted({each['host'] for each in gathered}))}" if nodes > 1 else ""
    text = wrong or f"{ranks} ranks by {backend}{where}: the sum of their vectors is right"
    drivers = sorted({each["driver"] for each in gathered if each["driver"]})
    content = {"passed": not wrong, "detail": text, "drivers": drivers}
    if SPEED:
        content["gigabytes_per_second"] = round(gigabytes_per_second, 4)
    print(json.dumps(content))
    print(text, flush=True)
    return 1 if wrong else 0


def import_horovod() -> "tuple[str, Any]":
    """Return the first framework that Horovod is built for, and Horovod's module for it."""
    try:
        return "torch", import_module("horovod.torch")
    except ImportError:
        return "tensorflow", import_module("horovod.tensorflow")


def by_horovod(backend: str) -> int:
    """Sum by Horovod; return the exit code."""
    name, hvd = import_horovod()
    framework = import_module(name)
    hvd.init()
    controller = "mpi" if hvd.mpi_enabled() else "gloo" if hvd.gloo_enabled() else "none"
    rank, ranks = hvd.rank(), hvd.size()
    if name == "torch":
        device = f"cuda:{hvd.local_rank()}" if backend == "nccl" else "cpu"
        total = hvd.allreduce(framework.arange(float(LENGTH), device=device) + rank, op=hvd.Sum).tolist()
        long = framework.ones(max(SPEED // 4, 1), device=device)
    else:
        total = hvd.allreduce(framework.range(float(LENGTH)) + rank, op=hvd.Sum).numpy().tolist()
        long = framework.ones([max(SPEED // 4, 1)])
    fast = speed(ranks, lambda: hvd.allreduce(long, op=hvd.Sum, name="long"), lambda: hvd.allgather_object(rank))
    if backend == "nccl":
        controller = "nccl" if hvd.nccl_built() else controller
    mine = {"rank": rank, "host": socket.gethostname(), "right": total == expected(ranks), "driver": driver()}
    gathered = hvd.allgather_object(mine)
    code = report(gathered, controller, fast) if rank == 0 else 0
    hvd.shutdown()
    return code


def by_torch(backend: str) -> int:
    """Sum by torch.distributed; return the exit code."""
    torch = import_module("torch")
    dist = import_module("torch.distributed")
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = f"cuda:{os.environ.get('LOCAL_RANK', rank)}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=os.environ.get("RANKS_MEET_AT", "env://"), rank=rank, world_size=ranks)
    total = torch.arange(float(LENGTH), device=device) + rank
    dist.all_reduce(total)
    long = torch.ones(max(SPEED // 4, 1), device=device)

    def add_up() -> None:
        dist.all_reduce(long)
        if backend == "nccl":
            torch.cuda.synchronize()

    fast = speed(ranks, add_up, dist.barrier)
    right = total.tolist() == expected(ranks)
    gathered: Any = [None] * ranks
    dist.all_gather_object(gathered, {"rank": rank, "host": socket.gethostname(), "right": right, "driver": driver()})
    code = report(gathered, dist.get_backend(), fast) if rank == 0 else 0
    dist.barrier()
    dist.destroy_process_group()
    return code


def be_rank() -> int:
    """Take part as the rank that the environment says; return the exit code."""
    return by_horovod(sys.argv[2]) if sys.argv[1] == "horovod" else by_torch(sys.argv[2])


def leave(code: int) -> None:
    """End this process at once: while Python shuts down, a thread of Gloo may still hold a tensor, and abort (pytorch#179291)."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def open_meeting(ranks: int) -> Any:
    """Return the server at which Horovod's ranks meet; it is served by `start`, since a thread would not outlive a fork."""
    hosts = import_module("horovod.runner.common.util.hosts")
    http = import_module("horovod.runner.http.http_server")
    server = http.RendezvousHTTPServer(("127.0.0.1", 0), http.RendezvousHandler, 0)
    server.init(hosts.get_host_assignments(hosts.parse_hosts(f"localhost:{ranks}"), ranks))
    server.timeout = 0.1
    return server


def variables(rank: int, ranks: int, port: int, directory: str) -> "dict[str, str]":
    """Return the variables of a rank that this program starts."""
    counts = {"RANK": rank, "SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_SIZE": ranks, "CROSS_RANK": 0, "CROSS_SIZE": 1}
    return {
        **{f"HOROVOD_{name}": str(count) for name, count in counts.items()},
        **dict.fromkeys(("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"), "gloo"),
        **dict.fromkeys(("HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME"), "lo"),
        "HOROVOD_HOSTNAME": "localhost",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "RANKS_MEET_AT": f"file://{directory}/meet",
    }


def start(library: str, ranks: int, directory: str) -> int:
    """Fork the ranks from this process, which imports their framework, and wait for them; return 1 if one failed."""
    server = None
    if library == "horovod" and not import_horovod()[1].gloo_built():
        library = sys.argv[1] = "torch"
    if library == "horovod":
        server = open_meeting(ranks)
    else:
        import_module("torch.distributed")
    sys.stdout.flush()
    running = set()
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(PATIENCE)
                os.environ.update(variables(rank, ranks, server.server_address[1] if server else 0, directory))
                code = be_rank()
            except BaseException:
                traceback.print_exc()
            finally:
                leave(code)
        running.add(child)
    failed = 0
    while running:
        if server:
            server.handle_request()
        child, status = os.waitpid(-1, os.WNOHANG if server else 0)
        running.discard(child)
        if child and status and not failed:
            failed = 1
            for other in running:  # they would wait for it
                os.kill(other, signal.SIGKILL)
    return failed


if __name__ == "__main__":
    if "start" in sys.argv[5:]:
        with tempfile.TemporaryDirectory() as directory:
            code = start(sys.argv[1], int(sys.argv[3]), directory)
        sys.exit(code)
    leave(be_rank())
