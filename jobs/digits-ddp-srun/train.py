"""Handwritten digits with DDP, without torchrun: Slurm starts every rank, and each is told its RANK, LOCAL_RANK and WORLD_SIZE.

How the ranks find each other is the init method: env:// reads it from the environment, tcp://HOST:PORT and file://PATH say it all.
"""

import argparse
import json
import os
import socket
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step (default 16)")
parser.add_argument("--lr", type=float, default=0.01, help="learning rate of Adam (default 0.01)")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--init-method", default="env://", metavar="URL", help="env://, tcp://HOST:PORT or file://PATH")
args = parser.parse_args()

# Every rank of a node takes a GPU of its own; without GPUs, the same script runs on CPUs.
rank, local_rank, world_size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
if torch.cuda.is_available():
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    backend = "nccl"
else:
    device = torch.device("cpu")
    backend = "gloo"
dist.init_process_group(backend, init_method=args.init_method, rank=rank, world_size=world_size)

# 1,797 real digits of 8x8 pixels, split in the same way on every rank and in every run.
# They come with scikit-learn, whose file is read as it is: to import all of scikit-learn takes each rank a second.
table = np.loadtxt(Path(find_spec("sklearn").origin).parent / "datasets/data/digits.csv.gz", delimiter=",", dtype=np.float32)
digits = TensorDataset(torch.tensor(table[:, :64] / 16), torch.tensor(table[:, 64], dtype=torch.int64))
train, test = random_split(digits, [1437, 360], generator=torch.Generator().manual_seed(2022))
# The sampler gives each rank its own part; all parts are equal in length, because a rank with one step more would wait for ever.
sampler = DistributedSampler(train, seed=args.seed)
batches = DataLoader(train, batch_size=args.batch_size, sampler=sampler)
test_images, test_labels = (part.to(device) for part in test[rank::world_size])

# The seed differs by rank on purpose: it is DDP that makes the networks equal, by sending rank 0's to all.
torch.manual_seed(args.seed + rank)
network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(device)
model = DistributedDataParallel(network)
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

started = time.perf_counter()
for epoch in range(1, args.epochs + 1):
    sampler.set_epoch(epoch)  # another shuffle each epoch, the same one on all ranks
    loss_sum, seen = 0.0, 0
    for x, y in batches:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()  # here DDP averages the gradients of all ranks
        optimizer.step()
        loss_sum, seen = loss_sum + loss.item() * len(y), seen + len(y)

    # Each rank tests its share; the sums over all ranks are those of the whole test set.
    with torch.no_grad():
        right = (network(test_images).argmax(1) == test_labels).sum().item()
    sums = torch.tensor([loss_sum, seen, right, len(test_labels)], dtype=torch.float64, device=device)
    dist.all_reduce(sums)
    loss_all, accuracy = (sums[0] / sums[1]).item(), (sums[2] / sums[3]).item()
    if rank == 0:
        print(f"epoch {epoch:2d}  loss {loss_all:.3f}  accuracy {accuracy:.3f}", flush=True)
seconds = time.perf_counter() - started

# Did all ranks train one network? For every parameter: the largest value on any rank minus the smallest.
mine = torch.nn.utils.parameters_to_vector(network.parameters()).detach().double()
smallest, largest = mine.clone(), mine.clone()
dist.all_reduce(smallest, dist.ReduceOp.MIN)
dist.all_reduce(largest, dist.ReduceOp.MAX)
difference = (largest - smallest).max().item()

# One write for the text and its end of line: print makes two, and the lines of two ranks could mix.
sys.stdout.write(f"rank {rank} of {world_size}  local rank {local_rank}  host {socket.gethostname()}  device {device}\n")
sys.stdout.flush()
dist.barrier()  # nobody leaves before all have arrived: a rank that closes its connections early makes the others fail
dist.destroy_process_group()
if rank == 0:
    result = {
        "accuracy": accuracy,
        "loss": loss_all,
        "epochs": args.epochs,
        "world_size": world_size,
        "init_method": args.init_method.split(":")[0],
        "parameters_equal": difference == 0,
        "max_parameter_difference": difference,
        "samples_per_second": round(sums[1].item() * args.epochs / seconds, 1),
        "seconds": round(seconds, 3),
    }
    print(json.dumps(result), flush=True)
os._exit(0 if difference == 0 else 1)  # not sys.exit: a thread of Gloo can abort Python while it shuts down (pytorch#179291)
