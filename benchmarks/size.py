"""Measure what large jobs and clusters cost: `make bench-size`.

- The plan and the script of 10,000 nodes with 8 ranks each, beside those of 2 nodes.
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
from functools import partial
from pathlib import Path
from typing import NamedTuple

from toolkit import launchers, runtimes, scripts
from toolkit.model.base import to_json
from toolkit.model.case import Case, Target
from toolkit.model.job import Job
from toolkit.model.plan import Plan
from toolkit.model.run import JobState, Submission
from toolkit.model.site import Facts, Partition, Site
from toolkit.planning.plan import decide
from toolkit.runs.outcome import finish
from toolkit.runs.run import Run

TOOLKIT = (sys.executable, "-m", "toolkit")
JOB, NODES, RANKS_PER_NODE, FAILED = 7, 1000, 8, 5003
_STEPS = 20  # lines that each rank has printed
_RUN = ("run", "--launcher", "none", "--runtime", "none", "--nodes")


class Reading(NamedTuple):
    """One figure: of us, of a peer if there is one, and the bar.

    Attributes:
        ours: as people read it: ``0.2 s``.
        peer: as people read it, with the ratio; empty without a peer.
        bar: the largest value that is good.
        held: the bar is held.
    """

    what: str
    ours: str
    peer: str
    bar: str
    held: bool


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


def beside(what: str, ours: float, peer: float, name: str, bar: float) -> Reading:
    """Return a reading in seconds whose bar is a number of seconds."""
    text = f"{peer:.2f} s {name} ({ours / peer:.1f})"
    return Reading(what, f"{ours:.2f} s", text, f"{bar:g} s", ours <= bar)


def decided(nodes: int, launcher: str, directory: Path) -> Plan:
    """Return the plan of a job of so many nodes on an invented cluster that has them."""
    most = Partition(name="main", default=True, nodes=20_000, cpus=64, memory=256_000)
    return decide(
        Case(
            job=Job(nodes=nodes, ntasks_per_node=RANKS_PER_NODE, launcher=launcher, runtime="none"),
            site=Site(name="invented"),
            target=Target("train.py", str(directory), str(directory)),
            runtime=runtimes.get("none"),
            launcher=launchers.get(launcher),
            facts=Facts(partitions=(most,), mpi=("none", "pmix")),
            run=str(directory / "runs" / "train-0001"),
        )
    )


def _script(nodes: int, launcher: str, directory: Path) -> str:
    return scripts.script(decided(nodes, launcher, directory))


def of_plans(directory: Path) -> list[Reading]:
    """Compare the plans and scripts of 10,000 nodes with those of 2."""
    readings = []
    for launcher in ("torchrun", "srun"):
        makers = [partial(_script, nodes, launcher, directory) for nodes in (2, 10_000)]
        small, large = (make() for make in makers)
        times: list[list[float]] = [[], []]
        for _ in range(200):
            for make, values in zip(makers, times, strict=True):
                began = time.process_time()
                make()
                values.append(time.process_time() - began)
        few, many = map(min, times)  # what else runs here can only add to them
        length = len(large.splitlines()) - len(small.splitlines())
        readings.append(
            Reading(
                f"plan and script, 10,000 nodes x 8, {launcher}",
                f"{many * 1000:.2f} ms",
                f"{few * 1000:.2f} ms 2 nodes ({many / few:.2f})",
                "1.1, no line more",
                many / few <= 1.1 and length == 0,
            )
        )
    return readings


def write_run(directory: Path) -> Run:
    """Write a run of 8,000 ranks of which one failed, and derive its outcome."""
    run = Run(directory / "runs" / "train-0001")
    run.logs.mkdir(parents=True)
    whole = decided(NODES, "srun", directory)
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
    submitted = Submission(job_id=JOB, site="invented", submitted="2026-11-22T00:00:00+00:00")
    for name, content in (("plan.json", whole), ("run.json", submitted)):
        (run.directory / name).write_text(to_json(content))
    state = JobState(job_id=JOB, state="FAILED", exit_code=1, nodes=f"nid[0001-{NODES}]")
    finish(run, state)
    return run


def of_logs(directory: Path) -> list[Reading]:
    """Measure the commands that read 8,000 logs."""
    paths = write_run(directory)
    output = directory / "explained"
    once = ended((*TOOLKIT, "explain"), directory, output)
    named = f"rank {FAILED} on nid{FAILED // RANKS_PER_NODE + 1:04d}"
    right = named in output.read_text()
    explained = timed((*TOOLKIT, "explain"), directory, 3)
    searched = timed(("grep", "-rlE", "Error|error", str(paths.logs)), directory, 3)
    readings = [
        beside("toolkit explain, 8,000 logs", explained, searched, "grep -r", 5),
        Reading("the failed rank is named", "yes" if right else "NO", "", "yes", right),
        Reading(
            "memory of explain", f"{once.memory / 1e6:.0f} MB", "", "200 MB", once.memory < 2e8
        ),
    ]
    listed = timed((*TOOLKIT, "ps"), directory, 3)
    return [*readings, Reading("toolkit ps, 8,000 logs", f"{listed:.2f} s", "", "1 s", listed <= 1)]


def available() -> int:
    """Return the bytes of memory that are available."""
    rows = Path("/proc/meminfo").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("MemAvailable")) * 1024


def of_cluster(directory: Path, nodes: int) -> list[Reading]:
    """Measure a local cluster from its start to its end."""
    before = available()
    share = ("--share", str(directory)) if str(directory).startswith("/tmp/") else ()
    up = ended(
        (*TOOLKIT, "cluster", "up", "--nodes", str(nodes), *share), directory, directory / "up"
    )
    if up.code != 0:
        sys.exit((directory / "up").read_text())
    memory = before - available()
    output = directory / "followed"
    run = ended((*TOOLKIT, *_RUN, str(nodes), "--", "true"), directory, output)
    share_of_core = run.cpu / run.seconds
    readings = [
        Reading(f"cluster up, {nodes} nodes", f"{up.seconds:.1f} s", "", "", True),
        Reading("memory of the cluster", f"{memory / 1e9:.2f} GB", "", "", True),
        Reading(
            f"a job on {nodes} nodes, to its end",
            f"{run.seconds:.1f} s, exit {run.code}",
            "",
            "exit 0",
            run.code == 0,
        ),
        Reading(
            "memory to follow it", f"{run.memory / 1e6:.0f} MB", "", "100 MB", run.memory <= 1e8
        ),
        Reading(
            "CPU time to follow it",
            f"{share_of_core * 100:.1f} % of a core",
            "",
            "10 %",
            share_of_core <= 0.1,
        ),
    ]
    on_login = (*TOOLKIT, "cluster", "exec", "--")
    for ours, peer in (("ps", "squeue"), ("cluster show", "sinfo")):
        own = timed((*TOOLKIT, *ours.split()), directory)
        plain = timed((*on_login, peer), directory)
        readings.append(beside(f"toolkit {ours}", own, plain, peer, 1))
    down = ended((*TOOLKIT, "cluster", "down"), directory, directory / "down")
    clean = not Path(os.environ["TOOLKIT_CLUSTER_DIR"], "bench").exists()
    text = f"{down.seconds:.1f} s, {'nothing left' if clean else 'FILES LEFT'}"
    return [*readings, Reading("cluster down", text, "", "30 s", clean and down.seconds <= 30)]


def report(readings: list[Reading]) -> int:
    """Print the readings; return 1 if a bar is missed."""
    rows = [("", "TOOLKIT", "PEER (RATIO)", "BAR", "")]
    rows += [
        (each.what, each.ours, each.peer, each.bar, "held" if each.held else "MISSED")
        for each in readings
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    print()
    for row in rows:
        print(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        )
    return 0 if all(each.held for each in readings) else 1


def main() -> int:
    """Measure and print; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--nodes", type=int, default=NODES, help="of the cluster (default: 1000; 0: no cluster)"
    )
    nodes = parser.parse_args().nodes
    directory = Path(tempfile.mkdtemp(prefix="bench-size-", dir="/var/tmp"))
    os.environ |= {
        "TOOLKIT_CLUSTER": "bench",
        "TOOLKIT_CLUSTER_DIR": str(directory / "c"),
        "XDG_STATE_HOME": str(directory / "state"),
    }
    try:
        readings = of_plans(directory)
        for part in (directory / "logs", directory / "jobs"):
            part.mkdir()
        readings += of_logs(directory / "logs")
        if nodes:
            readings += of_cluster(directory / "jobs", nodes)
        return report(readings)
    finally:
        if nodes:
            subprocess.run((*TOOLKIT, "cluster", "down"), check=False, capture_output=True)
        shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())
