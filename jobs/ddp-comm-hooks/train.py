"""Handwritten digits with DDP, four times: gradients sent whole, as 16-bit numbers (fp16, bf16), and as the product of two thin matrices (PowerSGD).

The bytes are those that each rank hands to the all-reduce operations of a step. Started by torchrun.
"""

import argparse
import json
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

HOOKS = ("none", "fp16", "bf16", "powersgd")
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--hooks", nargs="+", choices=HOOKS, default=HOOKS, help="which to compare with none (default all)")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step (default 32)")
parser.add_argument("--lr", type=float, default=0.003, help="learning rate of Adam (default 0.003)")
parser.add_argument("--width", type=int, default=256, help="of the two hidden layers (default 256)")
parser.add_argument("--power-rank", type=int, default=4, help="columns of PowerSGD's thin matrices (default 4)")
parser.add_argument("--loss-of-accuracy", type=float, default=0.03, help="at most so much below the plain one (default 0.03)")
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
test_images, test_labels = (part.to(device) for part in test[rank::world_size])
sent, all_reduce = [0], dist.all_reduce


def counting(tensor, *others, **named):
    """What DDP's hooks call in place of all_reduce: it counts the bytes of the tensor first."""
    sent[0] += tensor.numel() * tensor.element_size()
    return all_reduce(tensor, *others, **named)


def add(model, hook):
    """Say how DDP sends the gradients of the model; allreduce_hook is what it does by itself."""
    if hook == "powersgd":
        # Plain for the first 10 steps; what the thin matrices leave out of a gradient is added to the next one (error feedback).
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=args.power_rank, start_powerSGD_iter=10)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        plain, fp16, bf16 = default_hooks.allreduce_hook, default_hooks.fp16_compress_hook, default_hooks.bf16_compress_hook
        model.register_comm_hook(None, {"none": plain, "fp16": fp16, "bf16": bf16}[hook])


def run(hook):
    """Train with one hook: accuracy, bytes of the last step, images per second, difference between ranks."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, args.width), torch.nn.ReLU(), torch.nn.Linear(args.width, args.width), torch.nn.ReLU(), torch.nn.Linear(args.width, 10)]
    network = torch.nn.Sequential(*layers).to(device)
    model = DistributedDataParallel(network)
    try:
        add(model, hook)
    except TypeError as error:  # bf16 without NCCL; the same on every rank
        if rank == 0:
            print(f"{hook:9} not with {dist.get_backend()}: {error}", flush=True)
        return None
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    sampler = DistributedSampler(train, seed=0)
    batches = DataLoader(train, batch_size=args.batch_size, sampler=sampler)
    started, seen = time.perf_counter(), 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in batches:
            sent[0] = 0
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()  # here the hook sends the gradients
            optimizer.step()
            seen += len(y)
    seconds = time.perf_counter() - started
    with torch.no_grad():
        right = (network(test_images).argmax(1) == test_labels).sum().item()
    sums = torch.tensor([seen, right, len(test_labels), loss.item()], dtype=torch.float64, device=device)
    all_reduce(sums)
    mine = torch.nn.utils.parameters_to_vector(network.parameters()).detach().double()
    smallest, largest = mine.clone(), mine.clone()
    all_reduce(smallest, dist.ReduceOp.MIN)
    all_reduce(largest, dist.ReduceOp.MAX)
    difference = (largest - smallest).max().item()
    row = {"bytes_per_step": sent[0], "accuracy": (sums[1] / sums[2]).item(), "loss": (sums[3] / world_size).item()}
    row |= {"samples_per_second": round(sums[0].item() / seconds, 1), "max_parameter_difference": difference, "seconds": round(seconds, 3)}
    if rank == 0:
        print(f"{hook:9} {row['bytes_per_step']:9,} bytes per step  accuracy {row['accuracy']:.3f}  {row['samples_per_second']:.0f} images/s", flush=True)
    return row


dist.all_reduce = counting
names = ["none", *(hook for hook in args.hooks if hook != "none")]
sys.stdout.write(f"rank {rank} of {world_size}  host {socket.gethostname()}  device {device}  compares {' '.join(names)}\n")
rows = {hook: row for hook in names if (row := run(hook)) is not None}
plain = rows["none"]
others = [row for hook, row in rows.items() if hook != "none"]
difference = max(row["max_parameter_difference"] for row in rows.values())
good = difference == 0 and all(
    row["bytes_per_step"] < plain["bytes_per_step"] and row["accuracy"] >= plain["accuracy"] - args.loss_of_accuracy for row in others
)
sys.stdout.flush()
dist.barrier()  # nobody leaves before all have arrived: a rank that closes its connections early makes the others fail
dist.destroy_process_group()
if rank == 0:
    result = {name: plain[name] for name in ("accuracy", "loss", "samples_per_second")}
    result |= {"epochs": args.epochs, "world_size": world_size, "parameters_equal": difference == 0, "max_parameter_difference": difference}
    result |= {"fewer_bytes_and_as_accurate": good, "hooks": rows, "not_offered": [name for name in names if name not in rows], "seconds": round(sum(row["seconds"] for row in rows.values()), 3)}
    print(json.dumps(result), flush=True)
os._exit(0 if good else 1)  # not sys.exit: a thread of Gloo can abort Python while it shuts down (pytorch#179291)
