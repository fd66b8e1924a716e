"""The door into a running job: OpenSSH, through a step of the job and not the network.

``scripts/door.sh`` starts an sshd on the node for one connection, whose input and output srun
carries: that is ssh's ProxyCommand. Nothing listens. The keys are the run's own, in ``ssh/`` of its
directory, as is the script by which a session enters what the ranks run in.
"""

from __future__ import annotations

import errno
import getpass
import hashlib
import os
import pwd
import re
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from toolkit import scripts
from toolkit import shell as programs
from toolkit.config import package_directory
from toolkit.errors import (
    BusyError,
    CommandFailedError,
    ConfigError,
    JobLostError,
    SlurmUnreachableError,
    UntrustedError,
    UsageError,
)
from toolkit.files import read_json, read_text, write_atomically
from toolkit.images.host.kernel import die_with_parent
from toolkit.model.base import Model
from toolkit.model.run import Plan
from toolkit.quoting import shell, shell_words
from toolkit.runs import status
from toolkit.runs.run import Run, all_runs
from toolkit.slurm.client import without_job
from toolkit.slurm.hostlist import expand
from toolkit.trust import require_trusted

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


def locate(run: Run, where: str = "", *, node: str | None = None, rank: int | None = None) -> Door:
    """Return a node of a run, by default the first, and a server on it where one is named.

    Raises:
        JobLostError: the run is not running.
        UsageError: it has no such node or rank, or that is no server.
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
    return Door(run, job_ids[chosen], chosen, where and target(where))


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
            programs.run(("ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-C", key, "-f", new / key))
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


# A server on a node, to which ssh -N -L carries connections through the door.

LONGEST_PATH = 107  # bytes: sun_path of unix(7) has 108 with the final zero
_LONGEST_NAME = 24  # of a server in the name of its socket, whose path has a limit, too
_PAUSE = 3.0  # seconds before the next try
_ANSWER_SECONDS = 30.0
_READY = "connected: it forwards"


class Entrance(NamedTuple):
    """The place on this host at which connections arrive.

    Attributes:
        path: of a socket.
        port: of the loopback address, in place of the socket; every user of this host can connect.
    """

    path: Path
    port: int | None = None

    @property
    def address(self) -> str:
        """The place in the syntax of ``ssh -L``."""
        return f"127.0.0.1:{self.port}" if self.port else _forwarded(str(self.path))

    def require_free(self) -> None:
        """Check that only this user can connect to a socket here, and that nothing listens.

        A socket that a killed process left is removed.

        Raises:
            UsageError: the path is too long, or is something else.
            UntrustedError: others can enter its directory, or replace it.
            BusyError: something listens here.
        """
        if not self.port:
            require_short(self.path)
            above = self.path.parent.stat()
            if above.st_mode & 0o077 or above.st_uid != os.geteuid():
                raise UntrustedError(
                    f"others can enter {self.path.parent}",
                    place="--socket",
                    next_step=f"chmod 700 {shell(self.path.parent)}, if it is your own",
                )
            require_trusted(self.path.parent)  # who can replace one above takes the connections
            if self.path.is_symlink() or (self.path.exists() and not self.path.is_socket()):
                raise UsageError(
                    f"{self.path} exists, and is not a socket",
                    place="--socket",
                    next_step="--socket PATH, with a path that does not exist",
                )
        if not self.remove_dead():
            place = f"port {self.port} of this machine" if self.port else str(self.path)
            raise BusyError(
                f"another process listens on {place}",
                place="--port" if self.port else "--socket",
                next_step="another one; or end that process (ps shows what it forwards)",
            )

    def remove_dead(self) -> bool:
        """Remove a socket that nothing listens on; return False if something listens here."""
        with socket.socket(socket.AF_INET if self.port else socket.AF_UNIX) as sock:
            sock.settimeout(_ANSWER_SECONDS)
            place = ("127.0.0.1", self.port) if self.port else os.fspath(self.path)
            # Any other answer is of a listener, such as one for which too many wait.
            if sock.connect_ex(place) not in (errno.ENOENT, errno.ECONNREFUSED):
                return False
        if not self.port:
            self.path.unlink(missing_ok=True)
        return True


def require_short(
    path: Path,
    place: str = "--socket",
    next_step: str = "--socket PATH, with a shorter one; or export TMPDIR=/tmp",
) -> None:
    """Raise UsageError if a path is too long for a socket."""
    length = len(os.fsencode(path))
    if length > LONGEST_PATH:
        raise UsageError(
            f"a socket's path has at most {LONGEST_PATH} bytes, and this one has {length}: {path}",
            place=place,
            next_step=next_step,
        )


def private_directory() -> Path:
    """Return the directory for sockets, which only this user can enter; it is created if missing.

    It is on this host, since a socket in a shared home directory would look alive on all of them.

    Raises:
        UntrustedError: it belongs to another user, or others can enter it.
    """
    directory = Path(tempfile.gettempdir()) / f"toolkit-{os.geteuid()}"
    # Any user can take the first name, and so keep others from connecting.
    own = os.environ.get("XDG_RUNTIME_DIR")
    for each in (directory, Path(own, "toolkit") if own else directory):
        with suppress(OSError):
            each.mkdir(mode=0o700, exist_ok=True)
            status = each.lstat()
            is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if is_own and not status.st_mode & 0o077:
                return each
    raise UntrustedError(
        f"{directory} is not a directory of your own that only you can enter",
        place=str(directory),
        next_step="--socket PATH, in a directory of your own (chmod 700)",
    )


def target(text: str) -> str:
    """Return a valid PORT or SOCKET.

    Raises:
        UsageError: it is neither.
    """
    if text.startswith("/"):
        require_short(Path(text), "PORT-or-SOCKET", "a server on a shorter path, or on a port")
        return text
    if text.isascii() and text.isdecimal() and 0 < int(text) < 65536:
        return str(int(text))
    raise UsageError(
        f"{text!r} is neither a port nor the absolute path of a socket",
        place="PORT-or-SOCKET",
        next_step="a port, such as 6006, or a path, such as /tmp/server.sock",
    )


def socket_path(door: Door) -> Path:
    """Return the default path of the socket on this host.

    An example is ``/tmp/toolkit-1000/train-0007-5f3a9c-6006``. Runs of several directories have the
    same name, several nodes the same port, and several servers the same name of a socket, so part
    of a hash of all of them is in it.
    """
    run, node, where = door.run, door.node, door.target
    words = (os.fsencode(run.directory.resolve()), os.fsencode(node), os.fsencode(where))
    own = hashlib.sha256(b"\0".join(words)).hexdigest()[:6]
    name = re.sub(r"[^A-Za-z0-9._-]", "-", Path(where).name)[-_LONGEST_NAME:]  # ssh splits at ":"
    return private_directory() / f"{run.name}-{own}-{name}"


def _forwarded(path: str) -> str:
    """Return the path of a socket for ``ssh -L``, in which colons and percents have a meaning."""
    return path.replace("\\", "\\\\").replace(":", "\\:").replace("%", "%%")


def carry(door: Door, entrance: Entrance) -> Iterator[tuple[str, str]]:
    """Carry connections to a server until the job ends; connect again if the step is lost.

    Yields:
        What happens, as a subject and a text: ``connected`` at first, ``ended`` at last.

    Raises:
        CommandFailedError: there was no connection at all.
    """
    was_open = False
    while True:
        is_open, lines = False, deque[str](maxlen=5)
        for line in _connection(door, entrance):
            if line == _READY:
                is_open = True
                yield "connected", f"to {door.node}{' again' if was_open else ''}"
            elif line.startswith("channel "):
                yield "refused", f"{door.target} of {door.node}: {line.partition(': ')[2]}"
            elif line.strip():
                lines.append(line)
        was_open = was_open or is_open
        with suppress(SlurmUnreachableError):  # which does not end the job
            if not door.is_running():
                yield "ended", f"{door.run.name} is not running any more"
                return
        if not was_open:
            raise CommandFailedError(
                f"there is no connection to {door.node}",
                place=door.run.name,
                details=lines,
                next_step=f"what a session says: toolkit ssh --host {door.run.word} true",
            )
        reason = lines[0] if lines else "it was closed"
        yield "lost", f"connection to {door.node}: {reason}; next try in {_PAUSE:g} s"
        time.sleep(_PAUSE)


def _connection(door: Door, entrance: Entrance) -> Iterator[str]:
    """Run an ssh that forwards; yield the lines that it prints, and _READY once it forwards."""
    place = door.target
    place = _forwarded(place) if place.startswith("/") else f"localhost:{place}"
    options = (
        *("-N", "-T", "-oBatchMode=yes", "-oExitOnForwardFailure=yes"),
        *("-oStreamLocalBindUnlink=yes", "-oPermitLocalCommand=yes"),
        *(f"-oLocalCommand=echo {_READY}", "-L", f"{entrance.address}:{place}"),
    )
    process = programs.start(
        door.client(options, "image", door.target),
        env=environment(),
        stderr=subprocess.STDOUT,
        new_session=True,
        preexec_fn=die_with_parent,
    )
    with process:
        try:
            assert process.stdout is not None
            yield from (line.rstrip("\r\n") for line in process.stdout)
        finally:
            process.terminate()
            process.wait()
            entrance.remove_dead()


def ssh_command(port: int, path: Path) -> str:
    """Return the command for the user's own machine that connects a port of it to a socket.

    The socket is on this host only, and the name of a cluster may lead to several. Without a
    connection of ssh, whose end this host was, it is the host's own name.
    """
    name, fields = socket.getfqdn(), os.environ.get("SSH_CONNECTION", "").split()
    host, own_port = socket.gethostname() if name.startswith("localhost") else name, "22"
    if len(fields) == 4:
        host, own_port = fields[2:]
    option = f"-p {shell(own_port)} " if own_port != "22" else ""
    return f"ssh -N {option}-L {port}:{shell(path)} {shell(getpass.getuser())}@{shell(host)}"


# The server of a notebook is JupyterLab, as its run describes it.

LAUNCHER = "notebook"
PLACE = "place.json"  # of the server, which writes it once it listens


class Place(Model, frozen=True, kw_only=True):
    """The place at which a server listens; it writes this itself, once it does."""

    node: str
    socket: str


def is_notebook(run: Run) -> bool:
    """Return whether a run is a notebook."""
    try:
        return run.plan.launch.launcher == LAUNCHER
    except (ConfigError, OSError):
        return False


def newest(runs: Path) -> Run | None:
    """Return the newest notebook that has not ended as far as is known, else the newest of all."""
    ordered = sorted(all_runs(runs), key=lambda run: run.has_ended)
    return next(filter(is_notebook, ordered), None)


def require_notebook(run: Run) -> None:
    """Raise UsageError if a run is not a notebook."""
    if not is_notebook(run):
        raise UsageError(
            f"{run.name} is not a notebook",
            place="RUN",
            next_step=f"toolkit ps; another server: toolkit forward {run.word} PORT",
        )


def server(run: Run) -> Door:
    """Return the server of a notebook, and its token.

    Raises:
        UsageError: the run is not a notebook.
        JobLostError: it is not running, or its server does not listen yet.
        ForbiddenError: the run is another user's.
        UntrustedError: another user could exchange it.
    """
    run.require_own()  # it says which server gets the token
    require_notebook(run)
    try:
        place = read_json(run.directory / PLACE, Place, below=run.directory)
        token = read_text(run.directory / "token", below=run.directory).strip()
    except (ConfigError, OSError) as error:
        status.require_running(run)
        raise JobLostError(
            f"the server of {run.name} does not listen yet",
            place="RUN",
            next_step=f"try again in a minute; its messages: toolkit logs {run.word}",
        ) from error
    return locate(run, place.socket, node=place.node)._replace(token=token)
