"""`toolkit ssh` and `toolkit forward`: from a login node into a job, past the network."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster_fixtures import Toolkit
from tests.cluster.forwarding import CONNECT, LONG, Forward, free_port
from tests.cluster.ranks import ran, wait_for
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
    words = "run --detach --runtime none --launcher none --nodelist nid002 --job-name web --"
    done = toolkit(*words.split(), sys.executable, "serve.py", cwd=directory)
    assert done.returncode == 0, done.stderr
    wait_for((directory / "port").exists, "the server")
    yield directory, (directory / "port").read_text()
    toolkit("cancel", "web-0001", cwd=directory)


def test_a_forward_ends_with_its_server(serving, toolkit_env, started):
    """Else it would go on to whoever takes the port."""
    directory, _ = serving
    there = ("ssh", "--host", "web-0001", "python3", "-c", _OWN)
    server = started(*there, cwd=directory, stdin=subprocess.PIPE, stderr=None)
    port = server.stdout.readline().strip()
    door = Forward(directory, toolkit_env, "forward", "web-0001", port)
    server.stdin.close()
    wait_for(lambda: door.says(f"nothing listens on port {port}"), "the end of the forward")
    assert not door.socket.exists()
    assert door.end() == 130
    server.wait(LONG)


def test_from_the_login_node_to_a_server_in_a_job(serving, toolkit_env, toolkit, started, user):
    directory, port = serving
    here = "from nid002"
    door = Forward(directory, toolkit_env, "forward", "web-0001", port)
    assert door.entry["address"] == f"http://localhost:{port}/"
    assert door.get().endswith(here)
    modes = [path.stat().st_mode & 0o777 for path in (door.socket, door.socket.parent)]
    assert modes == [0o600, 0o700]

    # A second user gets nothing on the login node, although the path is known.
    if user.become:
        tried = user.run("python3", "-c", CONNECT, str(door.socket))
        assert "PermissionError" in tried.stderr, tried

    # One connection that floods, and is read slowly, delays no other.
    with socket.socket(socket.AF_UNIX) as flood:
        flood.connect(str(door.socket))
        flood.sendall(b"GET /flood HTTP/1.0\r\n\r\n")
        for _ in range(5):
            assert door.get().endswith(here)

    # A second command for the same server; a port that nobody has; and one of another user of the
    # node, who could have taken it first.
    def refused(target: str) -> tuple[int, str]:
        done = toolkit("forward", "web-0001", target, cwd=directory)
        return done.returncode, done.stderr

    for target, code, message in (
        (port, 75, "listens on"),
        ("1", 71, "nothing listens on port 1 of nid002"),
    ):
        assert (refused(target)[0], message in refused(target)[1]) == (code, True)
    if user.become:
        there = (*"cluster exec --node nid002 --".split(), *user.become, "/usr/bin/python3", "-c")
        with started(*there, _LISTEN, stdin=subprocess.PIPE) as other:
            for target in (other.stdout.readline().strip(), other.stdout.readline().strip()):
                code, said = refused(target)
                assert (code, "belongs to another user" in said) == (71, True), said
            other.stdin.close()

    # The command is killed: its step on the node goes, and the socket that is left stops nobody.
    door.process.kill()
    wait_for(lambda: not _steps(toolkit), "the step to end")
    door = Forward(directory, toolkit_env, "forward", "web-0001", port)
    assert door.get().endswith(here)
    # srun is killed, then the step: it starts again.
    for process in _sruns(directory):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    wait_for(lambda: door.says("nid002 again"), "the step to start again")
    assert door.says("lost       connection to nid002: ")
    assert door.get().endswith(here)
    door.messages.write_text("")
    for step in _steps(toolkit):
        toolkit("cluster", "exec", "--", "scancel", step, cwd=directory)
    wait_for(lambda: door.says("nid002 again"), "the step to start again")
    assert door.get().endswith(here)
    # The job ends while 40 clients are connected: a plain end, and nothing is left.
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
    assert door.says("not running any more")
    assert not door.socket.exists()
    code, said = refused(port)
    assert (code, "is not running" in said) == (87, True)


def test_other_programs_of_openssh(cluster, pytorch_image, toolkit, toolkit_env, base):
    """As VS Code has it: an install script over ssh, then a server of its own that is forwarded."""
    del cluster
    directory = base / "w" / "it's $(touch pwned) 50%h 한글"
    home = base / "w" / "home"
    directory.mkdir(parents=True)
    home.mkdir()
    env = {**toolkit_env, "HOME": str(home)}
    start = "run --detach --launcher srun --nodes 2 --gpus-per-node 1 --ntasks-per-node 1"
    work = ("--job-name", "work", "--image", str(pytorch_image), "--env", "WORD=a b")
    done = toolkit(*start.split(), *work, "--", "sleep", "600", cwd=directory)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: "RUNNING" in toolkit("ps", cwd=directory).stdout, "the job")

    def session(*words: str) -> subprocess.CompletedProcess[str]:
        return toolkit("ssh", *words, cwd=directory, env=env)

    # With the job's variables and GPUs, on the node that is asked for, words and exit code intact.
    seen = session("work-0001", 'echo "$WORD $CUDA_VISIBLE_DEVICES $(uname -n)"; pwd')
    assert re.fullmatch(f"a b [01] nid001\n{re.escape(str(directory))}\n", seen.stdout), seen
    seen = session("--rank", "1", "work-0001", 'echo "$(uname -n)"; command -v python3')
    assert seen.stdout == "nid002\n/opt/venv/bin/python3\n"
    script = 'printf "<%s>" "$@"; exit 7'
    seen = session("--host", "work-0001", "bash", "-c", script, "-", "a b", "$x")
    assert (seen.returncode, seen.stdout, seen.stderr) == (7, "<a b><$x>", "")

    argv = (sys.executable, "-m", "toolkit", "ssh", "work-0001")
    terminal = Terminal(argv, env={**env, "TERM": "dumb"}, cwd=directory)
    assert terminal.ask("tty >&2; echo $(uname -n)", 1) == "nid001"
    terminal.resize(40, 120)
    wait_for(lambda: terminal.ask("stty size", 2) == "40 120", "the new size")
    terminal.press("exit 3\n")
    assert terminal.code() == 3

    installed = session("--install", "work-0001")
    assert "Include toolkit.d/*.conf" in installed.stdout, installed.stderr
    config = home / ".ssh/toolkit.d/work-0001.conf"

    def outside(*words: object, **more: object) -> str:
        done = ran(words[0], "-F", config, *words[1:], cwd=base, env=env, **more)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    sent = base / "w/sent"
    sent.write_text("sent")
    script = "set -e; mkdir -p server; echo 'listening on' $(uname -n); exit 0\n"
    assert outside("ssh", "work-0001", "bash", "-s", stdin=script) == "listening on nid001\n"
    outside("scp", "-q", sent, "work-0001:server/scp")
    outside("scp", "-q", "-O", sent, "work-0001:server/old")
    outside("sftp", "-q", "-b", "-", "work-0001", stdin=f"@put {sent} server/sftp\n")
    copied = ran("rsync", f"--rsh=ssh -F {config}", sent, "work-0001:server/rsync", env=env)
    assert copied.returncode == 0, copied.stderr
    arrived = {path.name: path.read_text() for path in (directory / "server").iterdir()}
    assert arrived == dict.fromkeys(("scp", "old", "sftp", "rsync"), "sent")

    # Its server listens on a port or a socket of the node; the client asks by -D, -L to either.
    (directory / "serve.py").write_text(_SERVER + "\n")
    begin = ("ssh", "-F", config, "work-0001", "python3", "serve.py")
    with subprocess.Popen(begin, env=env, stdin=subprocess.DEVNULL) as server:
        wait_for((directory / "port").exists, "the server")
        port, own = (directory / "port").read_text(), base / "w/local"
        number = free_port()
        way = ("-N", "-D", f"127.0.0.1:{number}", "-L", f"{own}:127.0.0.1:{port}")
        with subprocess.Popen(("ssh", "-F", config, *way, "work-0001"), env=env) as tunnel:
            wait_for(own.exists, "the tunnel")
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(own))
                assert _page(sock) == "from nid001"
            with socket.create_connection(("127.0.0.1", number)) as sock:  # SOCKS5, RFC 1928
                sock.sendall(b"\5\1\0")
                assert sock.recv(2) == b"\5\0"
                sock.sendall(b"\5\1\0\1\x7f\0\0\1" + struct.pack(">H", int(port)))
                assert sock.recv(10)[:2] == b"\5\0"
                assert _page(sock) == "from nid001"
            # The end of the job is the end of all.
            toolkit("cancel", "work-0001", cwd=directory)
            assert tunnel.wait(LONG) == 255
        assert server.wait(LONG) == 255
    assert session("work-0001").returncode == 87
    assert not list((base / "w").rglob("pwned"))


def _page(sock: socket.socket) -> str:
    """What a server answers."""
    sock.settimeout(LONG)
    sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
    with sock.makefile() as stream:
        return stream.read().partition("\n\n")[2]


def _steps(toolkit: Toolkit) -> list[str]:
    """The steps of jobs by which ssh reaches nodes."""
    ask = "cluster exec -- squeue --steps --noheader".split()
    rows = toolkit(*ask, "--format=%i %j").stdout
    return [row.split()[0] for row in rows.splitlines() if "toolkit-ssh" in row]


def _sruns(cwd: Path) -> list[int]:
    """The processes of srun by which a directory's commands reach nodes."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (place / "cmdline").read_bytes().split(b"\0")
            is_ssh = b"--job-name=toolkit-ssh" in words and words[0].endswith(b"srun")
            if is_ssh and (place / "cwd").readlink() == cwd:
                found.append(int(place.name))
    return found


_OWN = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""
# Listens on a port and on a socket that everybody may connect to, until its input ends.
_LISTEN = """
import os, socket, sys, tempfile
port, path = socket.socket(), socket.socket(socket.AF_UNIX)
port.bind(("127.0.0.1", 0)), port.listen()
print(port.getsockname()[1], flush=True)
place = tempfile.mkdtemp()
path.bind(place + "/s"), path.listen()
os.chmod(place, 0o755), os.chmod(place + "/s", 0o777)
print(place + "/s", flush=True)
sys.stdin.read()
"""
