"""Start and stop the local cluster of the benchmarks, and keep it busy while jobs are submitted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from toolkit import shell
from toolkit.errors import ClusterError, SlurmUnreachableError
from toolkit.localcluster.access import access
from toolkit.localcluster.lifecycle import down, up
from toolkit.localcluster.shape import Shape, check
from toolkit.shell import Progress

NAME = "bench"
JOB_NAME = "toolkit-bench"


@contextmanager
def running(progress: Progress, *, cwd: Path) -> Iterator[tuple[str, ...]]:
    """Keep the cluster up in this context; yield the prefix that brings a command onto it."""
    started = False
    try:
        prefix = access(NAME, str(cwd)).prefix
        progress.say("cluster", f"{NAME} is up already, and is left up")
    except SlurmUnreachableError:
        started = up(NAME, check(Shape()), progress)
        prefix = access(NAME, str(cwd)).prefix
    try:
        yield prefix
    finally:
        if started:
            down(NAME, progress)


@contextmanager
def busy(prefix: Sequence[str]) -> Iterator[None]:
    """Fill all nodes with a job that sleeps.

    Jobs submitted meanwhile wait, and take no CPU time from the measurement.
    """
    nodes = set(shell.run([*prefix, "sinfo", "--noheader", "--Node", "--format=%N"]).stdout.split())
    shell.run(
        [*prefix, "scancel", f"--name={JOB_NAME}"], check=False
    )  # of a benchmark that was killed
    wide = (f"--nodes={len(nodes)}", "--exclusive", f"--job-name={JOB_NAME}", "--output=/dev/null")
    job = shell.run([*prefix, "sbatch", "--parsable", *wide, "--wrap=sleep 3600"]).stdout.strip()
    try:
        _wait_until_running(prefix, job)
        yield
    finally:
        shell.run([*prefix, "scancel", f"--name={JOB_NAME}"], check=False)


def _wait_until_running(prefix: Sequence[str], job: str, patience: float = 20) -> None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if (
            shell.run(
                [*prefix, "squeue", "--noheader", f"--jobs={job}", "--format=%T"]
            ).stdout.strip()
            == "RUNNING"
        ):
            return
        time.sleep(0.2)
    raise ClusterError(
        f"the nodes of the cluster {NAME} did not become free within {patience:g} s",
        next_step=f"toolkit cluster down --name {NAME}",
    )
