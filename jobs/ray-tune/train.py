"""Settings for a network that reads handwritten digits, searched by Ray Tune: many trials at once, and bad ones are stopped early (ASHA).

Started once; Ray is there already, on all nodes, and ray.init() finds it. It runs on a laptop as well, where ray.init() starts Ray itself.
"""

import argparse
import json
import socket
import time
from pathlib import Path

import ray
import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--trials", type=int, default=8)
parser.add_argument("--epochs", type=int, default=12, help="of the trials that are not stopped before (default 12)")
parser.add_argument("--storage", default="ray-results", help="directory for reports, which all nodes see (default ./ray-results)")
args = parser.parse_args()


def trial(config):
    """One trial: it trains with one choice of settings, and reports after each epoch; Tune may stop it there."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    part, test = random_split(digits, [1437, 360], generator=torch.Generator().manual_seed(2022))
    batches = DataLoader(part, batch_size=config["batch_size"], shuffle=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layers = [torch.nn.Linear(64, config["width"]), torch.nn.ReLU(), torch.nn.Linear(config["width"], 10)]
    network = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=config["lr"], momentum=0.9)
    test_images, test_labels = (part.to(device) for part in test[:])
    while True:  # as many epochs as Tune lets it
        for x, y in batches:
            optimizer.zero_grad()
            loss = functional.cross_entropy(network(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (network(test_images).argmax(1) == test_labels).float().mean().item()
        tune.report({"accuracy": accuracy, "loss": loss.item(), "host": socket.gethostname()})


started = time.perf_counter()
ray.init()
space = {
    "lr": tune.loguniform(1e-4, 1e0),
    "width": tune.choice([16, 32, 64, 128]),
    "batch_size": tune.choice([8, 16, 32, 64]),
}
# After 1, 3, 9 ... epochs only the best third of the trials goes on.
asha = ASHAScheduler(metric="accuracy", mode="max", max_t=args.epochs, grace_period=1, reduction_factor=3)
tuner = tune.Tuner(
    tune.with_resources(trial, {"cpu": 1, "gpu": 1 if torch.cuda.is_available() else 0}),
    param_space=space,
    tune_config=tune.TuneConfig(num_samples=args.trials, scheduler=asha, reuse_actors=True),
    run_config=tune.RunConfig(storage_path=str(Path(args.storage).resolve()), verbose=1),
)
results = tuner.fit()
best = results.get_best_result("accuracy", "max")
epochs = [result.metrics["training_iteration"] for result in results]
told = {
    "accuracy": best.metrics["accuracy"],
    "settings": best.config,
    "trials": len(results),
    "failed": results.num_errors,
    "epochs": epochs,
    "stopped_early": sum(count < args.epochs for count in epochs),
    "hosts": sorted({result.metrics["host"] for result in results}),
    "seconds": round(time.perf_counter() - started, 3),
}
ray.shutdown()
print(json.dumps(told), flush=True)
