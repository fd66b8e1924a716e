"""Train a small network on noise with DDP; the first rank writes the images per second.

Reads no data and writes no checkpoint, so that what is measured is computing and adding up
gradients.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("result")
parser.add_argument("--seconds", type=float, default=8.0)
parser.add_argument("--batch-size", type=int, default=32)
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
network = torch.nn.Sequential(
    *(torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
    *(torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
    *(torch.nn.Flatten(), torch.nn.Linear(64 * 8 * 8, 10)),
)
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images, labels = torch.randn(args.batch_size, 3, 32, 32), torch.randint(10, (args.batch_size,))


def step() -> None:
    """Train one batch."""
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()


for _ in range(5):  # memory, and DDP's own first round
    step()
dist.barrier()
steps, going = 0, torch.ones(1)
started = time.perf_counter()
while going.item():
    for _ in range(5):
        step()
    steps += 5
    going.fill_(float(time.perf_counter() - started < args.seconds))
    dist.broadcast(going, 0)  # all make as many steps as the first rank has time for
seconds = time.perf_counter() - started
if dist.get_rank() == 0:
    report = {
        "samples_per_second": steps * args.batch_size * dist.get_world_size() / seconds,
        "torch": torch.__version__,
    }
    part = Path(f"{args.result}.part")
    part.write_text(json.dumps({**report, "steps": steps, "seconds": seconds}))
    part.rename(args.result)
dist.barrier()
dist.destroy_process_group()
