"""Which GPUs does this job have? One rank on each node counts them, computes on each, and adds up with the other nodes.

Counted are the devices that Slurm handed out (CUDA_VISIBLE_DEVICES) and those that PyTorch can use. They differ where a driver, or a
PyTorch with CUDA, is missing; on a cluster with simulated GPUs they always do.
"""

import json
import os
import socket

import torch
import torch.distributed as dist

given = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
usable = torch.cuda.device_count()
devices = [torch.device("cuda", number) for number in range(usable)] or [torch.device("cpu")]

# A product of matrices on every device, and all GPUs of the node at once by DataParallel, against the same on a CPU.
torch.manual_seed(2022)
layer, batch = torch.nn.Linear(512, 512), torch.randn(256, 512)
expected = layer(batch).detach()
wrong = []
for device in devices:
    answer = layer.to(device)(batch.to(device)).detach().cpu()
    if not torch.allclose(answer, expected, atol=1e-3):
        wrong.append(str(device))
if usable > 1:
    together = torch.nn.DataParallel(layer.to(devices[0]))(batch.to(devices[0])).detach().cpu()
    if not torch.allclose(together, expected, atol=1e-3):
        wrong.append("all together")

names = [torch.cuda.get_device_name(number) for number in range(usable)]
seen = ", ".join(names) or f"none usable (PyTorch {torch.__version__}, CUDA {torch.version.cuda or 'not built in'})"
print(f"{socket.gethostname()}: Slurm gave {len(given)} GPUs [{','.join(given)}], PyTorch has {usable}: {seen}", flush=True)

# All nodes add up what they have: a sum that is right also shows that they reach each other.
if usable:
    torch.cuda.set_device(0)
dist.init_process_group("nccl" if usable else "gloo")
nodes = dist.get_world_size()
sums = torch.tensor([1, len(given), usable, len(wrong)], device=devices[0])
dist.all_reduce(sums)
answered, given_all, usable_all, wrong_all = sums.tolist()
rank = dist.get_rank()
dist.barrier()
dist.destroy_process_group()

right = answered == nodes and wrong_all == 0 and (not torch.version.cuda or usable_all == given_all)
if rank == 0:
    result = {"nodes": nodes, "gpus_given": given_all, "gpus_usable": usable_all, "wrong": wrong_all, "all_reduce": answered == nodes}
    print(json.dumps(result), flush=True)
os._exit(0 if right else 1)  # not sys.exit: a thread of Gloo can abort Python while it shuts down (pytorch#179291)
