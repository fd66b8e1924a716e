"""Measure what large jobs and clusters cost: `make bench-size`.

A local cluster of 1,000 nodes, each with a real slurmd: start, memory, a job with a rank on each,
of which one fails, followed to its end; `toolkit explain` of its logs beside `grep`, `toolkit ps`
and `toolkit cluster show` beside squeue and sinfo; end.
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
from typing import NamedTuple

from benchmarks import runner
from benchmarks.runner import Row

NODES, FAILED = 1000, 503
_RUN = ("run", "--launcher", "none", "--runtime", "none", "--nodes")
_RANK = f"""\
for step in {{1..20}}; do echo "step $step  loss 0.$RANDOM  ............................"; done
[ "$SLURM_PROCID" != {FAILED} ] && exit
echo "Traceback (most recent call last):" >&2
echo "KeyError: 'weights'" >&2
exit 1"""


class Ended(NamedTuple):
    """A process that has ended: exit code, wall and CPU time in seconds, peak memory in bytes."""

    code: int
    seconds: float
    cpu: float
    memory: int


def ended(words: tuple[str, ...], cwd: Path, output: Path) -> Ended:
    """Run a command to its end; its standard output and error go to a file."""
    began = time.monotonic()
    with output.open("wb") as stream:
        process = subprocess.Popen(
            words, cwd=cwd, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu = usage.ru_utime + usage.ru_stime
    return Ended(process.returncode, time.monotonic() - began, cpu, usage.ru_maxrss * 1024)


def timed(words: tuple[str, ...], cwd: Path, times: int = 5) -> float:
    """Return the median wall time of a command in seconds, after one that fills caches."""
    readings = [ended(words, cwd, Path(os.devnull)).seconds for _ in range(times + 1)]
    return statistics.median(readings[1:])


def beside(what: str, ours: float, peer: float, name: str, bar: float) -> Row:
    """Return a reading in seconds whose bar is a number of seconds."""
    text = f"{peer:.2f} s {name} ({ours / peer:.1f})"
    return Row(what, f"{ours:.2f} s", text, f"{bar:g} s", ours <= bar)


def available() -> int:
    """Return the bytes of memory that are available."""
    rows = Path("/proc/meminfo").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("MemAvailable")) * 1024


def of_cluster(directory: Path, nodes: int) -> list[Row]:
    """Measure a local cluster from its start to its end."""
    before = available()
    share = ("--share", str(directory)) if str(directory).startswith("/tmp/") else ()
    up = ended(
        (*runner.TOOLKIT, "cluster", "up", "--nodes", str(nodes), *share),
        directory,
        directory / "up",
    )
    if up.code != 0:
        sys.exit((directory / "up").read_text())
    memory = before - available()
    output = directory / "followed"
    job = (*_RUN, str(nodes), "--", "bash", "-c", _RANK)
    run = ended((*runner.TOOLKIT, *job), directory, output)
    share_of_core = run.cpu / run.seconds
    readings = [
        Row(f"cluster up, {nodes} nodes", f"{up.seconds:.1f} s", ""),
        Row("memory of the cluster", f"{memory / 1e9:.2f} GB", ""),
        Row(
            f"a job on {nodes} nodes, to its end",
            f"{run.seconds:.1f} s, exit {run.code}",
            "",
            "exit 1",
            run.code == 1,
        ),
        Row("memory to follow it", f"{run.memory / 1e6:.0f} MB", "", "100 MB", run.memory <= 1e8),
        Row(
            "CPU time to follow it",
            f"{share_of_core * 100:.1f} % of a core",
            "",
            "10 %",
            share_of_core <= 0.1,
        ),
    ]
    on_login = (*runner.TOOLKIT, "cluster", "exec", "--")
    for ours, peer in (("ps", "squeue"), ("cluster show", "sinfo")):
        own = timed((*runner.TOOLKIT, *ours.split()), directory)
        plain = timed((*on_login, peer), directory)
        readings.append(beside(f"toolkit {ours}", own, plain, peer, 1))
    explained = ended((*runner.TOOLKIT, "explain"), directory, directory / "explained")
    is_named = f" {FAILED} on nid" in (directory / "explained").read_text()
    searched = timed(("grep", "-rlE", "Error|error", str(directory / "runs")), directory, 3)
    readings += [
        beside("toolkit explain of its logs", explained.seconds, searched, "grep -r", 5),
        Row("the failed rank is named", "yes" if is_named else "NO", "", "yes", is_named),
    ]
    down = ended((*runner.TOOLKIT, "cluster", "down"), directory, directory / "down")
    clean = not Path(os.environ["TOOLKIT_CLUSTER_DIR"], "bench").exists()
    text = f"{down.seconds:.1f} s, {'nothing left' if clean else 'FILES LEFT'}"
    return [*readings, Row("cluster down", text, "", "30 s", clean and down.seconds <= 30)]


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
