"""Handwritten digits with Horovod, twice: the ranks' updates averaged, and combined by Adasum.

Adasum adds two updates that point in different directions, and averages two that point in the same one. So it needs no learning rate that
grows with the number of ranks. Started by srun, mpirun or horovodrun, once per rank; the number of ranks must be a power of two.
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
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step (default 16)")
parser.add_argument("--lr", type=float, default=0.05, help="learning rate of SGD, the same for any number of ranks (default 0.05)")
parser.add_argument("--loss-of-accuracy", type=float, default=0.02, help="Adasum may be so much below the average (default 0.02)")
parser.add_argument("--tolerance", type=float, default=1e-5, help="largest difference of Adasum to its formula (default 0.00001)")
args = parser.parse_args()

hvd.init()
rank, world_size, local_rank = hvd.rank(), hvd.size(), hvd.local_rank()
if world_size & (world_size - 1):
    sys.exit(f"Adasum needs 1, 2, 4, 8, ... ranks, and these are {world_size}")
device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)

# 1,797 real digits of 8x8 pixels, split in the same way on every rank and in every run.
images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
train, test = random_split(digits, [1437, 360], generator=torch.Generator().manual_seed(2022))
sampler = DistributedSampler(train, num_replicas=world_size, rank=rank, seed=0)
batches = DataLoader(train, batch_size=args.batch_size, sampler=sampler)
test_images, test_labels = (part.to(device) for part in test[rank::world_size])


def adasum(vectors):
    """The formula, in one process: neighbors first, then their results (arXiv:2006.02924, section 3)."""
    if len(vectors) == 1:
        return vectors[0]
    pairs = zip(vectors[0::2], vectors[1::2], strict=True)
    return adasum([a * (1 - a @ b / (2 * a @ a)) + b * (1 - a @ b / (2 * b @ b)) for a, b in pairs])


def run(name, op):
    """Train with one way to combine; the accuracy, and by how much the ranks' networks differ."""
    torch.manual_seed(rank)
    network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(device)
    hvd.broadcast_parameters(network.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(network.parameters(), lr=args.lr)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=network.named_parameters(), op=op)
    started, seen, steps = time.perf_counter(), 0, 0
    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        for x, y in batches:
            optimizer.zero_grad()
            loss = functional.cross_entropy(network(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            seen, steps = seen + len(y), steps + 1
    seconds = time.perf_counter() - started
    with torch.no_grad():
        right = (network(test_images).argmax(1) == test_labels).sum().item()
    sums = hvd.allreduce(torch.tensor([seen, right, len(test_labels), loss.item()], dtype=torch.float64, device=device), op=hvd.Sum)
    mine = torch.nn.utils.parameters_to_vector(network.parameters()).detach().double()
    everybody = hvd.allgather(mine.unsqueeze(0))
    row = {"accuracy": (sums[1] / sums[2]).item(), "loss": (sums[3] / world_size).item(), "seconds": round(seconds, 3)}
    row |= {"samples_per_second": round(sums[0].item() / seconds, 1), "difference": (everybody - everybody[0]).abs().max().item()}
    if rank == 0:
        print(f"{name:8} {steps} steps  loss {row['loss']:.3f}  accuracy {row['accuracy']:.3f}", flush=True)
    return row


# What Horovod makes of one vector of each rank, beside the formula.
vector = torch.randn(1000, generator=torch.Generator().manual_seed(rank)).to(device) + 0.5
combined = hvd.allreduce(vector, op=hvd.Adasum, name="vector")
expected = adasum(list(hvd.allgather(vector.unsqueeze(0)).double()))
formula = (combined.double() - expected).abs().max().item()

average, sums = run("average", hvd.Average), run("adasum", hvd.Adasum)
difference = max(average["difference"], sums["difference"])
good = difference == 0 and formula <= args.tolerance and sums["accuracy"] >= average["accuracy"] - args.loss_of_accuracy
sys.stdout.write(f"rank {rank} of {world_size}  local rank {local_rank}  host {socket.gethostname()}  device {device}\n")
sys.stdout.flush()
hvd.barrier()  # nobody leaves before all have arrived: a rank that closes its connections early makes the others fail
hvd.shutdown()
if rank == 0:
    result = {"accuracy": sums["accuracy"], "accuracy_of_average": average["accuracy"], "loss": sums["loss"], "loss_of_average": average["loss"]}
    result |= {"max_formula_difference": formula, "tolerance": args.tolerance, "as_accurate_and_by_the_formula": good, "epochs": args.epochs}
    result |= {"world_size": world_size, "parameters_equal": difference == 0, "max_parameter_difference": difference}
    result |= {"samples_per_second": sums["samples_per_second"], "seconds": round(average["seconds"] + sums["seconds"], 3)}
    print(json.dumps(result), flush=True)
sys.exit(0 if good else 1)
