"""Fail as scripts on GPUs do, in the way that the argument names."""

import os
import sys

import torch

kind = sys.argv[1]
if kind in ("no-gpu", "checkpoint-without-gpu"):
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # CUDA begins with the first tensor


class Longer:
    """A buffer that claims to be longer than it is, as a wrong extension in CUDA makes one."""

    def __init__(self, buffer: torch.Tensor) -> None:
        """Take what it really is."""
        self.__cuda_array_interface__ = {
            "shape": (1 << 34,),
            "typestr": "<f4",
            "data": (buffer.data_ptr(), False),
            "version": 2,
        }


if kind == "out-of-memory":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    kept = []
    while True:
        kept.append(torch.empty(1 << 32, dtype=torch.uint8, device="cuda"))
elif kind == "memory-of-cublas":
    matrix = torch.ones(4096, 4096, device="cuda")
    kept, size = [], 1 << 32
    while size >= 1 << 21:
        try:
            kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            size //= 2
    print((matrix @ matrix).sum().item())
elif kind == "device-ordinal":
    torch.cuda.set_device(torch.cuda.device_count())
    torch.zeros(1, device="cuda")
elif kind == "label-out-of-range":
    scores = torch.randn(8, 10, device="cuda", requires_grad=True)
    torch.nn.functional.cross_entropy(scores, torch.full((8,), 10, device="cuda")).backward()
    torch.cuda.synchronize()
elif kind == "illegal-access":
    print(torch.as_tensor(Longer(torch.ones(4, device="cuda"))).sum().item())
elif kind == "no-gpu":
    torch.zeros(1, device="cuda")
elif kind == "checkpoint":
    torch.save({"weights": torch.zeros(4, device="cuda")}, "saved.pt")
    os.execv(sys.executable, [sys.executable, __file__, "checkpoint-without-gpu"])
elif kind == "checkpoint-without-gpu":
    torch.load("saved.pt")
