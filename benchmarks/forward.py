"""Measure `toolkit forward` beside `ssh -L`: throughput and round trip.

A job of a local cluster echoes and floods on a port of its node's loopback address. It is reached
by the relay's socket, and by a plain `ssh -L` to an sshd of this process's own on the loopback
address of this machine, which leads to the same program there. Nothing else listens.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.cluster.ssh import own_sshd
from toolkit.cli import console
from toolkit.records.store import find
from toolkit.relay import gate
from toolkit.runs import forward
from toolkit.units import human_size

_PATIENCE = 60.0
_PROGRAM = """
import os, socket, sys, threading
server = socket.create_server(("127.0.0.1", 0))
with open(sys.argv[1] + ".new", "w") as stream:
    stream.write(str(server.getsockname()[1]))
os.rename(sys.argv[1] + ".new", sys.argv[1])
def serve(sock):
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    flood = sock.recv(1) == b"f"
    try:
        while True:
            sock.sendall(b"x" * 65536 if flood else sock.recv(4096))
    except OSError:
        pass
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""

Connect = Callable[[], socket.socket]


def throughput(connect: Connect, size: int) -> float:
    """Return the bytes per second of a server that sends as much as it can."""
    with connect() as sock:
        sock.sendall(b"f")
        sock.recv(1)
        began, count = time.monotonic(), 0
        while count < size:
            part = sock.recv(1 << 18)
            assert part, "the connection ended"
            count += len(part)
        return count / (time.monotonic() - began)


def round_trips(connect: Connect, count: int) -> list[float]:
    """Return the seconds of round trips of 64 bytes, sorted."""
    times = []
    with connect() as sock:
        sock.sendall(b"e")
        for _ in range(count):
            began = time.monotonic()
            sock.sendall(b"y" * 64)
            left = 64
            while left:
                part = sock.recv(left)
                assert part, "the connection ended"
                left -= len(part)
            times.append(time.monotonic() - began)
    return sorted(times)


def port_of(file: Path) -> str:
    """Return the port that the program has written, once it has."""
    until = time.monotonic() + _PATIENCE
    while not file.exists():
        assert time.monotonic() < until, "the program did not start"
        time.sleep(0.1)
    return file.read_text()


def unix(path: Path) -> socket.socket:
    """Connect to a Unix socket."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(_PATIENCE)
    sock.connect(str(path))
    return sock


@contextlib.contextmanager
def by_relay(place: Path) -> Iterator[Connect]:
    """Start the program in a job, and lead a socket to it."""
    words = ("--runtime", "none", "--launcher", "none", "--job-name", "forward", "--detach", "--")
    toolkit = (sys.executable, "-m", "toolkit")
    subprocess.run(
        (*toolkit, "run", *words, "python3", "serve.py", "port-job"), cwd=place, check=True
    )
    try:
        port = port_of(place / "port-job")
        command = (*toolkit, "forward", "forward-0001", port, "--socket", str(place / "door"))
        paths = find("forward-0001", place / "runs")
        forward.locate(paths, port)  # the job runs
        process = subprocess.Popen(
            command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline(), "toolkit forward did not start"
        gate.require_short(place / "door")
        yield lambda: unix(place / "door")
        process.terminate()
        process.wait(_PATIENCE)
    finally:
        subprocess.run(
            (*toolkit, "cancel", "forward-0001"), cwd=place, check=True, capture_output=True
        )


@contextlib.contextmanager
def by_ssh(place: Path) -> Iterator[Connect]:
    """Start the program here, and lead a socket to it by `ssh -L`."""
    keys = place / "ssh"
    keys.mkdir()
    with (
        own_sshd(keys) as environment,
        subprocess.Popen((sys.executable, "serve.py", "port-here"), cwd=place) as program,
    ):
        port = port_of(place / "port-here")
        leads = f"{place}/tunnel:127.0.0.1:{port}"
        tunnel = subprocess.Popen(("ssh", "-N", "-L", leads, "site"), env=environment)
        until = time.monotonic() + _PATIENCE
        while not (place / "tunnel").exists():
            assert time.monotonic() < until, "ssh did not connect"
            time.sleep(0.1)
        yield lambda: unix(place / "tunnel")
        tunnel.terminate()
        tunnel.wait()
        program.terminate()


def main() -> int:
    """Measure both, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--size", type=int, default=50_000_000, help="bytes to send (default 50 MB)"
    )
    parser.add_argument("--count", type=int, default=2000, help="round trips (default 2000)")
    options = parser.parse_args()
    rows = []
    # Every node of a local cluster sees the home directory.
    with tempfile.TemporaryDirectory(prefix="bench-", dir=Path.home() / ".cache") as name:
        place = Path(name)
        (place / "serve.py").write_text(_PROGRAM)
        for title, method in (("toolkit forward", by_relay), ("ssh -L", by_ssh)):
            with method(place) as connect:
                speed = throughput(connect, options.size)
                times = round_trips(connect, options.count)
            median, slow = statistics.median(times), times[int(len(times) * 0.99)]
            rows.append(
                (
                    title,
                    f"{human_size(round(speed))}/s",
                    f"{median * 1e3:.2f} ms",
                    f"{slow * 1e3:.2f} ms",
                )
            )
    console.out(console.table(("BY", "THROUGHPUT", "ROUND TRIP", "99TH PERCENTILE"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
