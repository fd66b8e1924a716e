"""Accounting: MariaDB and slurmdbd, within the cluster, so that `sacct` answers."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from toolkit import shell
from toolkit.localcluster.config import DATABASE_PORT, quality
from toolkit.localcluster.failure import StartError
from toolkit.localcluster.paths import Paths
from toolkit.localcluster.plan import Plan

EXPECTED = 8.0  # seconds that it takes on a small machine
_GRANTS = (
    "create database slurm_acct_db;"
    "create user slurm@127.0.0.1 identified by 'slurm';"
    "grant all on slurm_acct_db.* to slurm@127.0.0.1;"
)  # fmt: skip

Starter = Callable[..., "subprocess.Popen[str]"]


def start(paths: Paths, plan: Plan, daemon: Starter) -> None:
    """Make an empty database, start its server and slurmdbd, and make the cluster known to them.

    Raises:
        StartError: one of them did not start within a minute.
    """
    data = paths.directory / "mysql"
    socket = paths.run / "mysql.sock"
    _install(paths, data, plan.user)
    server = daemon(
        "mariadb",
        *("mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={socket}", f"--user={plan.user}"),
        *(f"--pid-file={paths.run / 'mysql.pid'}", "--bind-address=127.0.0.1", f"--port={DATABASE_PORT}"),
        *("--innodb-buffer-pool-size=64M", f"--log-error={paths.log_of('mariadb')}"),
    )
    _await(paths, server, "mariadb", ("mariadb", "--no-defaults", f"--socket={socket}", "-u", "root", "-e", "select 1"))
    shell.run(("mariadb", "--no-defaults", f"--socket={socket}", "-u", "root", "-e", _GRANTS), timeout=30)
    accounting = daemon("slurmdbd", "slurmdbd", "-D")
    _await(paths, accounting, "slurmdbd", ("sacctmgr", "--immediate", "--quiet", "add", "cluster", plan.name))
    if plan.shape.limits:
        _limit_jobs(plan)


def _limit_jobs(plan: Plan) -> None:
    """The one user, and a quality of service for each partition with its limits; slurmctld looks for them at its start."""
    add = ("sacctmgr", "--immediate", "--quiet", "add")
    shell.run((*add, "account", "users", "Description=users", "Organization=local"), timeout=30)
    shell.run((*add, "user", plan.user, "Account=users"), timeout=30)
    for partition, limits in plan.shape.limits.items():
        given = {"MaxJobsPerUser": limits.jobs_running, "MaxSubmitJobsPerUser": limits.jobs_submitted}
        words = [f"{name}={value}" for name, value in given.items() if value is not None]
        shell.run((*add, "qos", quality(partition), *words), timeout=30)


def limit_gpus(paths: Paths, plan: Plan, timeout: float = 60) -> None:
    """The limits of GPUs: what a GPU is slurmdbd learns from slurmctld, after its start.

    Raises:
        StartError: it did not learn it.
    """
    deadline = time.monotonic() + timeout
    for partition, limits in plan.shape.limits.items():
        if limits.gpus is None:
            continue
        words = ("modify", "qos", quality(partition), "set", f"MaxTRESPerUser=gres/gpu={limits.gpus}")
        while not (said := shell.run(("sacctmgr", "--immediate", "--quiet", *words), check=False, timeout=30)).ok:
            if time.monotonic() > deadline:
                raise StartError("a limit of GPUs was not taken", (paths.log_of("slurmdbd"),), said.tail(3))
            time.sleep(0.1)


def _install(paths: Paths, data: Path, user: str) -> None:
    shell.run(
        (
            *("mariadb-install-db", "--no-defaults", f"--user={user}", f"--datadir={data}"),
            *("--auth-root-authentication-method=normal", "--skip-test-db"),
        ),
        timeout=120,
    )
    paths.log_of("mariadb").touch()


def _await(paths: Paths, process: subprocess.Popen[str], name: str, question: tuple[str, ...], timeout: float = 60) -> None:
    """Ask until the daemon answers."""
    deadline = time.monotonic() + timeout
    while process.poll() is None and time.monotonic() < deadline:
        if shell.run(question, check=False, timeout=15).ok:
            return
        time.sleep(0.1)
    ended = process.poll()
    cause = f"{name} did not answer within {timeout:g} s" if ended is None else f"{name} ended with exit code {ended}"
    raise StartError(cause, (paths.log_of(name), paths.logs / f"{name}.out"))
