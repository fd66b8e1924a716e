"""All ranks add up over NCCL. With --one-gpu they all use the same GPU, which NCCL refuses."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

torch.cuda.set_device(0 if "--one-gpu" in sys.argv else int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
result = {"ranks": ranks, "right": True}
for count in (1, 1 << 10, 1 << 20, 1 << 26):
    data = torch.full((count,), float(rank + 1), device="cuda")
    dist.all_reduce(data)
    result["right"] &= bool((data == ranks * (ranks + 1) / 2).all())
torch.cuda.synchronize()
start = time.perf_counter()
for _ in range(10):
    dist.all_reduce(data)
torch.cuda.synchronize()
result["bytes_per_second"] = 10 * data.nbytes / (time.perf_counter() - start)
if rank == 0:
    print("SUM " + json.dumps(result), flush=True)
dist.destroy_process_group()
