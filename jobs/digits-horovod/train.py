"""Handwritten digits with Horovod: a script for one GPU, and the five steps (numbered below) that make it one for many.

Started by srun, mpirun or horovodrun, once per rank; hvd.init() finds out which rank it is and how many there are.
"""

import argparse
import json
import socket
import sys
import time

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step (default 16)")
parser.add_argument("--lr", type=float, default=0.05, help="learning rate of SGD for one rank (default 0.05)")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--checkpoint", default="", metavar="FILE", help="where rank 0 saves the network after each epoch")
args = parser.parse_args()

# Step 1: initialise Horovod.
hvd.init()
rank, world_size, local_rank = hvd.rank(), hvd.size(), hvd.local_rank()

# Step 2: pin a GPU to each rank of a node; without GPUs, the same script runs on CPUs.
device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)

# 1,797 real digits of 8x8 pixels, split in the same way on every rank and in every run.
images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
train, test = random_split(digits, [1437, 360], generator=torch.Generator().manual_seed(2022))
# The sampler gives each rank its own part; all parts are equal in length, because a rank with one step more would wait for ever.
sampler = DistributedSampler(train, num_replicas=world_size, rank=rank, seed=args.seed)
batches = DataLoader(train, batch_size=args.batch_size, sampler=sampler)
test_images, test_labels = (part.to(device) for part in test[rank::world_size])

# The seed differs by rank on purpose: without step 4 the ranks would train different networks.
torch.manual_seed(args.seed + rank)
network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(device)

# Step 3: scale the learning rate by the number of ranks (a step sees that many times the images), and wrap the optimizer,
# which from then on averages the gradients of all ranks before each step.
optimizer = torch.optim.SGD(network.parameters(), lr=args.lr * world_size, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=network.named_parameters())

# Step 4: broadcast the state of rank 0, so that all ranks start with the same network.
hvd.broadcast_parameters(network.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

started = time.perf_counter()
for epoch in range(1, args.epochs + 1):
    sampler.set_epoch(epoch)  # another shuffle each epoch, the same one on all ranks
    loss_sum, seen = 0.0, 0
    for x, y in batches:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = functional.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()  # here Horovod waits for the averages of all ranks
        loss_sum, seen = loss_sum + loss.item() * len(y), seen + len(y)

    # Each rank tests its share; the sums over all ranks are those of the whole test set.
    with torch.no_grad():
        right = (network(test_images).argmax(1) == test_labels).sum().item()
    sums = torch.tensor([loss_sum, seen, right, len(test_labels)], dtype=torch.float64, device=device)
    sums = hvd.allreduce(sums, op=hvd.Sum)
    loss_all, accuracy = (sums[0] / sums[1]).item(), (sums[2] / sums[3]).item()
    if rank == 0:
        print(f"epoch {epoch:2d}  loss {loss_all:.3f}  accuracy {accuracy:.3f}", flush=True)

    # Step 5: checkpoint on rank 0 only; all ranks have the same network, and two that write one file spoil it.
    if rank == 0 and args.checkpoint:
        torch.save({"epoch": epoch, "model": network.state_dict(), "optimizer": optimizer.state_dict()}, args.checkpoint)
seconds = time.perf_counter() - started

# Did all ranks train one network? Each parameter on every rank, minus that of rank 0.
mine = torch.nn.utils.parameters_to_vector(network.parameters()).detach().double()
everybody = hvd.allgather(mine.unsqueeze(0))
difference = (everybody - everybody[0]).abs().max().item()

# One write for the text and its end of line: print makes two, and the lines of two ranks could mix.
sys.stdout.write(f"rank {rank} of {world_size}  local rank {local_rank}  host {socket.gethostname()}  device {device}\n")
sys.stdout.flush()
hvd.barrier()  # nobody leaves before all have arrived: a rank that closes its connections early makes the others fail
hvd.shutdown()
if rank == 0:
    result = {
        "accuracy": accuracy,
        "loss": loss_all,
        "epochs": args.epochs,
        "world_size": world_size,
        "parameters_equal": difference == 0,
        "max_parameter_difference": difference,
        "samples_per_second": round(sums[1].item() * args.epochs / seconds, 1),
        "seconds": round(seconds, 3),
    }
    print(json.dumps(result), flush=True)
sys.exit(0 if difference == 0 else 1)
