"""Start MariaDB and slurmdbd within the cluster, so that `sacct` answers."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from toolkit import shell
from toolkit.localcluster.control import Plan, StartError
from toolkit.localcluster.paths import Paths

EXPECTED = 8.0  # seconds that it takes on a small machine
Starter = Callable[..., "subprocess.Popen[str]"]


def start(paths: Paths, plan: Plan, daemon: Starter) -> None:
    """Make an empty database, start its server and slurmdbd, and make the cluster known to them.

    Raises:
        StartError: one of them did not start within a minute.
    """
    _install(paths, plan.user)
    server = daemon("mariadb", *_server(paths, plan.user))
    client = (
        "mariadb",
        "--no-defaults",
        f"--socket={_socket(paths)}",
        f"--user={plan.user}",
        "--execute",
    )
    _await(paths, server, "mariadb", (*client, "select 1"))
    shell.run((*client, "create database slurm_acct_db"), timeout=30)
    # slurmdbd has no option for the socket; its client library reads this variable.
    accounting = daemon("slurmdbd", "env", f"MYSQL_UNIX_PORT={_socket(paths)}", "slurmdbd", "-D")
    _await(
        paths,
        accounting,
        "slurmdbd",
        ("sacctmgr", "--immediate", "--quiet", "add", "cluster", plan.name),
    )


def _socket(paths: Paths) -> Path:
    return paths.database / "mysql.sock"


def _files(paths: Paths) -> Path:
    """Return the directory, empty, that is the only one whose files SQL may read or write."""
    return paths.database / "files"


def _server(paths: Paths, user: str) -> tuple[str, ...]:
    """Return the server's command: no network, no password, no files of the host.

    Users are authenticated by the socket (unix_socket): the kernel identifies the peer.
    """
    return (
        *("mariadbd", "--no-defaults", f"--user={user}", f"--datadir={paths.database / 'data'}"),
        *(
            f"--socket={_socket(paths)}",
            f"--pid-file={paths.run / 'mysql.pid'}",
            "--skip-networking",
        ),
        *(f"--secure-file-priv={_files(paths)}", "--local-infile=OFF", "--skip-symbolic-links"),
        *("--innodb-buffer-pool-size=64M", f"--log-error={paths.log_of('mariadb')}"),
    )


def _install(paths: Paths, user: str) -> None:
    for directory in (paths.database, _files(paths)):
        directory.mkdir(mode=0o700)
    shell.run(
        (
            *(
                "mariadb-install-db",
                "--no-defaults",
                f"--user={user}",
                f"--datadir={paths.database / 'data'}",
            ),
            *(
                "--auth-root-authentication-method=socket",
                f"--auth-root-socket-user={user}",
                "--skip-test-db",
            ),
        ),
        timeout=120,
    )
    paths.log_of("mariadb").touch()


def _await(
    paths: Paths,
    process: subprocess.Popen[str],
    name: str,
    question: tuple[str, ...],
    timeout: float = 60,
) -> None:
    """Wait until the daemon answers."""
    deadline = time.monotonic() + timeout
    while process.poll() is None and time.monotonic() < deadline:
        if shell.run(question, check=False, timeout=15).ok:
            return
        time.sleep(0.1)
    ended = process.poll()
    cause = (
        f"{name} did not answer within {timeout:g} s"
        if ended is None
        else f"{name} ended with exit code {ended}"
    )
    raise StartError(cause, (paths.log_of(name), paths.logs / f"{name}.out"))
