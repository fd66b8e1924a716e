"""A real sshd on the loopback address, for us alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.ranks import wait_for


@contextlib.contextmanager
def own_sshd(directory: Path, *, settings: str = "", user: str = "") -> Iterator[dict[str, str]]:
    """Give the environment in which `ssh` and `scp` reach the sshd under every name of a machine.

    Args:
        directory: of its keys.
        settings: more lines of the sshd's configuration.
        user: who is logged in; us if it is empty.
    """
    program = shutil.which("sshd", path="/usr/sbin:/usr/bin")
    assert program, "sshd is missing: toolkit setup --with tests"
    for key in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / key], check=True
        )
    shutil.copy(directory / "user.pub", directory / "authorized")
    port = 22000 + os.getpid() % 10000  # below those that the kernel gives to connections
    (directory / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {directory}/host\n"
        f"AuthorizedKeysFile {directory}/authorized\nStrictModes no\n"
        f"PidFile {directory}/pid\nUsePAM no\nPermitRootLogin yes\n{settings}"
    )
    # Where sshd as root puts those who have not logged in yet.
    Path("/run/sshd").mkdir(exist_ok=True)
    with (directory / "log").open("w") as log:
        daemon = subprocess.Popen(
            [program, "-D", "-e", "-f", directory / "sshd_config"], stderr=log
        )
    config, programs = directory / "ssh_config", directory / "bin"
    config.write_text(
        f"Host *\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {directory}/user\n"
        f"  StrictHostKeyChecking no\n  UserKnownHostsFile {directory}/known\n  LogLevel ERROR\n"
        + (f"  User {user}\n" if user else "")
    )
    programs.mkdir()
    for name in ("ssh", "scp"):
        (programs / name).write_text(f'#!/bin/sh\nexec /usr/bin/{name} -F {config} "$@"\n')
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}"}
    try:
        reach = [str(programs / "ssh"), "-o", "BatchMode=yes", "site", "true"]
        wait_for(
            lambda: not subprocess.run(reach, capture_output=True, check=False).returncode,
            "sshd",
            says=(directory / "log").read_text,
        )
        yield environment
    finally:
        daemon.terminate()
        daemon.wait()
