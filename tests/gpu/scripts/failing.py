"""Fail as scripts on GPUs do: failing.py out-of-memory|device-ordinal."""

import os
import sys

import torch

kind = sys.argv[1]
if kind == "out-of-memory":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    kept = []
    while True:
        kept.append(torch.empty(1 << 32, dtype=torch.uint8, device="cuda"))
elif kind == "device-ordinal":
    torch.cuda.set_device(torch.cuda.device_count())
    torch.zeros(1, device="cuda")
