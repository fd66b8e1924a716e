"""`toolkit forward`: the way from a login node to a server in a job, past the network."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.cluster_fixtures import Toolkit
from tests.cluster.forwarding import LONG, Forward
from tests.cluster.ordinary_user import User
from tests.cluster.ranks import wait_for
from tests.cluster.ssh import own_sshd
from tests.cluster.terminal import Terminal

_SERVER = """
import http.server, socketserver, os
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        if self.path == "/flood":
            while True:
                self.wfile.write(b"x" * 65536)
        if self.path == "/end":
            os.kill(os.getppid(), 15)
        self.wfile.write(b"from " + os.uname().nodename.encode())
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
open("port.new", "w").write(str(server.server_address[1]))
os.rename("port.new", "port")
server.serve_forever()
"""


@pytest.fixture(scope="module")
def serving(cluster: str, toolkit: Toolkit, base: Path) -> Iterator[tuple[Path, str]]:
    """A job on the second node with a web server on its loopback address: the directory, and the port."""
    del cluster
    directory = base / "w" / "forward"
    directory.mkdir(parents=True)
    (directory / "serve.py").write_text(_SERVER)
    words = (
        "run --detach --runtime none --launcher none --nodelist nid002 --job-name web --".split()
    )
    done = toolkit(*words, sys.executable, "serve.py", cwd=directory)
    assert done.returncode == 0, done.stderr
    wait_for((directory / "port").exists, "the server")
    yield directory, (directory / "port").read_text()
    toolkit("cancel", "web-0001", cwd=directory)


def test_where_nodes_take_ssh(
    serving: tuple[Path, str], toolkit_env: dict[str, str], shared_dir: Path
) -> None:
    directory, port = serving
    there = (sys.executable, "-m", "toolkit", "cluster", "exec", "--node", "nid002", "--")
    tests = (f"{name}={toolkit_env[name]}" for name in ("TOOLKIT_CLUSTER", "TOOLKIT_CLUSTER_DIR"))
    with own_sshd(shared_dir, ("env", *tests, *there)) as settings:
        door = Forward(directory, {**toolkit_env, **settings}, "forward", "web-0001", port, "--ssh")
        assert door.get().endswith("from nid002")
        assert "Accepted publickey" in (shared_dir / "log").read_text()
        assert door.end() == 130
        options = ("--nodelist", "nid002", "--forward", port, "--ssh")
        with _shell(directory, {**toolkit_env, **settings}, *options, job=True) as shell:
            assert shell.terminal.ask("hostname", 1) == "nid002"
            assert shell.get(0).endswith("from nid002")
            assert (shared_dir / "log").read_text().count("Accepted publickey") == 2
            shell.terminal.press("exit\n")
            assert shell.terminal.code() == 0
    assert not door.socket.exists()


def test_from_the_login_node_to_a_server_in_a_job(
    serving: tuple[Path, str],
    toolkit_env: dict[str, str],
    toolkit: Toolkit,
    user: User,
) -> None:
    directory, port = serving
    door = Forward(directory, toolkit_env, "forward", "web-0001", port)
    assert door.entry["address"] == f"http://localhost:{port}/"
    assert door.get().endswith("from nid002")
    assert (door.socket.stat().st_mode & 0o777, door.socket.parent.stat().st_mode & 0o777) == (
        0o600,
        0o700,
    )

    # A second user gets nothing on the login node, although the path is known.
    if user.become:
        tried = user.run("python3", "-c", _CONNECT, str(door.socket))
        assert "PermissionError" in tried.stderr, tried

    # One connection that floods, and is read slowly, delays no other.
    with socket.socket(socket.AF_UNIX) as flood:
        flood.connect(str(door.socket))
        flood.sendall(b"GET /flood HTTP/1.0\r\n\r\n")
        for _ in range(5):
            assert door.get().endswith("from nid002")

    # A second command for the same server, a server that does not answer, a job that ended.
    again = toolkit("forward", "web-0001", port, cwd=directory, env=toolkit_env)
    assert (again.returncode, "listens on" in again.stderr) == (75, True)
    wrong = toolkit("forward", "web-0001", port, "--node", "nid001", cwd=directory)
    assert (wrong.returncode, "nid002" in wrong.stderr) == (64, True)
    long = toolkit("forward", "web-0001", port, "--socket", f"/tmp/{'x' * 103}", cwd=directory)
    assert (long.returncode, "at most 107 bytes" in long.stderr) == (64, True)

    # The relay is killed: its end on the node goes, and the socket that is left stops nobody.
    door.process.kill()
    wait_for(lambda: not _relays(directory), "the relay's processes to end")
    door = Forward(directory, toolkit_env, "forward", "web-0001", port)
    assert door.get().endswith("from nid002")
    # srun is killed: it starts again.
    for process in _relays(directory):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    wait_for(lambda: door.says("nid002 again"), "the relay to start again")
    assert door.says("connection to nid002: it was ended by SIGKILL")
    assert door.get().endswith("from nid002")
    door.messages.write_text("")

    # The step is killed: it starts again.
    steps = toolkit(
        "cluster", "exec", "--", "squeue", "--steps", "--noheader", "--format=%i %j", cwd=directory
    )
    for line in steps.stdout.splitlines():
        if "toolkit-relay" in line:
            toolkit("cluster", "exec", "--", "scancel", line.split()[0], cwd=directory)
    wait_for(lambda: "nid002 again" in door.messages.read_text(), "the relay to start again")
    assert door.get().endswith("from nid002")
    # The job ends while 40 clients are connected: a plain end, and nothing is left.
    door.get("/flood", most=1000)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(40)]
        for client in clients:
            client.settimeout(LONG)
            client.connect(str(door.socket))
            client.sendall(b"GET /flood HTTP/1.0\r\n\r\n")
            assert client.recv(1)
        toolkit("cancel", "web-0001", cwd=directory)
        for client in clients:
            with contextlib.suppress(ConnectionError):
                while client.recv(65536):
                    pass
    assert door.process.wait(LONG) == 0
    assert "not running any more" in door.messages.read_text()
    assert not door.socket.exists()
    ended = toolkit("forward", "web-0001", port, cwd=directory)
    assert (ended.returncode, "is not running" in ended.stderr) == (87, True)


def test_a_server_that_is_started_in_a_shell_is_reached_while_that_is_open(
    cluster: str, toolkit_env: dict[str, str], shared_dir: Path, user: User
) -> None:
    (shared_dir / "serve.py").write_text(_SERVER.replace('("127.0.0.1", 0)', '("127.0.0.1", 6006)'))
    options = "--nodes 2 --forward 6006 --forward /tmp/none.sock".split()
    with _shell(shared_dir, toolkit_env, *options) as shell:
        before = shell.terminal.until("script ")
        assert "http://localhost:6006/" in before
        assert "http://localhost:8888/  (/tmp/none.sock)" in before
        node = shell.terminal.ask("hostname", 1)
        assert node.startswith("nid00")

        # Nobody listens: it says so, below the line on which the user types.
        assert shell.get(0) == ""
        shell.terminal.until(
            f"\nrefused    port 6006 of {node} does not answer: Connection refused"
        )
        assert shell.get(1) == ""
        shell.terminal.until(f"/tmp/none.sock of {node} does not answer: No such file")

        shell.terminal.ask(f"{sys.executable} serve.py & echo", 2)
        wait_for((shared_dir / "port").exists, "the server")
        assert shell.get(0).endswith(f"from {node}")
        if user.become:
            tried = user.run("python3", "-c", _CONNECT, str(shell.sockets[0]))
            assert "PermissionError" in tried.stderr, tried

        # Ctrl-C is the remote program's.
        shell.terminal.press("echo is waiting; sleep 300\n")
        shell.terminal.until("is waiting\r\n")
        until_ended(shell.terminal)
        assert shell.get(0).endswith(f"from {node}")
        shell.terminal.ask("kill %1; wait; PS1='ready> '; echo", 4)
        shell.terminal.until("\nready> ")
        shell.terminal.press("\x04")
        assert shell.terminal.code() == 0
    assert cluster


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_a_shell_that_is_ended_leaves_no_relay(
    cluster: str, toolkit_env: dict[str, str], shared_dir: Path, number: int
) -> None:
    with _shell(shared_dir, toolkit_env, "--forward", "6006") as shell:
        shell.terminal.until("script ")
        assert shell.terminal.ask("hostname", 1).startswith("nid00")
        assert shell.get(0) == ""
        shell.terminal.until("does not answer")
        shell.terminal.send(number)
        shell.terminal.code()
    assert cluster


def until_ended(terminal: Terminal) -> None:
    """Press Ctrl-C until the program in the shell has ended."""
    for number in range(30, 50):  # a Ctrl-C while bash starts the program goes to neither
        terminal.press("\x03")
        with contextlib.suppress(AssertionError):
            terminal.press(f"echo ended by $? END$(({number}+0))\n")
            assert "ended by 130" in terminal.until(f"END{number}", seconds=5)
            return
    raise AssertionError(terminal.seen)


class _Shell(NamedTuple):
    """A shell on a node, and the sockets that its servers are reached by."""

    terminal: Terminal
    sockets: list[Path]

    def get(self, place: int) -> str:
        """The answer of a server, or nothing if the connection is closed."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(LONG)
            sock.connect(str(self.sockets[place]))
            data = bytearray()
            with contextlib.suppress(ConnectionError):
                sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
                while part := sock.recv(65536):
                    data += part
            return data.decode()


def _relays(cwd: Path) -> list[int]:
    """The processes of srun, and the ways to it, by which a directory's commands reach nodes."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (place / "cmdline").read_text()
            if "toolkit-relay" in words and (place / "cwd").readlink() == cwd:
                found.append(int(place.name))
    return found


@contextlib.contextmanager
def _shell(cwd: Path, env: dict[str, str], *options: str, job: bool = False) -> Iterator[_Shell]:
    """Open a shell, and look that nothing of it is left after its end, unless a job runs there."""
    words = (sys.executable, "-m", "toolkit", "shell", "--runtime", "none", *options)
    terminal = Terminal(words, env={**env, "TERM": "dumb"}, cwd=cwd)
    line = terminal.until("@")
    sockets = [Path(name) for name in re.findall(r"-L \d+:(\S+)", line)]
    assert [name.stat().st_mode & 0o777 for name in sockets] == [0o600] * len(sockets)
    yield _Shell(terminal, sockets)
    wait_for(lambda: not any(name.exists() for name in sockets), "the sockets to be removed")
    wait_for(lambda: job or not _processes(cwd), "all processes to end")


def _processes(cwd: Path) -> list[str]:
    """The commands that run in a directory, also on the nodes of a local cluster."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (place / "cwd").readlink() == cwd:
                found.append((place / "cmdline").read_text())
    return found


_CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
