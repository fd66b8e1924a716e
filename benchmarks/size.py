"""Measure what large jobs and clusters cost: `make bench-size`.

A local cluster of 1,000 nodes, each with a real slurmd: start, memory, a job with a rank on each,
of which one fails, followed to its end; `toolkit ps`, `cluster show` and `explain` of its logs;
end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks import runner
from benchmarks.runner import Row

NODES = 1000
_RUN = ("run", "--launcher", "none", "--runtime", "none", "--nodes")
_RANK = """\
for step in {{1..20}}; do echo "step $step  loss 0.$RANDOM  ............................"; done
[ "$SLURM_PROCID" != {failed} ] && exit
echo "Traceback (most recent call last):" >&2
echo "KeyError: 'weights'" >&2
exit 1"""


class Ended(NamedTuple):
    """A process that has ended: exit code, wall and CPU time in seconds, peak memory in bytes."""

    code: int
    seconds: float
    cpu: float
    memory: int


def toolkit(directory: Path, *words: str) -> Ended:
    """Run the toolkit to its end; what it prints goes to a file that is named by its verb."""
    began = time.monotonic()
    with (directory / words[0]).open("wb") as stream:
        process = subprocess.Popen(
            (*runner.TOOLKIT, *words),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu = usage.ru_utime + usage.ru_stime
    return Ended(process.returncode, time.monotonic() - began, cpu, usage.ru_maxrss * 1024)


def available() -> int:
    """Return the bytes of memory that are available."""
    rows = Path("/proc/meminfo").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("MemAvailable")) * 1024


def of_cluster(directory: Path, nodes: int) -> list[Row]:
    """Measure a local cluster from its start to its end."""
    failed = nodes // 2
    before = available()
    up = toolkit(directory, "cluster", "up", "--nodes", str(nodes))
    memory = before - available()
    run = toolkit(directory, *_RUN, str(nodes), "--", "bash", "-c", _RANK.format(failed=failed))
    share = run.cpu / run.seconds
    followed = f"{run.seconds:.1f} s, exit {run.code}"
    rows = [
        Row(f"cluster up, {nodes} nodes", f"{up.seconds:.1f} s"),
        Row("memory of the cluster", f"{memory / 1e9:.2f} GB"),
        Row("a job on all, to its end", followed, "", "exit 1", run.code == 1),
        Row("memory to follow it", f"{run.memory / 1e6:.0f} MB", "", "100 MB", run.memory <= 1e8),
        Row("CPU time to follow it", f"{share:.1%} of a core", "", "10 %", share <= 0.1),
    ]
    for bar, *words in ((1, "ps"), (1, "cluster", "show"), (5, "explain")):
        seconds = toolkit(directory, *words).seconds
        rows.append(Row(" ".join(words), f"{seconds:.2f} s", "", f"{bar} s", seconds <= bar))
    is_named = f" {failed} on nid" in (directory / "explain").read_text()
    rows.append(Row("the failed rank is named", str(is_named), "", "True", is_named))
    down = toolkit(directory, "cluster", "down")
    left = Path(os.environ["TOOLKIT_CLUSTER_DIR"], "bench").exists()
    text = f"{down.seconds:.1f} s, {'FILES' if left else 'nothing'} left"
    return [*rows, Row("cluster down", text, "", "30 s", not left and down.seconds <= 30)]


def main() -> int:
    """Measure and print; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=NODES, help="of the cluster (default: 1000)")
    nodes = parser.parse_args().nodes
    directory = Path(tempfile.mkdtemp(prefix="bench-size-", dir="/var/tmp"))
    os.environ |= {
        "TOOLKIT_CLUSTER": "bench",
        "TOOLKIT_CLUSTER_DIR": str(directory / "c"),
        "XDG_STATE_HOME": str(directory / "state"),
    }
    try:
        (directory / "jobs").mkdir()
        return runner.report(of_cluster(directory / "jobs", nodes))
    finally:
        subprocess.run((*runner.TOOLKIT, "cluster", "down"), check=False, capture_output=True)
        shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())
