"""The door into a running job: OpenSSH, through a step of the job and not the network.

``scripts/door.sh`` starts an sshd on the node for one connection, whose input and output srun
carries: that is ssh's ProxyCommand. Nothing listens. The keys are the run's own, in ``ssh/`` of its
directory, as is the script by which a session enters what the ranks run in.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from toolkit import scripts
from toolkit.config import package_directory
from toolkit.errors import UsageError
from toolkit.files import read_text, write_atomically
from toolkit.model.plan import Plan
from toolkit.quoting import shell_words
from toolkit.runs import status
from toolkit.runs.run import Run
from toolkit.shell import run as run_command
from toolkit.slurm.client import without_job
from toolkit.slurm.hostlist import expand

_KEYS = "ssh"
# StrictModes: sshd would refuse the user's key where a home is open to a group; `Run.require_own`
# has judged the run's directory. From a machine of the user's own, a key for the login node opens.
_SSHD = """\
AuthorizedKeysFile {keys} .ssh/authorized_keys
PasswordAuthentication no
PermitRootLogin yes
PidFile none
PrintLastLog no
PrintMotd no
StrictModes no
Subsystem sftp internal-sftp
UsePAM no
"""


class Door(NamedTuple):
    """A node of a running job.

    Attributes:
        run: the job's.
        job_id: of the job, or of an element of its array.
        node: its name.
        target: a server on it: a port, or the path of a Unix socket.
        token: of that server, if it is that of a notebook.
    """

    run: Run
    job_id: int
    node: str
    target: str = ""
    token: str = ""

    def is_running(self) -> bool:
        """Return whether the job runs on the node."""
        states = [each for each in status.running(self.run) if each.job_id == self.job_id]
        return any(self.node in expand(state.nodes) for state in states)

    def proxy(self, *words: str) -> tuple[str, ...]:
        """Return the command by which ssh reaches an sshd; words are those of ``door.sh``."""
        # --unbuffered: else srun waits for the ends of lines. --mpi=none: a site's default may be a
        # plugin that listens on the network.
        step = ("--overlap", "--nodes=1", "--ntasks=1", "--unbuffered", "--mpi=none", "--quiet")
        which = (f"--jobid={self.job_id}", f"--nodelist={self.node}", "--job-name=toolkit-ssh")
        door = ("bash", str(prepare(self.run) / "door"), *words)
        srun = (*self.run.client.access.prefix, "srun", *which, *step, *door)
        # ssh ends its ProxyCommand by SIGHUP, and srun would complain. Its input ends, too.
        return ("sh", "-c", '"$@"; exit', "sh", *srun)

    def client(self, options: Sequence[str], *words: str) -> list[str]:
        """Return the command of ssh to the node, up to the remote command."""
        given = settings(prepare(self.run))
        given["ProxyCommand"] = percent(shell_words(self.proxy(*words)))
        named = (f"-o{name}={value}" for name, value in given.items())
        return ["ssh", "-F", "/dev/null", *named, *options, host_name(self.run)]


def locate(run: Run, *, node: str | None = None, rank: int | None = None) -> Door:
    """Return a node of a run, by default the first.

    Raises:
        JobLostError: the run is not running.
        UsageError: it has no such node or rank.
        ForbiddenError: it is another user's, who may have written the number of any job.
        UntrustedError: another user could exchange it.
    """
    run.require_own()
    states = status.require_running(run)
    nodes = [(name, state.job_id) for state in states for name in expand(state.nodes)]
    if rank is not None:
        node = _node_of(rank, run.plan, expand(states[0].nodes))
    chosen = node or nodes[0][0]
    job_ids = dict(reversed(nodes))  # of two elements of an array on one node, the first
    if chosen not in job_ids:
        raise UsageError(
            f"{run.name} does not run on {chosen}", place="--node", choices=job_ids, value=chosen
        )
    return Door(run, job_ids[chosen], chosen)


def _node_of(rank: int, plan: Plan, nodes: Sequence[str]) -> str:
    """Return the node of a rank, of which Slurm fills one node after the other."""
    counts = plan.gpus_by_node or [plan.ranks_per_node] * len(nodes)
    ranks = [node for node, count in zip(nodes, counts, strict=False) for _ in range(count)]
    if rank >= len(ranks):
        raise UsageError(
            f"there is no rank {rank}", place="--rank", next_step=f"--rank 0 to {len(ranks) - 1}"
        )
    return ranks[rank]


def prepare(run: Run) -> Path:
    """Return the directory with the keys and scripts of a run's door, which is made at first use.

    Raises:
        UsageError: ssh's settings cannot carry its path.
        NeedsInstallError: there is no ssh-keygen.
    """
    directory = run.directory.absolute() / _KEYS
    if directory.is_dir():
        return directory
    with tempfile.TemporaryDirectory(prefix=f".{_KEYS}-", dir=run.directory) as name:
        new = Path(name, _KEYS)
        new.mkdir(mode=0o700)
        for key in ("host", "user"):  # FIPS mode knows no ed25519
            run_command(("ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-C", key, "-f", new / key))
        write_atomically(new / "known_hosts", f"{_KEYS} {read_text(new / 'host.pub')}")
        keys = _path(directory / "user.pub")
        write_atomically(new / "sshd_config", _SSHD.format(keys=keys), mode=0o600)
        write_atomically(new / "enter", scripts.session(run.plan), mode=0o600)
        shutil.copy(package_directory("scripts") / "door.sh", new / "door")
        try:
            new.rename(directory)
        except OSError:
            if not directory.is_dir():  # no other process was faster
                raise
    return directory


def host_name(run: Run) -> str:
    """Return the name of a run as a host: ``ssh train-0007``."""
    return run.name.replace("@", "-")


def settings(directory: Path, user: str = "") -> dict[str, str]:
    """Return the settings of ssh_config(5) for a run, but for its ProxyCommand.

    Args:
        directory: of the keys.
        user: who runs it, this one by default.
    """
    return {
        "User": user or pwd.getpwuid(os.geteuid()).pw_name,
        "HostKeyAlias": _KEYS,
        "UserKnownHostsFile": _path(directory / "known_hosts"),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "IdentityFile": _path(directory / "user"),
        "IdentitiesOnly": "yes",
        "ConnectTimeout": "60",  # also for an srun that waits for its controller
        "ServerAliveInterval": "15",
    }


def _path(path: Path) -> str:
    """Quote a path for the settings of ssh and sshd.

    Raises:
        UsageError: it has characters that not every version of OpenSSH can read there.
    """
    if re.search(r'["\\\n]|\$\{', str(path)):
        raise UsageError(
            f"ssh cannot use a directory with such characters in its name: {path}",
            place="RUN",
            next_step="a directory of runs without quotes and backslashes in its path: --runs",
        )
    return f'"{percent(str(path))}"'


def percent(text: str) -> str:
    """Return a text for a setting of ssh in which ``%h`` and the like have a meaning."""
    return text.replace("%", "%%")


def environment() -> dict[str, str]:
    """Return the environment of ssh, whose commands on this host are for a shell of POSIX."""
    return {**without_job(os.environ), "SHELL": "/bin/sh"}
