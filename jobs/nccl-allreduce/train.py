"""How fast the ranks add up a buffer together (all-reduce), for buffers of 1 KiB to 256 MiB, and whether every sum is right.

The bus bandwidth is NCCL's: bytes / seconds * 2 (n - 1) / n, what each of n ranks has to send at least, so that it can be compared with
the network's, whatever the number of ranks.
"""

import argparse
import json
import socket
import statistics
import sys
import time

import torch
from libraries import meet

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--backend", choices=("auto", "nccl", "gloo", "horovod", "mpi"), default="auto", help="auto: nccl on GPUs, else gloo")
parser.add_argument("--min-size", type=int, default=1 << 10, help="bytes of the smallest buffer (default 1 KiB)")
parser.add_argument("--max-size", type=int, default=1 << 28, help="bytes of the largest buffer (default 256 MiB)")
parser.add_argument("--factor", type=int, default=4, help="each buffer is so many times the one before (default 4)")
parser.add_argument("--repeats", type=int, default=20, help="times that a small buffer is added up; large ones less often (default 20)")
parser.add_argument("--show-buffers", action="store_true", help="print each rank's buffer before and after, rank by rank, and end")
args = parser.parse_args()


def seconds_of(buffer):
    """Wall time of one sum; a GPU works on after the call has returned."""
    ranks.gather(None)  # all begin together
    if buffer.is_cuda:
        torch.cuda.synchronize()
    started = time.perf_counter()
    ranks.add_up(buffer)
    if buffer.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started


def measure(size):
    """One row: every element of every sum on every rank is compared with what it must be."""
    weights = [number % 13 + 1 for number in range(ranks.size)]  # small whole numbers: the sums are exact in 32 bits
    pattern = (torch.arange(size // 4, device=ranks.device) % 127 + 1).float()  # a part that is added in the wrong place shows
    buffer, wrong, times = torch.empty_like(pattern), 0, []
    for _ in range(1 + max(2, min(args.repeats, (1 << 26) // size))):
        torch.mul(pattern, weights[ranks.rank], out=buffer)
        times.append(seconds_of(buffer))
        wrong += int((buffer != pattern * sum(weights)).sum())
    told = ranks.gather((statistics.median(times[1:]), wrong))  # the first one sets up connections and memory
    slowest, wrong = max(seconds for seconds, _ in told), sum(count for _, count in told)
    speed = size / slowest / 1e9
    row = {"bytes": size, "sums": len(times), "microseconds": round(slowest * 1e6, 1), "algorithm_gb_per_s": round(speed, 6)}
    return {**row, "bus_gb_per_s": round(speed * 2 * (ranks.size - 1) / ranks.size, 6), "wrong": wrong}


def show_buffers():
    """Each device holds its number on the node, from 1 on; afterwards all hold the sum over all nodes. Returns how many do not."""
    buffer = torch.full((8,), ranks.local_rank + 1.0, device=ranks.device)
    before = buffer.tolist()
    ranks.add_up(buffer)
    told = ranks.gather((f"{socket.gethostname()} rank:{ranks.rank} {ranks.device.type}{ranks.local_rank}", before, buffer.tolist()))
    for moment, index in (("before", 1), ("after", 2)):
        for one in told if ranks.rank == 0 else ():
            print(f"{moment:<6} {one[0]}", *(f"{value:g}" for value in one[index]), flush=True)
    sums = [sum(values) for values in zip(*(one[1] for one in told), strict=True)]
    return sum(one[2] != sums for one in told)


ranks = meet(args.backend)
rows, size = [], args.min_size
wrong = show_buffers() if args.show_buffers else 0
while size <= args.max_size and not args.show_buffers:
    rows.append(measure(size))
    wrong += rows[-1]["wrong"]
    if ranks.rank == 0:
        print("{bytes:>10} bytes {microseconds:>10.0f} us  bus {bus_gb_per_s:8.4f} GB/s  wrong {wrong}".format(**rows[-1]), flush=True)
    size *= args.factor
ranks.leave()  # nobody leaves before all have arrived: a rank that closes its connections early makes the others fail
if ranks.rank == 0:
    best = {"bus_gb_per_s": max(row["bus_gb_per_s"] for row in rows)} if rows else {}
    result = {**best, "wrong": wrong, "world_size": ranks.size, "backend": ranks.name, "device": ranks.device.type, "rows": rows}
    print(json.dumps(result), flush=True)
sys.exit(0 if wrong == 0 else 1)
