"""Keep a GPU busy with 1 GiB of its memory, until this is ended."""

import torch

kept = torch.ones(1 << 30, dtype=torch.uint8, device="cuda")
matrix = torch.randn(4096, 4096, device="cuda")
print("BUSY", flush=True)
while True:
    for _ in range(50):
        matrix = torch.tanh(matrix @ matrix)
    torch.cuda.synchronize()
