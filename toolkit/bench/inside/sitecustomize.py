"""Record the memory of each Python process of a job that `toolkit bench compare` measures.

Python imports it before the script, and it writes the record when the process ends: the most memory
that the process had at one time, as the kernel counted it since the program began, and on GPUs the
most that PyTorch had. The script must not notice any error of this module.
"""

import atexit
import contextlib
import json
import os
import socket
import sys
from pathlib import Path


def _tell() -> None:
    with contextlib.suppress(Exception):
        status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
        torch = sys.modules.get("torch")
        used = torch is not None and torch.cuda.is_initialized()
        gpu = (
            max(
                torch.cuda.max_memory_allocated(number)
                for number in range(torch.cuda.device_count())
            )
            if torch and used
            else 0
        )
        path = Path(os.environ["TOOLKIT_MEMORY"], f"{socket.gethostname()}-{os.getpid()}.json")
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            json.dumps(
                {
                    "script": sys.argv[0],
                    "host_mb": round(peak * 1024 / 1e6, 1),
                    "gpu_mb": round(gpu / 1e6, 1),
                }
            )
        )


def _import_next() -> None:
    """Import the module of this name that Python would have found without this one."""
    ours, directory = sys.modules[__name__], str(Path(__file__).parent)
    sys.path[:] = [path for path in sys.path if str(Path(path or ".").resolve()) != directory]
    del sys.modules[__name__]
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault(__name__, ours)


if os.environ.get("TOOLKIT_MEMORY"):
    atexit.register(_tell)
if __name__ == "sitecustomize":
    _import_next()
