"""ResNet-50 on ImageNet with Horovod, resumable: rank 0 writes a checkpoint after each epoch, and the next run goes on from the last one.

With --synthetic it needs neither ImageNet nor torchvision: noise in place of photographs, for trying and measuring.
"""

import argparse
import json
import math
import socket
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", default="/data/imagenet", help="folder with train/ and val/, in each a folder for every class")
parser.add_argument("--synthetic", type=int, default=0, metavar="N", help="N images of noise in place of --data")
parser.add_argument("--epochs", type=int, default=90, help="up to which epoch (default 90)")
parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step (default 32)")
parser.add_argument("--lr", type=float, default=0.0125, help="learning rate of SGD for one rank (default 0.0125)")
parser.add_argument("--warmup", type=float, default=5, help="epochs in which the rate grows to that of all ranks (default 5)")
parser.add_argument("--checkpoints", default="checkpoints", metavar="DIR", help="where they are written and found (default checkpoints)")
parser.add_argument("--image-size", type=int, default=224)
parser.add_argument("--width", type=int, default=64, help="channels of the first layer; 64 is ResNet-50 (default 64)")
parser.add_argument("--classes", type=int, default=1000)
parser.add_argument("--workers", type=int, default=4, help="processes that read images, per rank (default 4)")
args = parser.parse_args()


class Bottleneck(nn.Module):
    """Three convolutions, and a way around them."""

    def __init__(self, before, width, stride):
        super().__init__()
        after = 4 * width
        self.inner = nn.Sequential(
            *(nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after)),
        )
        self.around = nn.Identity()
        if stride != 1 or before != after:
            self.around = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        return torch.relu(self.inner(x) + self.around(x))


def resnet50(width, classes):
    layers = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    before = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(before, width << stage, 2 if stage and not block else 1))
            before = 4 * (width << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def datasets():
    """What is trained on, and what is tested on."""
    if args.synthetic:
        noise = torch.Generator().manual_seed(2022)
        parts = (args.synthetic, max(hvd.size(), args.synthetic // 4))
        images = [torch.randn(count, 3, args.image_size, args.image_size, generator=noise) for count in parts]
        return [TensorDataset(part, torch.randint(args.classes, (len(part),), generator=noise)) for part in images]
    if not Path(args.data, "train").is_dir():
        sys.exit(f"{args.data} has no folder train/: give --data DIR, or --synthetic 1024 for noise")
    from torchvision import transforms as t
    from torchvision.datasets import ImageFolder

    end = [t.ToTensor(), t.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    train = t.Compose([t.RandomResizedCrop(args.image_size), t.RandomHorizontalFlip(), *end])
    test = t.Compose([t.Resize(args.image_size * 8 // 7), t.CenterCrop(args.image_size), *end])
    return [ImageFolder(Path(args.data, "train"), train), ImageFolder(Path(args.data, "val"), test)]


def rate(epoch):
    """The rate of all ranks together after a warm-up, and a tenth of it each after 30, 60 and 80 epochs."""
    if epoch < args.warmup:
        return args.lr * (1 + (hvd.size() - 1) * epoch / args.warmup)
    return args.lr * hvd.size() * 0.1 ** sum(epoch >= step for step in (30, 60, 80))


# Step 1: initialise Horovod.  Step 2: pin a GPU to each rank of a node.
hvd.init()
rank, world_size, local_rank = hvd.rank(), hvd.size(), hvd.local_rank()
device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)

workers = 0 if args.synthetic else args.workers
train, test = (
    DataLoader(
        *(part, args.batch_size),
        sampler=DistributedSampler(part, num_replicas=world_size, rank=rank),
        num_workers=workers,
        pin_memory=device.type == "cuda",
    )
    for part in datasets()
)

# Step 3: scale the learning rate (see rate), and wrap the optimizer, which averages the gradients of all ranks.
network = resnet50(args.width, args.classes).to(device)
optimizer = torch.optim.SGD(network.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-5)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=network.named_parameters())

# Step 4: rank 0 takes up the last checkpoint if there is one, and gives its state to all.
done = 0
if rank == 0:
    found = sorted(Path(args.checkpoints).glob("epoch-*.pt"))
    if found:
        saved = torch.load(found[-1], map_location=device)
        network.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["epoch"]
        print(f"resumed from {found[-1]}", flush=True)
done = resumed_from = hvd.broadcast_object(done, root_rank=0)
# In this order: to have a state to receive, an optimizer without one makes a step, and its weight decay changes the parameters.
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
hvd.broadcast_parameters(network.state_dict(), root_rank=0)


def average(sums):
    """Mean loss and accuracy over what all ranks have seen; the sums are of loss, right answers, images."""
    loss, right, count = hvd.allreduce(torch.tensor(sums, dtype=torch.float64), op=hvd.Sum).tolist()
    return (loss / count, right / count) if count else (math.nan, math.nan)


def run(batches, start=None):
    """One pass; with ``start``, the number of the epoch, it learns."""
    network.train(start is not None)
    sums = [0.0, 0, 0]
    for batch, (x, y) in enumerate(batches):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        with torch.set_grad_enabled(start is not None):
            answers = network(x)
            loss = nn.functional.cross_entropy(answers, y)
        if start is not None:
            for group in optimizer.param_groups:
                group["lr"] = rate(start + batch / len(batches))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        right = (answers.argmax(1) == y).sum().item()
        sums = [sums[0] + loss.item() * len(y), sums[1] + right, sums[2] + len(y)]
    return average(sums)


started, loss, accuracy = time.perf_counter(), math.nan, math.nan
while done < args.epochs:
    train.sampler.set_epoch(done)
    loss, _ = run(train, done)
    _, accuracy = run(test)
    done += 1
    if rank == 0:
        print(f"epoch {done:2d}  loss {loss:.3f}  accuracy {accuracy:.3f}", flush=True)
        # Step 5: checkpoint on rank 0 only; under its name at once, so that a run that is killed here leaves a whole one.
        target = Path(args.checkpoints, f"epoch-{done:04d}.pt")
        target.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"epoch": done, "model": network.state_dict(), "optimizer": optimizer.state_dict()}, f"{target}.part")
        Path(f"{target}.part").replace(target)
seconds = time.perf_counter() - started

# Did all ranks train one network? Each parameter on every rank, minus that of rank 0.
mine = torch.nn.utils.parameters_to_vector(network.parameters()).detach().double().cpu()
everybody = hvd.allgather(mine.unsqueeze(0))
difference = (everybody - everybody[0]).abs().max().item()
sys.stdout.write(f"rank {rank} of {world_size}  local rank {local_rank}  host {socket.gethostname()}  device {device}\n")
sys.stdout.flush()
hvd.barrier()  # nobody leaves before all have arrived: a rank that closes its connections early makes the others fail
hvd.shutdown()
if rank == 0:
    images = (done - resumed_from) * len(train.sampler) * world_size
    result = {
        "accuracy": None if math.isnan(accuracy) else accuracy,
        "loss": None if math.isnan(loss) else loss,
        "epochs": done,
        "resumed_from": resumed_from,
        "world_size": world_size,
        "parameters_equal": difference == 0,
        "max_parameter_difference": difference,
        "samples_per_second": round(images / seconds, 1),
        "seconds": round(seconds, 3),
    }
    print(json.dumps(result), flush=True)
sys.exit(0 if difference == 0 else 1)
