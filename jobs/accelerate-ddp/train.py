"""Handwritten digits with Hugging Face Accelerate: the loop is PyTorch's own, and prepare() spreads it over the ranks.

Started by torchrun or by `accelerate launch`, once per rank; alone (`python train.py`) it trains in one process.
"""

import argparse
import json
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step (default 16)")
parser.add_argument("--lr", type=float, default=0.05, help="learning rate of SGD (default 0.05)")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
TOLERANCE = 1e-4  # ranks add the gradients in another order than one process does

# cpu: without it, Accelerate finds no GPU, takes no notice of the other ranks, and each trains a network of its own.
accelerator = Accelerator(
    cpu=not torch.cuda.is_available(),
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=args.seed),
)
rank, world_size, device = accelerator.process_index, accelerator.num_processes, accelerator.device

images, labels = load_digits(return_X_y=True)  # 1,797 real digits of 8x8 pixels, split in the same way on every rank
digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
train, test, _ = random_split(digits, [1408, 384, 5], generator=torch.Generator().manual_seed(2022))


def make_network():
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))


# The seed differs by rank on purpose: prepare() makes the networks equal, by sending rank 0's to all.
torch.manual_seed(args.seed + rank)
network = make_network()
optimizer = torch.optim.SGD(network.parameters(), lr=args.lr, momentum=0.9)
batches = DataLoader(train, batch_size=args.batch_size, shuffle=True, drop_last=True)
model, optimizer, batches, tests = accelerator.prepare(network, optimizer, batches, DataLoader(test, batch_size=96))

seen_by_all = []  # the images of each step, of all ranks: what the reference below trains on
started = time.perf_counter()
for epoch in range(1, args.epochs + 1):
    batches.set_epoch(epoch)  # another shuffle each epoch, the same one on all ranks
    for x, y in batches:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        accelerator.backward(loss)  # here the gradients of all ranks are averaged
        optimizer.step()
        seen_by_all.append((accelerator.gather(x).cpu(), accelerator.gather(y).cpu()))
    with torch.no_grad():
        pairs = [accelerator.gather_for_metrics((model(x).argmax(1), y)) for x, y in tests]
    accuracy = (torch.cat([guess for guess, _ in pairs]) == torch.cat([y for _, y in pairs])).float().mean().item()
    loss_all = accelerator.reduce(loss.detach(), "mean").item()
    accelerator.print(f"epoch {epoch:2d}  loss {loss_all:.3f}  accuracy {accuracy:.3f}", flush=True)
seconds = time.perf_counter() - started


def reference():
    """Train the same network in one process, without Accelerate: each of its batches holds those of all ranks."""
    torch.manual_seed(args.seed)
    alone = make_network()
    optimizer = torch.optim.SGD(alone.parameters(), lr=args.lr, momentum=0.9)
    for x, y in seen_by_all:
        optimizer.zero_grad()
        functional.cross_entropy(alone(x), y).backward()
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(alone.parameters()).detach()


# Did all ranks train one network, and is it the one that one process would have trained, on every image of each epoch once?
mine = torch.nn.utils.parameters_to_vector(network.parameters()).detach()
everyone = accelerator.gather(mine).reshape(world_size, -1).cpu()
difference, from_reference = ((everyone - other).abs().max().item() for other in (everyone[0], reference()))
steps = len(seen_by_all) // args.epochs
different = len(torch.cat([x for x, _ in seen_by_all[:steps]]).unique(dim=0))
right = difference == 0 and from_reference <= TOLERANCE and different == steps * args.batch_size * world_size
sys.stdout.write(f"rank {rank} of {world_size}  local rank {accelerator.local_process_index}  host {socket.gethostname()}  device {device}\n")
sys.stdout.flush()
if accelerator.is_main_process:
    result = {
        "accuracy": accuracy,
        "loss": loss_all,
        "epochs": args.epochs,
        "world_size": world_size,
        "images_in_an_epoch": different,
        "parameters_equal": difference == 0,
        "max_parameter_difference": difference,
        "reference_difference": from_reference,
        "samples_per_second": round(steps * args.batch_size * world_size * args.epochs / seconds, 1),
        "seconds": round(seconds, 3),
    }
    print(json.dumps(result), flush=True)
if world_size > 1:
    dist.barrier()  # nobody leaves before all have arrived: a rank that closes its connections early makes the others fail
    dist.destroy_process_group()
os._exit(0 if right else 1)  # a thread of Gloo can abort Python while it shuts down
