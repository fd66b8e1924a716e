"""Handwritten digits with elastic Horovod: ranks may die and come back, and training goes on from the last commit.

Started by Horovod's elastic driver, once per rank; whenever the ranks change, every one of them comes back to where `train` is called.
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
from torch.utils.data import DataLoader, TensorDataset, random_split

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step (default 16)")
parser.add_argument("--lr", type=float, default=0.05, help="learning rate of SGD for one rank (default 0.05)")
parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each epoch, to have time for mischief (default 0)")
args = parser.parse_args()

hvd.init()
device = torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)

# 1,797 real digits of 8x8 pixels, split in the same way on every rank and in every run.
images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
train_set, test = random_split(digits, [1437, 360], generator=torch.Generator().manual_seed(2022))
# It gives each rank its part, and when ranks change in the middle of an epoch, what is left of it is shared out anew.
sampler = hvd.elastic.ElasticSampler(train_set)
batches = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)

network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(device)
sgd = torch.optim.SGD(network.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(sgd, named_parameters=network.named_parameters())


def scale_the_rate():
    """A step sees as many times the images as there are ranks: when their number changes, so does the learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = args.lr * hvd.size()


def test_together():
    """Loss and accuracy: each rank tests its share, the sums over all ranks are those of the whole test set."""
    x, y = (part.to(device) for part in test[hvd.rank() :: hvd.size()])
    with torch.no_grad():
        answers = network(x)
    loss = functional.cross_entropy(answers, y, reduction="sum").item()
    sums = torch.tensor([loss, (answers.argmax(1) == y).sum().item(), len(y)], dtype=torch.float64)
    sums = hvd.allreduce(sums, op=hvd.Sum)
    return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()


@hvd.elastic.run
def train(state):
    while state.epoch < args.epochs:
        for batch, (x, y) in enumerate(batches):
            optimizer.zero_grad()
            functional.cross_entropy(network(x.to(device)), y.to(device)).backward()
            optimizer.step()
            state.sampler.record_batch(batch, args.batch_size)
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        loss, accuracy = test_together()
        state.worlds = [*state.worlds, hvd.size()]
        if hvd.rank() == 0:
            print(f"epoch {state.epoch:2d}  loss {loss:.3f}  accuracy {accuracy:.3f}  {hvd.size()} ranks", flush=True)
        time.sleep(args.pause)
        # Who dies after this costs nothing of the epoch; here the ranks also learn of nodes that have come back.
        state.commit()
    return loss, accuracy


started = time.perf_counter()
state = hvd.elastic.TorchState(model=network, optimizer=optimizer, sampler=sampler, epoch=0, worlds=[])
state.register_reset_callbacks([scale_the_rate])
loss, accuracy = train(state)
seconds = time.perf_counter() - started

# Did all ranks train one network? Each parameter on every rank, minus that of rank 0.
mine = torch.nn.utils.parameters_to_vector(network.parameters()).detach().double()
everybody = hvd.allgather(mine.unsqueeze(0))
difference = (everybody - everybody[0]).abs().max().item()
rank, world_size = hvd.rank(), hvd.size()
sys.stdout.write(f"rank {rank} of {world_size}  local rank {hvd.local_rank()}  host {socket.gethostname()}  device {device}\n")
sys.stdout.flush()
hvd.barrier()  # nobody leaves before all have arrived: a rank that closes its connections early makes the others fail
hvd.shutdown()
if rank == 0:
    result = {
        "accuracy": accuracy,
        "loss": loss,
        "epochs": args.epochs,
        "world_size": world_size,
        "worlds": state.worlds,
        "parameters_equal": difference == 0,
        "max_parameter_difference": difference,
        "samples_per_second": round(len(train_set) * args.epochs / seconds, 1),
        "seconds": round(seconds, 3),
    }
    print(json.dumps(result), flush=True)
sys.exit(0 if difference == 0 else 1)
