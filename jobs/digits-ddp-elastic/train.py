"""Handwritten digits with DDP, in a script that may be stopped and started again at any time, with another number of ranks each time.

torchrun starts all ranks again when one has died, or when a node has gone or come. What is not in the snapshot is lost then, so
everything that the training needs to go on is in it; it is written after every epoch, and never half.
"""

import argparse
import json
import os
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step (default 16)")
parser.add_argument("--lr", type=float, default=0.01, help="learning rate of Adam (default 0.01)")
parser.add_argument("--pause", type=float, default=0.0, metavar="SECONDS", help="after each epoch: time to pull a cable")
parser.add_argument("--snapshot", type=Path, default=Path("digits-ddp-elastic.pt"), metavar="FILE", help="gone when the training is done")
args = parser.parse_args()

local_rank = int(os.environ["LOCAL_RANK"])
if torch.cuda.is_available():
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
else:
    device = torch.device("cpu")
    dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()

# 1,797 real digits of 8x8 pixels, split in the same way on every rank and in every run.
images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
train, test = random_split(digits, [1437, 360], generator=torch.Generator().manual_seed(2022))
sampler = DistributedSampler(train)
batches = DataLoader(train, batch_size=args.batch_size, sampler=sampler)
test_images, test_labels = (part.to(device) for part in test[rank::world_size])

torch.manual_seed(rank)
network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(device)
optimizer = torch.optim.Adam(network.parameters(), lr=args.lr)
done = 0
if args.snapshot.exists():
    snapshot = torch.load(args.snapshot, map_location=device, weights_only=True)
    network.load_state_dict(snapshot["network"])
    optimizer.load_state_dict(snapshot["optimizer"])
    done = snapshot["epoch"]
resumed = done
sys.stdout.write(f"starts after epoch {done} as rank {rank} of {world_size} on {socket.gethostname()}\n")
sys.stdout.flush()
model = DistributedDataParallel(network)

loss_all = accuracy = 0.0
started, seen_all = time.perf_counter(), 0.0
for epoch in range(done + 1, args.epochs + 1):
    sampler.set_epoch(epoch)
    loss_sum, seen = 0.0, 0
    for x, y in batches:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        loss_sum, seen = loss_sum + loss.item() * len(y), seen + len(y)
    with torch.no_grad():
        right = (network(test_images).argmax(1) == test_labels).sum().item()
    sums = torch.tensor([loss_sum, seen, right, len(test_labels)], dtype=torch.float64, device=device)
    dist.all_reduce(sums)
    loss_all, accuracy, seen_all = (sums[0] / sums[1]).item(), (sums[2] / sums[3]).item(), seen_all + sums[1].item()
    if rank == 0:
        # Written beside, then renamed: whoever reads finds the old snapshot or the new one, never a part.
        beside = args.snapshot.with_suffix(".new")
        torch.save({"epoch": epoch, "network": network.state_dict(), "optimizer": optimizer.state_dict()}, beside)
        beside.replace(args.snapshot)
        print(f"epoch {epoch:2d}  loss {loss_all:.3f}  accuracy {accuracy:.3f}  ranks {world_size}", flush=True)
    time.sleep(args.pause)
seconds = time.perf_counter() - started

mine = torch.nn.utils.parameters_to_vector(network.parameters()).detach().double()
smallest, largest = mine.clone(), mine.clone()
dist.all_reduce(smallest, dist.ReduceOp.MIN)
dist.all_reduce(largest, dist.ReduceOp.MAX)
difference = (largest - smallest).max().item()
dist.barrier()  # nobody leaves before all have arrived: a rank that closes its connections early makes the others fail
dist.destroy_process_group()
if rank == 0:
    args.snapshot.unlink(missing_ok=True)  # the next run starts anew
    result = {
        "accuracy": accuracy,
        "loss": loss_all,
        "epochs": args.epochs,
        "resumed_after": resumed,
        "world_size": world_size,
        "parameters_equal": difference == 0,
        "max_parameter_difference": difference,
        "samples_per_second": round(seen_all / seconds, 1),
        "seconds": round(seconds, 3),
    }
    print(json.dumps(result), flush=True)
os._exit(0 if difference == 0 else 1)  # not sys.exit: a thread of Gloo can abort Python while it shuts down (pytorch#179291)
