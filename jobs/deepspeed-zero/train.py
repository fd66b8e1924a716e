"""Handwritten digits with DeepSpeed's ZeRO: the ranks share the optimizer state (stage 1), the gradients (2), the parameters (3).

Started by torchrun, once per rank, and neither pdsh nor a file of hosts is needed. Without GPUs it runs on CPUs, over Gloo.
"""

import argparse
import json
import os
import socket
import sys
import time

import deepspeed
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step (default 16)")
parser.add_argument("--lr", type=float, default=0.05, help="learning rate of SGD (default 0.05)")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--stage", type=int, default=2, choices=(0, 1, 2, 3), help="stage of ZeRO (default 2); 0: plain data parallel")
args = parser.parse_args()
TOLERANCE = 1e-4  # ranks add the gradients in another order than one process does

deepspeed.init_distributed()  # takes the rank, the size and the address from the variables of the launcher
rank, world_size = dist.get_rank(), dist.get_world_size()

images, labels = load_digits(return_X_y=True)  # 1,797 real digits of 8x8 pixels, split in the same way on every rank
digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
train, test, _ = random_split(digits, [1408, 384, 5], generator=torch.Generator().manual_seed(2022))
sampler = DistributedSampler(train, seed=args.seed, drop_last=True)
batches = DataLoader(train, batch_size=args.batch_size, sampler=sampler, drop_last=True)


def make_network(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))


# The seed differs by rank on purpose: initialize() makes the networks equal, by sending rank 0's to all.
network = make_network(args.seed + rank)
config = {
    "train_micro_batch_size_per_gpu": args.batch_size,
    "zero_optimization": {"stage": args.stage},
    "gradient_clipping": 0.0,  # by default DeepSpeed clips to a norm of 1.0
    "zero_allow_untested_optimizer": True,  # plain SGD, which the reference below can repeat to the last digits
}
optimizer = torch.optim.SGD(network.parameters(), lr=args.lr, momentum=0.9)
engine, *_ = deepspeed.initialize(model=network, optimizer=optimizer, config=config)
device = engine.device
test_images, test_labels = (part.to(device) for part in test[rank::world_size])

started = time.perf_counter()
for epoch in range(1, args.epochs + 1):
    sampler.set_epoch(epoch)  # another shuffle each epoch, the same one on all ranks
    loss_sum = torch.zeros((), device=device)
    for x, y in batches:
        loss = functional.cross_entropy(engine(x.to(device)), y.to(device))
        engine.backward(loss)  # here the gradients are averaged, and each rank keeps those that it needs
        engine.step()
        loss_sum += loss.detach()
    with torch.no_grad():
        right = (engine(test_images).argmax(1) == test_labels).sum()
    sums = torch.stack([loss_sum / len(batches) / world_size, right / len(test)])
    dist.all_reduce(sums)
    loss_all, accuracy = sums.tolist()
    if rank == 0:
        print(f"epoch {epoch:2d}  loss {loss_all:.3f}  accuracy {accuracy:.3f}", flush=True)
seconds = time.perf_counter() - started
with deepspeed.zero.GatheredParameters(list(network.parameters())):  # with stage 3 a rank holds a part of them only
    mine = torch.nn.utils.parameters_to_vector(network.parameters()).detach().cpu()


def reference():
    """Train the same network in one process, without DeepSpeed: each of its batches holds those of all ranks."""
    alone, size = make_network(args.seed), args.batch_size * world_size
    optimizer = torch.optim.SGD(alone.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(1, args.epochs + 1):
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(args.seed + epoch))
        for batch in order.split(size)[: len(train) // size]:
            x, y = train[batch.tolist()]
            optimizer.zero_grad()
            functional.cross_entropy(alone(x), y).backward()
            optimizer.step()
    return torch.nn.utils.parameters_to_vector(alone.parameters()).detach()


# Did all ranks train one network, and is it the one that one process would have trained?
everyone = [None] * world_size
dist.all_gather_object(everyone, mine)
difference, from_reference = (max((one - other).abs().max().item() for one in everyone) for other in (mine, reference()))
sys.stdout.write(f"rank {rank} of {world_size}  local rank {engine.local_rank}  host {socket.gethostname()}  device {device}\n")
sys.stdout.flush()
result = {"accuracy": accuracy, "loss": loss_all, "epochs": args.epochs, "world_size": world_size, "stage": args.stage}
result |= {"parameters_equal": difference == 0, "max_parameter_difference": difference, "reference_difference": from_reference}
result |= {"samples_per_second": round(len(batches) * args.batch_size * world_size * args.epochs / seconds, 1), "seconds": round(seconds, 3)}
if rank == 0:
    print(json.dumps(result), flush=True)
dist.barrier()  # nobody leaves before all have arrived: a rank that closes its connections early makes the others fail
dist.destroy_process_group()
os._exit(0 if difference == 0 and from_reference <= TOLERANCE else 1)  # a thread of Gloo can abort Python while it shuts down
