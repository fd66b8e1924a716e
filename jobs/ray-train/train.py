"""Handwritten digits with Ray Train: the script says what a worker does and how many there are, Ray starts them and returns what they say.

Started once; Ray is there already, on all nodes, and ray.init() finds it. It runs on a laptop as well, where ray.init() starts Ray itself.
"""

import argparse
import json
import logging
import os
import socket
import tempfile
import time
from pathlib import Path

import ray
import torch
import torch.distributed as dist
from ray import train
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=16, help="images per worker and step (default 16)")
parser.add_argument("--lr", type=float, default=0.01, help="learning rate of Adam (default 0.01)")
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--storage", default="ray-results", help="directory for checkpoints, which all nodes see (default ./ray-results)")
args = parser.parse_args()


def work(config):
    """What each worker does; torch.distributed is set up already, and each worker knows its device."""
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    part, test = random_split(digits, [1437, 360], generator=torch.Generator().manual_seed(2022))
    batches = prepare_data_loader(DataLoader(part, batch_size=config["batch_size"], shuffle=True))  # each worker gets its own part
    rank, device = dist.get_rank(), train.torch.get_device()
    torch.manual_seed(rank)  # it differs on purpose: it is prepare_model that makes the networks equal, as DDP does
    network = prepare_model(torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)))
    optimizer = torch.optim.Adam(network.parameters(), lr=config["lr"])
    test_images, test_labels = (part.to(device) for part in test[:])
    hosts = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())

    started = time.perf_counter()
    for epoch in range(1, config["epochs"] + 1):
        if dist.get_world_size() > 1:
            batches.sampler.set_epoch(epoch)  # another shuffle each epoch, the same one on all workers
        for x, y in batches:
            optimizer.zero_grad()
            loss = functional.cross_entropy(network(x), y)
            loss.backward()  # here the gradients of all workers are averaged
            optimizer.step()
        with torch.no_grad():
            accuracy = (network(test_images).argmax(1) == test_labels).float().mean().item()
        parameters = torch.nn.utils.parameters_to_vector(network.parameters()).detach()
        everybody = [torch.empty_like(parameters) for _ in hosts]
        dist.all_gather(everybody, parameters)
        told = {"accuracy": accuracy, "loss": loss.item(), "epoch": epoch, "hosts": hosts, "seconds": time.perf_counter() - started}
        told["difference"] = max((one - everybody[0]).abs().max().item() for one in everybody)
        if rank == 0:
            print(f"epoch {epoch:2d}  loss {loss.item():.3f}  accuracy {accuracy:.3f}", flush=True)
        with tempfile.TemporaryDirectory() as directory:
            if rank == 0:
                torch.save(network.state_dict(), Path(directory, "network.pt"))
            # All workers report; what the result tells in the end is what was reported with a checkpoint, the first worker's.
            train.report(told, checkpoint=train.Checkpoint.from_directory(directory) if rank == 0 else None)


# Of what Ray does, only what goes wrong is told; else each report comes with a page, and what workers print comes twice.
os.environ |= {"RAY_TRAIN_ENABLE_PRINT_PATCH": "0", "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}
quiet = {"worker_process_setup_hook": lambda: logging.disable(logging.WARNING)}
ray.init(runtime_env=quiet, logging_config=ray.LoggingConfig(log_level="ERROR"))
workers = train.ScalingConfig(num_workers=args.workers, use_gpu=torch.cuda.is_available(), placement_strategy="SPREAD")
keep = train.RunConfig(storage_path=str(Path(args.storage).resolve()), checkpoint_config=train.CheckpointConfig(num_to_keep=1))
config = {"epochs": args.epochs, "batch_size": args.batch_size, "lr": args.lr}
result = TorchTrainer(work, train_loop_config=config, scaling_config=workers, run_config=keep).fit()
ray.shutdown()

told = result.metrics
print(
    json.dumps(
        {
            "accuracy": told["accuracy"],
            "loss": told["loss"],
            "epochs": told["epoch"],
            "world_size": len(told["hosts"]),
            "hosts": told["hosts"],
            "parameters_equal": told["difference"] == 0,
            "max_parameter_difference": told["difference"],
            "samples_per_second": round(1437 * told["epoch"] / told["seconds"], 1),
            "seconds": round(told["seconds"], 3),
            "checkpoint": result.checkpoint.path,
        }
    ),
    flush=True,
)
