"""`toolkit forward`: the way from a login node to a server in a job, past the network."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster_fixtures import Toolkit
from tests.cluster.forwarding import LONG, Forward
from tests.cluster.ordinary_user import User
from tests.cluster.ranks import wait_for
from tests.cluster.ssh import own_sshd

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


def _relays(cwd: Path) -> list[int]:
    """The processes of srun, and the ways to it, by which a directory's commands reach nodes."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (place / "cmdline").read_text()
            if "toolkit-relay" in words and (place / "cwd").readlink() == cwd:
                found.append(int(place.name))
    return found


_CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
