"""70,000 real images of clothes (Fashion-MNIST, 28x28 pixels, ten kinds) with DDP and a small convolutional network.

The data is Debian's package dataset-fashion-mnist: four files, bound into the container read-only.
"""

import argparse
import gzip
import json
import os
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=64, help="images per rank and step (default 64)")
parser.add_argument("--lr", type=float, default=0.002, help="learning rate of Adam (default 0.002)")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--data", type=Path, default=Path("/data/fashion-mnist"), metavar="FOLDER")
parser.add_argument("--images", type=int, default=60000, help="train on so many of the 60,000 (default all)")
args = parser.parse_args()


def read(name):
    """A file in the format of MNIST: after the header (4 bytes, and 4 for each dimension), one byte for each pixel or label."""
    path = args.data / f"{name}-ubyte.gz"
    if not path.is_file():
        sys.exit(f"{path} is not there: apt-get install dataset-fashion-mnist, or --data FOLDER")
    content = gzip.decompress(path.read_bytes())
    shape = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(content[3])]
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=4 + 4 * len(shape)).reshape(shape)


local_rank = int(os.environ["LOCAL_RANK"])
if torch.cuda.is_available():
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
else:
    device = torch.device("cpu")
    dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()

train = TensorDataset(read("train-images-idx3")[: args.images], read("train-labels-idx1")[: args.images].long())
test_images = (read("t10k-images-idx3")[rank::world_size, None] / 255.0).to(device)
test_labels = read("t10k-labels-idx1")[rank::world_size].long().to(device)
sampler = DistributedSampler(train, seed=args.seed)
batches = DataLoader(train, batch_size=args.batch_size, sampler=sampler)

torch.manual_seed(args.seed + rank)
parts = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
network = nn.Sequential(*parts, nn.Linear(32 * 5 * 5, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
model = DistributedDataParallel(network)
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

started = time.perf_counter()
for epoch in range(1, args.epochs + 1):
    sampler.set_epoch(epoch)
    loss_sum, seen = 0.0, 0
    for x, y in batches:
        x, y = (x[:, None] / 255.0).to(device), y.to(device)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        loss_sum, seen = loss_sum + loss.item() * len(y), seen + len(y)
    with torch.no_grad():
        right = sum((network(x).argmax(1) == y).sum().item() for x, y in zip(test_images.split(500), test_labels.split(500), strict=True))
    sums = torch.tensor([loss_sum, seen, right, len(test_labels)], dtype=torch.float64, device=device)
    dist.all_reduce(sums)
    loss_all, accuracy = (sums[0] / sums[1]).item(), (sums[2] / sums[3]).item()
    if rank == 0:
        print(f"epoch {epoch:2d}  loss {loss_all:.3f}  accuracy {accuracy:.3f}", flush=True)
seconds = time.perf_counter() - started

mine = torch.nn.utils.parameters_to_vector(network.parameters()).detach().double()
smallest, largest = mine.clone(), mine.clone()
dist.all_reduce(smallest, dist.ReduceOp.MIN)
dist.all_reduce(largest, dist.ReduceOp.MAX)
difference = (largest - smallest).max().item()
sys.stdout.write(f"rank {rank} of {world_size}  local rank {local_rank}  host {socket.gethostname()}  device {device}\n")
sys.stdout.flush()
dist.barrier()  # nobody leaves before all have arrived
dist.destroy_process_group()
if rank == 0:
    result = {"accuracy": accuracy, "loss": loss_all, "epochs": args.epochs, "world_size": world_size, "images": len(train)}
    result |= {"parameters_equal": difference == 0, "max_parameter_difference": difference}
    result |= {"samples_per_second": round(sums[1].item() * args.epochs / seconds, 1), "seconds": round(seconds, 3)}
    print(json.dumps(result), flush=True)
os._exit(0 if difference == 0 else 1)  # not sys.exit: a thread of Gloo can abort Python while it shuts down (pytorch#179291)
