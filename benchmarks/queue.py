"""Measure `toolkit ps` while others have thousands of jobs in the queue: `make bench-queue`.

Printed are the calls of squeue and sacct that a refresh makes, whatever the number of runs, and its
time beside a plain `squeue --me`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOOLKIT = (sys.executable, "-m", "toolkit")
JOB = (
    "run",
    "--detach",
    "--runtime",
    "none",
    "--launcher",
    "none",
    "--job-name",
    "mine",
    "--",
    "sleep",
    "600",
)


def run_in_cluster(line: str) -> str:
    """Run a line of bash on the login side of the cluster."""
    done = subprocess.run(
        (*TOOLKIT, "cluster", "exec", "--", "bash", "-c", line),
        text=True,
        capture_output=True,
        check=True,
    )
    return done.stdout


def seconds(words: tuple[str, ...], directory: Path, times: int = 7) -> float:
    """Return the median wall time of a command."""
    readings = []
    for _ in range(times):
        began = time.monotonic()
        subprocess.run(words, cwd=directory, capture_output=True, check=True)
        readings.append(time.monotonic() - began)
    return statistics.median(readings)


def calls(directory: Path) -> tuple[int, int]:
    """Return how often one `toolkit ps --all` calls squeue and sacct."""
    done = subprocess.run(
        (*TOOLKIT, "--verbose", "ps", "--all"),
        cwd=directory,
        text=True,
        capture_output=True,
        check=True,
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("+ ")]
    return sum(" squeue " in line for line in lines), sum(" sacct " in line for line in lines)


def main() -> int:
    """Measure and print; 1 if a refresh asks more than once."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--others", type=int, default=2000, help="jobs of another user (default: 2000)"
    )
    others = parser.parse_args().others
    os.environ["TOOLKIT_CLUSTER"] = "bench"
    directory = Path(tempfile.mkdtemp(prefix="bench-queue-", dir=Path.home() / ".cache"))
    try:
        subprocess.run(
            (*TOOLKIT, "cluster", "up", "--nodes", "2", "--share", str(directory)), check=True
        )
        run_in_cluster(
            f"seq {others} | xargs -P 4 -n 1 -I% sbatch --uid=65534 --chdir=/tmp --hold "
            "--output=/dev/null --wrap true >/dev/null"
        )
        queued = run_in_cluster("squeue --noheader | wc -l").strip()
        print(f"\n{queued} jobs of another user in the queue")
        print(
            f"{'runs':>6} {'squeue calls':>13} {'sacct calls':>12} {'toolkit ps':>11} "
            f"{'squeue --me':>12} {'ratio':>6}"
        )
        worst = 0
        for count in (1, 10, 50):
            while len(list(directory.glob("runs/*/run.json"))) < count:
                subprocess.run((*TOOLKIT, *JOB), cwd=directory, capture_output=True, check=True)
            squeue, sacct = calls(directory)
            ours = seconds((*TOOLKIT, "ps", "--all"), directory)
            plain = seconds((*TOOLKIT, "cluster", "exec", "--", "squeue", "--me"), directory)
            print(
                f"{count:6} {squeue:13} {sacct:12} {ours:9.2f} s {plain:10.2f} s "
                f"{ours / plain:6.2f}"
            )
            worst = max(worst, squeue)
        print(f"one squeue for a refresh: {'held' if worst == 1 else 'MISSED'}")
        return 0 if worst == 1 else 1
    finally:
        subprocess.run((*TOOLKIT, "cluster", "down"), check=False)
        shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())
