"""List the contents of this image as one line of JSON, without importing any of them.

Runs on every Python 3.
"""

import json
import os
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MODULES = (
    "torch",
    "torchvision",
    "tensorflow",
    "jax",
    "mxnet",
    "horovod",
    "ray",
    "numpy",
    "sklearn",
    "mpi4py",
)
PROGRAMS = ("mpirun", "ompi_info", "mpichversion", "horovodrun", "torchrun")
# The file in which NVIDIA's CUDA toolkit says its version, newer and older releases.
CUDA_FILES = ("/usr/local/cuda/version.json", "/usr/local/cuda/version.txt")


def text_of(path: Any) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def module_file(name: str, file: str) -> str:
    """Return the text of a file of a package; empty if there is none."""
    spec = find_spec(name)
    return text_of(Path(spec.origin).parent / file) if spec and spec.origin else ""


def cuda() -> str:
    """Return the version of the CUDA toolkit, else of Python's packages; empty if there is none."""
    texts = [os.environ.get("CUDA_VERSION", "")]
    texts += [text_of(path) for path in CUDA_FILES]
    texts += [
        line for line in module_file("torch", "version.py").splitlines() if line.startswith("cuda")
    ]
    places = [Path(place) for place in sys.path]
    texts += [
        path.name for place in places for path in place.glob("nvidia_cuda_runtime*.dist-info")
    ]
    matches = [re.search(r"\d+\.\d+(\.\d+)?", text) for text in texts]
    return next((match.group() for match in matches if match), "")


print(
    "toolkit-json: "
    + json.dumps(
        {
            "python": ".".join(str(part) for part in sys.version_info[:3]),
            "modules": [name for name in MODULES if find_spec(name)],
            "programs": [name for name in PROGRAMS if shutil.which(name)],
            "cuda": cuda(),
            "compat": Path("/usr/local/cuda/compat").is_dir(),
            "has_checks": Path("/opt/toolkit/checks/run").exists(),
        }
    )
)
