"""Handwritten digits on a mesh of ranks in three dimensions: data x pipeline x tensor.

Each group of images has a copy of the network (data), of which each stage has some blocks (pipeline), whose matrices are split among ranks
(tensor). Ranks that split a matrix talk most, so they are neighbors on one node. Started by torchrun.
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
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--tensor-parallel-size", dest="tensor", type=int, default=2, metavar="RANKS", help="that share each matrix (default 2)")
parser.add_argument("--pipeline-parallel-size", dest="pipeline", type=int, default=2, metavar="STAGES", help="that share the blocks (default 2); the rest of the ranks share the images")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=96, help="images per step, of all ranks together (default 96)")
parser.add_argument("--microbatches", type=int, default=4, help="parts in which a batch goes through the stages (default 4)")
parser.add_argument("--blocks", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.1, help="learning rate of SGD (default 0.1)")
parser.add_argument("--dtype", choices=("float32", "float64"), default="float64", help="float64 leaves less to rounding (default)")
parser.add_argument("--tolerance", type=float, default=1e-9, help="largest difference of a loss to that of one process (default 1e-9)")
args = parser.parse_args()
torch.set_default_dtype(getattr(torch, args.dtype))

width, world_size, local_rank = 64, int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
data = world_size // (args.tensor * args.pipeline)
if data * args.tensor * args.pipeline != world_size:
    sys.exit(f"{world_size} ranks are no multiple of {args.pipeline} stages x {args.tensor} parts of a matrix: change --tensor-parallel-size, --pipeline-parallel-size or the ranks")
if args.blocks % args.pipeline or 4 * width % args.tensor:
    sys.exit(f"{args.blocks} blocks and matrices of {4 * width} columns cannot be split into {args.pipeline} stages x {args.tensor} parts")
if args.microbatches < args.pipeline or args.batch_size % (data * args.microbatches):
    sys.exit(f"a batch of {args.batch_size} cannot be split into {data} groups of {args.microbatches} parts for {args.pipeline} stages")
device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
mesh = init_device_mesh(device.type, (data, args.pipeline, args.tensor), mesh_dim_names=("data", "pipeline", "tensor"))
rank = dist.get_rank()
group, stage_number, part_number = mesh.get_coordinate()
last = args.pipeline - 1


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(functional.relu(self.up(self.norm(x))))


def picture(hosts):
    """The mesh as a table: a line for each group of images, a column for each part of each stage."""
    per_stage = args.blocks // args.pipeline
    name = [f"stage {s}: blocks {s * per_stage}-{(s + 1) * per_stage - 1}" for s in range(args.pipeline)]
    cells = [[[f"rank {r} {hosts[r]}" for r in parts] for parts in stages] for stages in mesh.mesh.tolist()]
    column = max(11, *(len(cell) for line in cells for parts in line for cell in parts)) + 2
    wide = max(column * args.tensor, max(map(len, name)) + 2)
    parts = "".join(f"part {t} of {args.tensor}".ljust(column) for t in range(args.tensor)).ljust(wide)
    yield " " * 16 + "| ".join(text.ljust(wide) for text in name)
    yield " " * 16 + "| ".join([parts] * args.pipeline)
    for number, line in enumerate(cells):
        share = f"images {number} of {data}".ljust(16)
        yield share + "| ".join("".join(cell.ljust(column) for cell in row).ljust(wide) for row in line)


hosts = [None] * world_size
dist.all_gather_object(hosts, socket.gethostname())
if rank == 0:
    sys.stdout.write("\n".join([f"mesh {data} x {args.pipeline} x {args.tensor} (data x pipeline x tensor)", *(line.rstrip() for line in picture(hosts)), ""]))
    sys.stdout.flush()

torch.manual_seed(0)  # all ranks make the same network; then each keeps its part
blocks = [Block() for _ in range(args.blocks)]
alone = nn.Sequential(nn.Linear(64, width), *blocks, nn.LayerNorm(width), nn.Linear(width, 10)).to(device)
optimizer_alone = torch.optim.SGD(alone.parameters(), lr=args.lr, momentum=0.9)
layers = copy.deepcopy(list(alone))
per_stage = args.blocks // args.pipeline
mine = slice(0 if stage_number == 0 else 1 + stage_number * per_stage, 1 + (stage_number + 1) * per_stage + 2 * (stage_number == last))
stage = nn.Sequential(*layers[mine])
for block in stage:
    if isinstance(block, Block):
        parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})  # tensor: some columns, then some rows
fully_shard(stage, mesh=mesh["data"])  # data: averages the gradients of the groups, and shares the weights among them
schedule = Schedule1F1B(  # pipeline: to the same part of the next stage
    PipelineStage(stage, stage_number, args.pipeline, device, group=mesh.get_group("pipeline")), args.microbatches, loss_fn=functional.cross_entropy
)
optimizer = torch.optim.SGD(stage.parameters(), lr=args.lr, momentum=0.9)
held, whole = (sum(p.numel() for p in parts) for parts in ([p.to_local() for p in stage.parameters()], alone.parameters()))

# 1,797 real digits of 8x8 pixels, split in the same way on every rank and in every run.
images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images / 16, dtype=torch.get_default_dtype(), device=device), torch.tensor(labels, device=device)
train, test = torch.randperm(1797, generator=torch.Generator().manual_seed(2022)).to(device).split([1413, 384])
batches = [
    batch
    for epoch in range(args.epochs)
    for batch in train[torch.randperm(1413, generator=torch.Generator().manual_seed(epoch)).to(device)].split(args.batch_size)
    if len(batch) == args.batch_size
]


def step(x, y):
    """One step of this rank's group of images; the mean loss of the group, where the last stage is."""
    losses = []
    optimizer.zero_grad()
    inputs = [x] if stage_number == 0 else []
    schedule.step(*inputs, target=y if stage_number == last else None, losses=losses if stage_number == last else None, return_outputs=False)
    optimizer.step()
    return torch.stack(losses).mean() if losses else torch.zeros((), device=device)


started = time.perf_counter()
losses = torch.stack([step(images[batch[group::data]], labels[batch[group::data]]) for batch in batches])
seconds = time.perf_counter() - started
dist.all_reduce(losses)  # the last stage of each group, and each of its parts of a matrix, has the group's loss; others have zeros
losses = (losses / (data * args.tensor)).tolist()
right = torch.zeros((), device=device)
for batch in (part[group::data] for part in test.split(args.batch_size) if len(part) == args.batch_size):
    output = schedule.eval(*([images[batch]] if stage_number == 0 else []), target=labels[batch], losses=[])
    if stage_number == last and part_number == 0:
        right += (output.argmax(1) == labels[batch]).sum()
dist.all_reduce(right)
accuracy = right.item() / (len(test) // args.batch_size * args.batch_size)

# The same steps in one process, with all blocks, whole matrices and all images: the losses of all steps must be the same.
difference = torch.zeros(1, device=device)
if rank == 0:
    reference = []
    for batch in batches:
        loss = functional.cross_entropy(alone(images[batch]), labels[batch])
        optimizer_alone.zero_grad()
        loss.backward()
        optimizer_alone.step()
        reference.append(loss.item())
    difference += max(abs(one - other) for one, other in zip(losses, reference, strict=True))
dist.broadcast(difference, 0)
equal = difference.item() <= args.tolerance  # what is left is the order of additions
dist.barrier()  # nobody leaves before all have arrived: a rank that closes its connections early makes the others fail
dist.destroy_process_group()
if rank == 0:
    result = {"accuracy": accuracy, "loss": losses[-1], "loss_of_one_process": reference[-1], "max_loss_difference": difference.item()}
    result |= {"tolerance": args.tolerance, "equal_to_one_process": equal, "epochs": args.epochs, "world_size": world_size}
    result |= {"mesh": {"data": data, "pipeline": args.pipeline, "tensor": args.tensor}, "parameters": whole, "parameters_held": held}
    result |= {"samples_per_second": round(len(batches) * args.batch_size / seconds, 1), "seconds": round(seconds, 3)}
    print(json.dumps(result), flush=True)
os._exit(0 if equal else 1)  # not sys.exit: a thread of Gloo can abort Python while it shuts down (pytorch#179291)
