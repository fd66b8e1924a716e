"""Print the version of torch, and how many GPUs it can use."""

import torch

print("TORCH", torch.__version__, torch.cuda.device_count(), flush=True)
