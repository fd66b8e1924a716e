"""Capture what Slurm's commands answer about a known set of jobs, as examples for the parsers' tests.

Run ``python -m tests.slurm_answers`` on a machine with a Slurm; it brings up a cluster of its own
and writes ``tests/golden/slurm/VERSION/``. Do so for each version, and look at what differs.
An answer that is the one of the version before has no file of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolkit.slurm import cluster, parse, queue

GOLDEN = Path(__file__).parent / "golden" / "slurm"
SEPARATOR = "<5eba7a70>"
NAME = "a | b\n<x> %s 'q' é"
# The path is in the answers; every node of a local cluster sees it.
PLACE = Path("/var/tmp/slurm-answers")
# In the answers it has a mark, as the toolkit's scripts had when they were captured.
SCRIPT = PLACE / "job.sbatch"
SHAPE = """
accounting = true
nodes = [{ names = "nid[001-003]", cpus = 8, memory = 8192, gpus = 4, gpu_type = "v100" }]
partitions = [
    { name = "debug", max_nodes = 1, max_time = "30:00" },
    { name = "main", default = true },
]
"""
# Each job by its name, in the order of submission; the first has the id 1.
JOBS: Mapping[str, tuple[str, Sequence[str]]] = {
    "timeout": ("sleep 600", ("--time=1",)),
    NAME: ("exit 3", ("--nodes=2",)),
    "completed": ("true", ()),
    "signal": ("kill -9 $$", ()),
    "cancelled": ("sleep 600", ()),
    "sweep": (
        "[ $SLURM_ARRAY_TASK_ID != 1 ] || exit 4; sleep $((SLURM_ARRAY_TASK_ID * 300))",
        ("--array=0-9%2",),
    ),
    "many": ("true", ("--hold", f"--array={','.join(str(n) for n in range(60) if n % 3 != 1)}")),
    "requeued": ("sleep 600", ("--requeue",)),
    "gpus": ("sleep 600", ("--nodes=2", "--gpus-per-node=2")),
    "waits": ("sleep 600", ("--nodes=3", "--exclusive")),
    "debug": ("sleep 600", ("--partition=debug", "--gpus=1")),
}
ANSWERS: Mapping[str, Sequence[str]] = {
    "squeue": (
        *("env", *queue.ENVIRONMENT, "squeue", "--me", "--noheader", "--states=all"),
        f"--Format={','.join(f'{field}:0{SEPARATOR}' for field in queue.SQUEUE)}",
    ),
    "sacct": (
        *("env", *queue.ENVIRONMENT, "sacct", "--noheader", "--parsable", "--allocations"),
        *(f"--delimiter={SEPARATOR}", f"--format={queue.SACCT_FORMAT}", "--jobs=IDS"),
    ),
    "usage": ("squeue", "--noheader", "--array", "--me", f"--format={cluster.USAGE_FORMAT}"),
    "details": ("scontrol", "--oneliner", "--details", "show", "job=ID"),
    "sinfo": ("sinfo", "--noheader", "--exact", f"--format={parse.SINFO_FORMAT}"),
    "mpi": ("srun", "--mpi=list"),
    "partitions": ("scontrol", "--oneliner", "show", "partition"),
    "nodes": ("scontrol", "--oneliner", "--details", "show", "node"),
    "qos": (*"sacctmgr --noheader --parsable2 show qos".split(), f"format={cluster.QOS_FORMAT}"),
    "starts": ("sbatch", "--test-only", "--nodes=2", "--wrap=true"),
    "refused": ("sbatch", "--test-only", "--nodes=9", "--wrap=true"),
}


def versions() -> list[str]:
    """Return the versions that were captured, the oldest first."""
    return sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())


def answer(version: str, name: str) -> str:
    """Return what a version answered: its own file, or that of the last one before it that has one."""
    files = [GOLDEN / one / f"{name}.txt" for one in versions() if one <= version]
    return next(file.read_text() for file in reversed(files) if file.exists())


def keep(answers: Mapping[str, Mapping[str, str]]) -> None:
    """Write the answers of all versions, each where it differs from that of the version before."""
    before: Mapping[str, str] = {}
    for version, texts in sorted(answers.items()):
        (GOLDEN / version).mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            file = GOLDEN / version / f"{name}.txt"
            file.unlink(missing_ok=True) if before.get(name) == text else file.write_text(text)
        before = texts


def toolkit(*words: str) -> str:
    """Run the toolkit with a local cluster of the version that is installed."""
    env = os.environ | {"TOOLKIT_CLUSTER_DIR": f"{PLACE}/c", "TOOLKIT_CLUSTER": "answers"}
    argv = (sys.executable, "-m", "toolkit", *words)
    done = subprocess.run(argv, env=env, cwd=PLACE, text=True, capture_output=True, check=False)
    return done.stdout or done.stderr


def call(*words: str) -> str:
    """Run a command of Slurm's and return what it prints."""
    return toolkit("cluster", "exec", "--", *words)


def submit(name: str, body: str, options: Sequence[str]) -> int:
    """Submit a script as the client does."""
    SCRIPT.write_text(f"#!/bin/bash\n{body}\n")
    own = (f"--job-name={name}", "--output=/dev/null")
    return int(call("sbatch", "--parsable", *own, *options, str(SCRIPT)))


def wait(job_id: int, state: str) -> None:
    """Wait until a job is in a state."""
    until = time.monotonic() + 150
    shown = ("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T")
    while state not in call(*shown):
        if time.monotonic() > until:
            raise SystemExit(f"job {job_id} is not {state}")
        time.sleep(0.5)


def run_jobs() -> dict[str, int]:
    """Run the jobs until each is in the state that the examples are to show."""
    ids = {name: submit(name, *job) for name, job in JOBS.items()}
    for name in ("cancelled", "requeued", "sweep", "gpus"):
        wait(ids[name], "RUNNING")
    time.sleep(2)
    call("scancel", str(ids["cancelled"]), str(ids["sweep"]))
    call("scontrol", "requeue", str(ids["requeued"]))
    wait(ids["timeout"], "TIMEOUT")
    time.sleep(2)
    return ids


def main() -> None:
    """Bring up a cluster, run the jobs and write the answers."""
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    shape = PLACE / "shape.toml"
    shape.write_text(SHAPE)
    toolkit("cluster", "up", "--shape", str(shape))
    try:
        ids = run_jobs()
        version = call("sinfo", "--version").split()[-1]
        answers = {one: {name: answer(one, name) for name in ANSWERS} for one in versions()}
        marks = {"=IDS": f"={','.join(map(str, ids.values()))}", "=ID": f"={ids['debug']}"}
        answers[version] = {}
        for name, words in ANSWERS.items():
            asked = [re.sub("=IDS?$", lambda mark: marks[mark[0]], word) for word in words]
            answers[version][name] = call(*asked)
        keep(answers)
        print(f"wrote {GOLDEN / version}")
    finally:
        toolkit("cluster", "down")
        shutil.rmtree(PLACE, ignore_errors=True)


if __name__ == "__main__":
    main()
