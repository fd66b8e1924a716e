"""The benchmark's own local cluster: brought up where it is not, kept busy while things are submitted to it, taken down again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from toolkit import shell
from toolkit.errors import ClusterError, SlurmUnreachableError
from toolkit.localcluster.access import access
from toolkit.localcluster.down import down
from toolkit.localcluster.shape import Shape, check
from toolkit.localcluster.up import up
from toolkit.progress import Progress

NAME = "bench"
JOB_NAME = "toolkit-bench"


@contextmanager
def running(progress: Progress, *, cwd: Path) -> Iterator[tuple[str, ...]]:
    """The words before a command that bring it onto the cluster, which is up as long as this lasts."""
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
    """All nodes are taken by a job that sleeps: what is submitted meanwhile waits, and takes no CPU from what is measured."""
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
