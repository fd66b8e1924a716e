"""Measure the memory to follow, list and explain a job with very large logs: `make bench-logs`.

A job on a local cluster writes gigabytes of lines and one line of 100 MB, and fails. Each command
runs as a process of its own, whose peak memory the kernel tells.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

LIMIT = 200_000_000  # bytes that each command may take
SCRIPT = """\
import sys
size = int(sys.argv[1])
block = "".join(
    f"step {number:8d}  loss {1 / (number + 1):.6f}  {'.' * 360}\\n" for number in range(2500)
)
for _ in range(size // len(block)):
    sys.stdout.write(block)
sys.stdout.write("x" * 100_000_000 + "\\n")
sys.stdout.flush()
raise KeyError("weights")
"""


class Reading(NamedTuple):
    """One command: its exit code, wall time in seconds, and peak memory in bytes."""

    code: int
    seconds: float
    memory: int


def measure(words: tuple[str, ...], directory: Path, output: Path) -> Reading:
    """Run a command; its standard output and error go to a file."""
    began = time.monotonic()
    with output.open("wb") as stream:
        process = subprocess.Popen(
            words, cwd=directory, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Reading(process.returncode, time.monotonic() - began, usage.ru_maxrss * 1024)


def main() -> int:
    """Measure, print a table, and return 1 if a bar is missed or a command is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--size", type=int, default=4_000_000_000, help="bytes of log (default: 4 GB)"
    )
    size = parser.parse_args().size
    toolkit = (sys.executable, "-m", "toolkit")
    os.environ["TOOLKIT_CLUSTER"] = "bench"
    directory = Path(tempfile.mkdtemp(prefix="bench-logs-", dir=Path.home() / ".cache"))
    try:
        subprocess.run(
            (*toolkit, "cluster", "up", "--nodes", "1", "--share", str(directory)), check=True
        )
        (directory / "train.py").write_text(SCRIPT)
        run = (*toolkit, "run", "--runtime", "none", "--launcher", "none", "train.py", str(size))
        readings = {"toolkit run (follow)": measure(run, directory, directory / "followed")}
        kind = json.loads((directory / "runs/train-0001/outcome.json").read_text())["failure"][
            "exit_code"
        ]
        (directory / "runs/train-0001/outcome.json").unlink()
        readings["toolkit ps (first look)"] = measure(
            (*toolkit, "ps"), directory, directory / "listed"
        )
        readings["toolkit explain"] = measure(
            (*toolkit, "explain"), directory, directory / "explained"
        )
        log = next(path for path in (directory / "runs/train-0001/logs").glob("*-0-*.log"))
        readings["toolkit explain LOGFILE"] = measure(
            (*toolkit, "explain", str(log)), directory, directory / "read"
        )
        right = kind == 1 and all(
            "weights" in (directory / name).read_text()[-20000:]
            for name in ("followed", "explained", "read")
        )
        return report(readings, log.stat().st_size, right=right)
    finally:
        subprocess.run((*toolkit, "cluster", "down"), check=False)
        shutil.rmtree(directory)


def report(readings: dict[str, Reading], size: int, *, right: bool) -> int:
    """Print the readings; 0 if all are within the limit and what was printed is right."""
    print(f"\na log of {size / 1e9:.1f} GB, one line of 100 MB in it")
    for name, reading in readings.items():
        held = "held" if reading.memory <= LIMIT else "MISSED"
        print(
            f"{name:26} {reading.memory / 1e6:6.0f} MB   bar {LIMIT / 1e6:.0f} MB {held:8} "
            f"{reading.seconds:7.1f} s   exit {reading.code}"
        )
    print(f"the failure is named in each: {'yes' if right else 'NO'}")
    return 0 if right and all(reading.memory <= LIMIT for reading in readings.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
