"""Measure what large jobs and clusters cost: `make bench-size`.

- 8,000 logs of ranks, one of which failed: `toolkit explain` and `toolkit ps`, beside `grep`.
- A local cluster of 1,000 nodes, each with a real slurmd: start, memory, a job on all of them that
  is followed to its end, `toolkit ps` and `toolkit cluster show` beside squeue and sinfo, end.
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
from toolkit import launchers, runtimes
from toolkit.model.base import to_json
from toolkit.model.case import Case, Target
from toolkit.model.job import Job
from toolkit.model.plan import Plan
from toolkit.model.run import JobState, Submission
from toolkit.model.site import Facts, Partition, Site
from toolkit.planning.plan import decide
from toolkit.runs.outcome import finish
from toolkit.runs.run import Run

JOB, NODES, RANKS_PER_NODE, FAILED = 7, 1000, 8, 5003
_STEPS = 20  # lines that each rank has printed
_RUN = ("run", "--launcher", "none", "--runtime", "none", "--nodes")


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


def decided(directory: Path) -> Plan:
    """Return the plan of a job on an invented cluster that has enough nodes."""
    most = Partition(name="main", default=True, nodes=20_000, cpus=64, memory=256_000)
    return decide(
        Case(
            job=Job(nodes=NODES, ntasks_per_node=RANKS_PER_NODE, launcher="srun", runtime="none"),
            site=Site(name="local", access="local-cluster"),
            target=Target("train.py", str(directory), str(directory)),
            runtime=runtimes.get("none"),
            launcher=launchers.get("srun"),
            facts=Facts(partitions=(most,), mpi=("none", "pmix")),
            run=str(directory / "runs" / "train-0001"),
        )
    )


def write_run(directory: Path) -> Run:
    """Write a run of 8,000 ranks of which one failed, and derive its outcome."""
    run = Run(directory / "runs" / "train-0001")
    run.logs.mkdir(parents=True)
    whole = decided(directory)
    lines = "".join(
        f"step {step}  loss {1 / (step + 1):.6f}  {'.' * 60}\n" for step in range(_STEPS)
    )
    for rank in range(NODES * RANKS_PER_NODE):
        host = f"nid{rank // RANKS_PER_NODE + 1:04d}"
        more = "slurmstepd: error: *** STEP 7.0 ON nid0001 CANCELLED ***\n"
        if rank == FAILED:
            more = "Traceback (most recent call last):\nKeyError: 'weights'\n"
        (run.logs / f"{JOB}-{rank}-{host}.log").write_text(lines + more)
    failed = f"nid{FAILED // RANKS_PER_NODE + 1:04d}"
    (run.logs / f"{JOB}.log").write_text(
        f"srun: error: {failed}: task {FAILED}: Exited with exit code 1\n"
        "srun: launch/slurm: _step_signal: Terminating StepId=7.0\n"
    )
    submitted = Submission(job_id=JOB, site="local", submitted="2026-11-22T00:00:00+00:00")
    for name, content in (("plan.json", whole), ("run.json", submitted)):
        (run.directory / name).write_text(to_json(content))
    state = JobState(job_id=JOB, state="FAILED", exit_code=1)  # no cluster has had it
    finish(run, state)
    return run


def of_logs(directory: Path) -> list[Row]:
    """Measure the commands that read 8,000 logs."""
    paths = write_run(directory)
    output = directory / "explained"
    once = ended((*runner.TOOLKIT, "explain"), directory, output)
    named = f"rank {FAILED} on nid{FAILED // RANKS_PER_NODE + 1:04d}"
    right = named in output.read_text()
    explained = timed((*runner.TOOLKIT, "explain"), directory, 3)
    searched = timed(("grep", "-rlE", "Error|error", str(paths.logs)), directory, 3)
    readings = [
        beside("toolkit explain, 8,000 logs", explained, searched, "grep -r", 5),
        Row("the failed rank is named", "yes" if right else "NO", "", "yes", right),
        Row("memory of explain", f"{once.memory / 1e6:.0f} MB", "", "200 MB", once.memory < 2e8),
    ]
    listed = timed((*runner.TOOLKIT, "ps"), directory, 3)
    return [*readings, Row("toolkit ps, 8,000 logs", f"{listed:.2f} s", "", "1 s", listed <= 1)]


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
    run = ended((*runner.TOOLKIT, *_RUN, str(nodes), "--", "true"), directory, output)
    share_of_core = run.cpu / run.seconds
    readings = [
        Row(f"cluster up, {nodes} nodes", f"{up.seconds:.1f} s", ""),
        Row("memory of the cluster", f"{memory / 1e9:.2f} GB", ""),
        Row(
            f"a job on {nodes} nodes, to its end",
            f"{run.seconds:.1f} s, exit {run.code}",
            "",
            "exit 0",
            run.code == 0,
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
    readings += of_logs(directory.parent / "logs")
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
        for part in (directory / "logs", directory / "jobs"):
            part.mkdir()
        return runner.report(of_cluster(directory / "jobs", nodes))
    finally:
        subprocess.run((*runner.TOOLKIT, "cluster", "down"), check=False, capture_output=True)
        shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())
