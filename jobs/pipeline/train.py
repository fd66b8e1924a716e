"""Handwritten digits with pipeline parallelism: each rank holds some layers, and small parts of a batch go through the ranks one after another.

Two schedules, GPipe and 1F1B: the same gradients, the same time without work (the bubble), not the same memory. Started by torchrun.
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
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch-size", type=int, default=72, help="images per step (default 72)")
parser.add_argument("--microbatches", type=int, default=8, help="parts of a batch (default 8)")
parser.add_argument("--blocks", type=int, default=8, help="layers between the first and the last one; the ranks share them (default 8)")
parser.add_argument("--schedule", choices=("GPipe", "1F1B"), default="1F1B", help="to train with (default 1F1B)")
parser.add_argument("--lr", type=float, default=0.002, help="learning rate of Adam (default 0.002)")
parser.add_argument("--pace", type=float, default=0.02, metavar="SECONDS", help="time that a stage is given for a part, to measure the bubble; 0: its own")
parser.add_argument("--tolerance", type=float, default=1e-5, help="largest difference of a gradient to that of one process (default 0.00001)")
args = parser.parse_args()

world_size, local_rank = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
if args.blocks % world_size:
    sys.exit(f"{args.blocks} blocks cannot be split among {world_size} ranks: choose a multiple with --blocks")
if args.microbatches < world_size or args.batch_size % args.microbatches:
    sys.exit(f"--microbatches {args.microbatches} must be at least the {world_size} ranks, and divide the batch of {args.batch_size}")
if torch.cuda.is_available():
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
else:
    device = torch.device("cpu")
    dist.init_process_group("gloo")
rank, last = dist.get_rank(), world_size - 1


class Block(nn.Sequential):
    def __init__(self):
        super().__init__(nn.LayerNorm(64), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x):
        return x + super().forward(x)


class Stage(PipelineStage):
    """The layers of this rank; it notes how long they work, and how many parts of a batch are kept until their backward."""

    pace = work = kept = most = 0

    def timed(self, function, pace, *args, **kwargs):
        started = time.perf_counter()
        result = function(*args, **kwargs)
        time.sleep(pace)
        self.work += time.perf_counter() - started
        return result

    def forward_one_chunk(self, *args, **kwargs):
        self.kept += 1
        self.most = max(self.most, self.kept)
        return self.timed(super().forward_one_chunk, self.pace, *args, **kwargs)

    def backward_one_chunk(self, *args, **kwargs):
        self.kept -= 1
        return self.timed(super().backward_one_chunk, 2 * self.pace, *args, **kwargs)  # about twice the work of the forward


def step(schedule, x, y):
    """Forward and backward of one batch: the first rank puts the images in, the last one compares with the labels. The mean loss there."""
    losses = []
    schedule.step(*([x] if rank == 0 else []), target=y if rank == last else None, losses=losses if rank == last else None, return_outputs=False)
    return torch.stack(losses).mean().item() if losses else 0.0


# 1,797 real digits of 8x8 pixels, split in the same way on every rank and in every run.
images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images / 16, dtype=torch.float32, device=device), torch.tensor(labels, device=device)
train, test = torch.randperm(1797, generator=torch.Generator().manual_seed(2022)).to(device).split([1437, 360])

torch.manual_seed(0)  # all ranks make the same network; then each takes its layers
layers = [nn.Linear(64, 64), *(Block() for _ in range(args.blocks)), nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 10))]
whole = nn.Sequential(*layers).to(device)
per_rank = args.blocks // world_size
mine = slice(0 if rank == 0 else 1 + rank * per_rank, 1 + (rank + 1) * per_rank + (rank == last))
part = nn.Sequential(*layers[mine])
sys.stdout.write(f"rank {rank} of {world_size}  host {socket.gethostname()}  device {device}  layers {mine.start} to {mine.stop - 1} of {len(layers)}\n")
stages = {name: Stage(part, rank, world_size, device) for name in ("GPipe", "1F1B")}
schedules = {
    name: (ScheduleGPipe if name == "GPipe" else Schedule1F1B)(stage, args.microbatches, loss_fn=functional.cross_entropy)
    for name, stage in stages.items()
}

# The gradients of both schedules beside those of one process, which has all layers and the whole batch.
x, y = images[train[: args.batch_size]], labels[train[: args.batch_size]]
expected = torch.autograd.grad(functional.cross_entropy(whole(x), y), list(part.parameters()))
differences = torch.zeros(2, device=device)
for number, schedule in enumerate(schedules.values()):
    part.zero_grad()
    step(schedule, x, y)
    differences[number] = max((p.grad - g).abs().max().item() for p, g in zip(part.parameters(), expected, strict=True))
dist.all_reduce(differences, dist.ReduceOp.MAX)

optimizer = torch.optim.Adam(part.parameters(), lr=args.lr)
batches = [
    batch
    for epoch in range(args.epochs)
    for batch in train[torch.randperm(1437, generator=torch.Generator().manual_seed(epoch)).to(device)].split(args.batch_size)
    if len(batch) == args.batch_size
]
started = time.perf_counter()
for batch in batches:
    optimizer.zero_grad()
    loss = step(schedules[args.schedule], images[batch], labels[batch])
    optimizer.step()
seconds = time.perf_counter() - started
right = tested = 0
for batch in test.split(args.batch_size):
    if len(batch) == args.batch_size:
        output = schedules["GPipe"].eval(*([images[batch]] if rank == 0 else []), target=labels[batch], losses=[])
        right, tested = right + ((output.argmax(1) == labels[batch]).sum().item() if rank == last else 0), tested + len(batch)
sums = torch.tensor([loss, right / tested], device=device) if rank == last else torch.zeros(2, device=device)
dist.broadcast(sums, last)

# The bubble: the share of all ranks' time in which they wait for another rank. By arithmetic it is (p-1)/(m+p-1), p stages, m microbatches.
bubbles, kept, arithmetic = {}, {}, last / (args.microbatches + last)
for name, stage in stages.items():
    stage.pace, stage.work, stage.kept, stage.most = args.pace, 0.0, 0, 0
    dist.barrier()
    started = time.perf_counter()
    for _ in range(3):
        step(schedules[name], x, y)
    if device.type == "cuda":
        torch.cuda.synchronize()
    times = torch.tensor([stage.work, time.perf_counter() - started, stage.most], dtype=torch.float64, device=device)
    everybody = [torch.empty_like(times) for _ in range(world_size)]
    dist.all_gather(everybody, times)
    bubbles[name] = round(1 - sum(one[0].item() for one in everybody) / sum(one[1].item() for one in everybody), 3)
    kept[name] = [int(one[2].item()) for one in everybody]
    if rank == 0:
        print(f"{name:5}  bubble {bubbles[name]:.3f}, by arithmetic {arithmetic:.3f}  parts kept on each rank {kept[name]}", flush=True)

equal = differences.max().item() <= args.tolerance
sys.stdout.flush()
dist.barrier()  # nobody leaves before all have arrived: a rank that closes its connections early makes the others fail
dist.destroy_process_group()
if rank == 0:
    result = {"accuracy": sums[1].item(), "loss": sums[0].item(), "epochs": args.epochs, "world_size": world_size}
    result |= {"max_gradient_difference": dict(zip(stages, differences.tolist(), strict=True)), "tolerance": args.tolerance, "equal_to_one_process": equal}
    result |= {"bubble": bubbles, "bubble_by_arithmetic": round(arithmetic, 3), "microbatches": args.microbatches, "kept": kept}
    result |= {"samples_per_second": round(len(batches) * args.batch_size / seconds, 1), "seconds": round(seconds, 3)}
    print(json.dumps(result), flush=True)
os._exit(0 if equal else 1)  # not sys.exit: a thread of Gloo can abort Python while it shuts down (pytorch#179291)
