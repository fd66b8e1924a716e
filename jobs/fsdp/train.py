"""A small GPT on a play of Shakespeare with FSDP2 (`fully_shard`): each rank holds a part of every weight, gradient and Adam state.

The checkpoint is written by all ranks together (DCP), and another number of ranks can go on from it. Started by torchrun.
"""

import argparse
import copy
import json
import os
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--batch-size", type=int, default=24, help="pieces of text per step, of all ranks together (default 24)")
parser.add_argument("--lr", type=float, default=0.003, help="learning rate of AdamW (default 0.003)")
parser.add_argument("--text", type=Path, default=Path(__file__).with_name("coriolanus.txt"), metavar="FILE")
parser.add_argument("--checkpoint", type=Path, metavar="DIRECTORY", help="go on from the newest checkpoint in it, and save one at the end")
parser.add_argument("--save-every", type=int, default=0, metavar="STEPS", help="save on the way as well")
parser.add_argument("--tolerance", type=float, default=1e-4, help="largest difference of a loss or norm to one process (default 0.0001)")
args = parser.parse_args()
if args.checkpoint and not os.access(args.checkpoint if args.checkpoint.exists() else args.checkpoint.absolute().parent, os.W_OK):
    sys.exit(f"no checkpoint can be written to {args.checkpoint}: choose another directory with --checkpoint")
if not args.text.is_file():
    sys.exit(f"{args.text} is missing: copy the whole folder of this script, or name a text with --text FILE")
text = torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8)
world_size, length, width, heads = int(os.environ["WORLD_SIZE"]), 64, 64, 4
if len(text) <= length + 1 or text.max() > 127:
    sys.exit(f"{args.text} must be ASCII, and longer than the {length} characters that the network reads at a time")
if args.batch_size % world_size:
    sys.exit(f"a batch of {args.batch_size} cannot be split among {world_size} ranks: choose a multiple with --batch-size")
# A checkpoint is complete when it has its list of contents (.metadata), which DCP writes last: what a killed run left is passed over.
done = max((int(path.parent.name[5:]) for path in args.checkpoint.glob("step-*/.metadata")), default=0) if args.checkpoint else 0
if done >= args.steps:
    sys.exit(f"{args.checkpoint} has step {done} already: choose more with --steps, or another directory with --checkpoint")

local_rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
mesh = init_device_mesh(device.type, (world_size,), mesh_dim_names=("shard",))  # with NCCL on GPUs, with Gloo on CPUs
rank = dist.get_rank()


class Block(nn.Module):
    """Attention to all earlier characters, and two layers for each character."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, 2))
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.characters, self.places = nn.Embedding(128, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 128))

    def forward(self, x):
        x = self.characters(x) + self.places(torch.arange(length, device=x.device))
        for block in self.blocks:
            x = block(x)
        return functional.log_softmax(self.head(x), 2)


def train(model, optimizer, step, part, parts):
    """One step on a part of the pieces of text that belong to this step; the same pieces for any number of ranks."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - length - 1, (args.batch_size,), generator=generator)[part::parts]
    pieces = torch.stack([text[start : start + length + 1] for start in starts]).long().to(device)
    loss = functional.nll_loss(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()  # with FSDP: gathers the weights of a block, and leaves each rank its part of the averaged gradient
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # of the whole gradient, not of a rank's part
    optimizer.step()
    return torch.stack([loss.detach(), norm.full_tensor() if isinstance(norm, DTensor) else norm])


torch.manual_seed(0)  # all ranks make the same network; then each keeps its part
model = GPT().to(device)
alone = copy.deepcopy(model)
optimizer_alone = torch.optim.AdamW(alone.parameters(), lr=args.lr)
for block in model.blocks:
    fully_shard(block, mesh=mesh)  # its weights are gathered for its own forward and backward, and freed after it
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
held, whole = (sum(p.numel() for p in parts) for parts in ([p.to_local() for p in model.parameters()], alone.parameters()))
sys.stdout.write(f"rank {rank} of {world_size}  host {socket.gethostname()}  device {device}  holds {held} of {whole} parameters\n")

done = torch.tensor(done, device=device)
dist.broadcast(done, 0)  # all go on from the checkpoint that rank 0 sees
first = done.item() + 1


def checkpoint(step):
    return str(args.checkpoint / f"step-{step:06d}")


if first > 1:
    weights, states = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": states}, checkpoint_id=checkpoint(first - 1))  # each rank reads what is its part now
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)

losses = []
started = time.perf_counter()
for step in range(first, args.steps + 1):
    losses.append(train(model, optimizer, step, rank, world_size))
    if args.checkpoint and (step == args.steps or (args.save_every and step % args.save_every == 0)):
        weights, states = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": states}, checkpoint_id=checkpoint(step))
    if rank == 0 and step % 10 == 0:
        print(f"step {step:3d}  loss {losses[-1][0].item():.3f}", flush=True)
seconds = time.perf_counter() - started

# The same steps with all pieces of text in one process, from the first one. Resumed or not, losses and gradient norms must be the same.
measured = torch.stack(losses)
dist.all_reduce(measured)
measured = measured / world_size  # the loss of all pieces; the norm is that of all ranks already
difference = torch.zeros(1, device=device)
if rank == 0:
    reference = torch.stack([train(alone, optimizer_alone, step, 0, 1) for step in range(1, args.steps + 1)])
    difference[0] = (measured - reference[first - 1 :]).abs().max()
dist.broadcast(difference, 0)
equal = difference.item() <= args.tolerance  # what is left is the order of additions in 32-bit numbers
sys.stdout.flush()
dist.barrier()  # nobody leaves before all have arrived: a rank that closes its connections early makes the others fail
dist.destroy_process_group()
if rank == 0:
    result = {"loss": measured[-1, 0].item(), "loss_of_one_process": reference[-1, 0].item(), "max_difference": difference.item()}
    result |= {"tolerance": args.tolerance, "equal_to_one_process": equal, "steps": args.steps, "resumed_after": first - 1}
    result |= {"world_size": world_size, "parameters": whole, "parameters_held": held}
    result |= {"samples_per_second": round(args.batch_size * len(losses) / seconds, 1), "seconds": round(seconds, 3)}
    print(json.dumps(result), flush=True)
os._exit(0 if equal else 1)  # not sys.exit: a thread of Gloo can abort Python while it shuts down (pytorch#179291)
