"""Handwritten digits with tensor and sequence parallelism: every matrix of a small transformer is split among the ranks.

All ranks work on the same images. Between the matrices each rank keeps some rows of every image (sequence parallel). Started by torchrun.
"""

import argparse
import copy
import json
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--batch-size", type=int, default=96, help="images per step; all ranks see the same ones (default 96)")
parser.add_argument("--lr", type=float, default=0.005, help="learning rate of Adam (default 0.005)")
parser.add_argument("--heads", type=int, default=8, help="attention heads; the ranks share them (default 8)")
parser.add_argument("--dtype", choices=("float32", "float64"), default="float64", help="float64 leaves less to rounding (default)")
parser.add_argument("--tolerance", type=float, default=1e-9, help="largest difference of a loss to that of one process (default 1e-9)")
args = parser.parse_args()
torch.set_default_dtype(getattr(torch, args.dtype))

world_size, local_rank, rows, width = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"]), 8, 64
if args.heads % world_size or rows % world_size:
    sys.exit(f"{args.heads} heads and {rows} rows cannot be split among {world_size} ranks: choose a number that divides both")
device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
mesh = init_device_mesh(device.type, (world_size,), mesh_dim_names=("tensor",))  # with NCCL on GPUs, with Gloo on CPUs
rank = dist.get_rank()


class Attention(nn.Module):
    """Each row looks at the other rows of its image. A rank has some of the heads; the number of heads follows from its matrices."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        q, k, v = (part(x).unflatten(2, (-1, width // args.heads)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), Attention(), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Network(nn.Sequential):
    """Eight rows of eight pixels, each with its number in the image; one answer from the mean of all rows."""

    def __init__(self):
        super().__init__(nn.Linear(8 + rows, width), Block(), Block(), nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, images):
        numbers = torch.eye(rows, device=images.device).expand(len(images), -1, -1)
        return super().forward(torch.cat([images, numbers], 2)).mean(1)


def train(model, optimizer, x, y):
    loss = functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


torch.manual_seed(0)  # all ranks make the same network; then each keeps its part
model = Network().to(device)
alone = copy.deepcopy(model)
optimizer_alone = torch.optim.Adam(alone.parameters(), lr=args.lr)
# Shard(1): of every image, a rank has some rows. Before a pair of matrices all rows are gathered; after it they are summed and split again.
gather = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
block = {"norm1": SequenceParallel(), "norm2": SequenceParallel(), "attention": gather, "mlp": gather}
block |= {"attention.q": ColwiseParallel(), "attention.k": ColwiseParallel(), "attention.v": ColwiseParallel()}
block |= {"attention.out": RowwiseParallel(output_layouts=Shard(1))}
block |= {"mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel(output_layouts=Shard(1))}
plan = {"0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "3": SequenceParallel(), "4": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())}
plan |= {f"{number}.{name}": style for number in (1, 2) for name, style in block.items()}
parallelize_module(model, mesh, plan)
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
held = sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in model.parameters())
whole = sum(p.numel() for p in alone.parameters())
sys.stdout.write(f"rank {rank} of {world_size}  host {socket.gethostname()}  device {device}  holds {held} of {whole} parameters\n")

# 1,797 real digits of 8x8 pixels, split in the same way on every rank and in every run.
images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images / 16, dtype=torch.get_default_dtype(), device=device).unflatten(1, (rows, 8)), torch.tensor(labels, device=device)
train_part, test_part = torch.randperm(1797, generator=torch.Generator().manual_seed(2022)).to(device).split([1437, 360])
batches = [
    (images[part], labels[part])
    for epoch in range(args.epochs)
    for part in train_part[torch.randperm(1437, generator=torch.Generator().manual_seed(epoch)).to(device)].split(args.batch_size)
]
started = time.perf_counter()
losses = [train(model, optimizer, x, y) for x, y in batches]
seconds = time.perf_counter() - started
with torch.no_grad():
    accuracy = (model(images[test_part]).argmax(1) == labels[test_part]).double().mean().item()

# The same steps in one process, with the whole matrices: the losses of all steps must be the same.
difference = torch.zeros(1, device=device)
if rank == 0:
    reference = [train(alone, optimizer_alone, x, y) for x, y in batches]
    difference += max(abs(one - other) for one, other in zip(losses, reference, strict=True))
dist.broadcast(difference, 0)
equal = difference.item() <= args.tolerance  # what is left is the order of additions
sys.stdout.flush()
dist.barrier()  # nobody leaves before all have arrived: a rank that closes its connections early makes the others fail
dist.destroy_process_group()
if rank == 0:
    result = {"accuracy": accuracy, "loss": losses[-1], "loss_of_one_process": reference[-1], "max_loss_difference": difference.item()}
    result |= {"tolerance": args.tolerance, "equal_to_one_process": equal, "epochs": args.epochs, "world_size": world_size}
    result |= {"parameters": whole, "parameters_held": held}
    result |= {"samples_per_second": round(args.epochs * len(train_part) / seconds, 1), "seconds": round(seconds, 3)}
    print(json.dumps(result), flush=True)
os._exit(0 if equal else 1)  # not sys.exit: a thread of Gloo can abort Python while it shuts down (pytorch#179291)
