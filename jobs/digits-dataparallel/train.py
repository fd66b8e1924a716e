"""Handwritten digits with DataParallel (DP): one process copies the network to every GPU in each step, and gives each a part of the batch.

It takes one line more than a script for one GPU, and it stays on one node. DDP (`digits-ddp`) is faster with two GPUs already: there
each GPU has a process of its own, the network is copied once, and only gradients travel.
"""

import argparse
import json
import sys
import time

import torch
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=64, help="images per step, on all GPUs together (default 64)")
parser.add_argument("--lr", type=float, default=0.01, help="learning rate of Adam (default 0.01)")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

gpus = torch.cuda.device_count()
device = torch.device("cuda" if gpus else "cpu")

# 1,797 real digits of 8x8 pixels, split in the same way in every run.
images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
train, test = random_split(digits, [1437, 360], generator=torch.Generator().manual_seed(2022))
torch.manual_seed(args.seed)
batches = DataLoader(train, batch_size=args.batch_size, shuffle=True)
test_images, test_labels = (part.to(device) for part in test[:])

network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(device)
model = torch.nn.DataParallel(network)  # this is the line; without GPUs it hands everything to the network as it is
optimizer = torch.optim.Adam(network.parameters(), lr=args.lr)

if device.type == "cuda":
    torch.cuda.reset_peak_memory_stats()
started = time.perf_counter()
for epoch in range(1, args.epochs + 1):
    loss_sum = 0.0
    for x, y in batches:
        x, y = x.to(device), y.to(device)  # to the first GPU, which hands out parts and gathers the answers: it is the busiest one
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        loss_sum += loss.item() * len(y)
    with torch.no_grad():
        accuracy = (network(test_images).argmax(1) == test_labels).sum().item() / len(test_labels)
    print(f"epoch {epoch:2d}  loss {loss_sum / len(train):.3f}  accuracy {accuracy:.3f}", flush=True)
seconds = time.perf_counter() - started

result = {
    "accuracy": accuracy,
    "loss": loss_sum / len(train),
    "epochs": args.epochs,
    "gpus": gpus,
    "memory_mb_by_gpu": [round(torch.cuda.max_memory_allocated(gpu) / 1e6, 1) for gpu in range(gpus)],
    "samples_per_second": round(len(train) * args.epochs / seconds, 1),
    "seconds": round(seconds, 3),
}
print(json.dumps(result), flush=True)
sys.exit(0)
