"""A training with DistributedDataParallel that computes more than it communicates; it prints each step's rate."""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--batch-size", type=int, default=512)
args = parser.parse_args()
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
layers = [torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)]
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(args.steps):
    began = time.perf_counter()
    x = torch.randn(args.batch_size, 512)
    optimizer.zero_grad()
    (model(x) - x).square().mean().backward()
    optimizer.step()
    samples = dist.get_world_size() * args.batch_size
    if dist.get_rank() == 0:
        print(f"samples_per_second {samples / (time.perf_counter() - began):.2f}", flush=True)
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # a thread of Gloo can abort Python while it shuts down (pytorch#179291)
