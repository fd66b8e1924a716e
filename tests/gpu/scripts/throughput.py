"""Train on one GPU, and print how many samples it took per second; the best of several rounds."""

import json
import time

import torch

torch.manual_seed(2022)
layers = [torch.nn.Linear(4096, 4096), torch.nn.GELU()] * 4
model = torch.nn.Sequential(*layers, torch.nn.Linear(4096, 10)).to("cuda", torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
labels = torch.randint(0, 10, (4096,), device="cuda")


def seconds(steps: int) -> float:
    """Return how long some steps take."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch).float(), labels).backward()
        optimizer.step()
    torch.cuda.synchronize()
    return time.perf_counter() - start


seconds(20)
print("SPEED " + json.dumps(100 * len(batch) / min(seconds(100) for _ in range(5))), flush=True)
