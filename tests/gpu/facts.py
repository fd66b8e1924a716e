"""What a machine with a GPU is: for the report, and for tests to know what they can ask."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

_TORCH = """
import json, torch
names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
nccl = ".".join(map(str, torch.cuda.nccl.version())) if names else ""
print(json.dumps([torch.__version__, torch.version.cuda or "", nccl, names]))
"""


class Facts(NamedTuple):
    """Versions and devices.

    Attributes:
        torch, cuda, nccl: versions; empty without torch, or without CUDA in it.
        gpus: the names of those that PyTorch can use.
        devices: the files of the driver: /dev/nvidia0.
        driver: its version; empty without one.
    """

    torch: str
    cuda: str
    nccl: str
    gpus: tuple[str, ...]
    devices: tuple[str, ...]
    driver: str

    def rows(self) -> list[tuple[str, str]]:
        """Return what a report says of the machine."""
        return [
            ("GPUs", ", ".join(self.gpus) or "none that PyTorch can use"),
            ("driver", self.driver or "none"),
            ("PyTorch", f"{self.torch or 'none'}, CUDA {self.cuda or 'not built in'}"),
            ("NCCL", self.nccl or "none"),
            ("Python", platform.python_version()),
            ("kernel", platform.release()),
            ("Slurm", output("slurmctld", "-V") or "none"),
            ("Apptainer", output("apptainer", "--version") or "none"),
        ]


def gather() -> Facts:
    """Ask PyTorch and the driver, each in a process of its own."""
    said = output(sys.executable, "-c", _TORCH)
    torch, cuda, nccl, names = json.loads(said.splitlines()[-1]) if said else ("", "", "", [])
    driver = output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    devices = sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
    return Facts(torch, cuda, nccl, tuple(names), tuple(devices), "".join(driver.splitlines()[:1]))


def output(*command: str) -> str:
    """Return what a program prints; nothing where it is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return ended.stdout.strip() if ended.returncode == 0 else ""
