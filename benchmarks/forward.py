"""Measure `toolkit forward` beside `ssh -L` and `srun` alone: throughput and round trip.

A job of a local cluster echoes and floods on a port of its node's loopback address. It is reached
by the relay's socket, and by a plain `ssh -L` to an sshd of this process's own on the loopback
address of this machine, which leads to the same program there. `srun cat` is the bound of a relay
through srun that does not compress, and a relay over two pipes is what the relay itself can do.
Nothing else listens.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.cluster.ssh import own_sshd
from toolkit.cli import console
from toolkit.relay import gate, sockets
from toolkit.runs import forward
from toolkit.runs.directories import find
from toolkit.slurm.client import without_job
from toolkit.units import human_size

_PATIENCE = 60.0
_PROGRAM = """
import os, socket, sys, threading
random = os.urandom(65536)
text = open(threading.__file__, "rb").read(65536)
server = socket.create_server(("127.0.0.1", 0))
with open(sys.argv[1] + ".new", "w") as stream:
    stream.write(str(server.getsockname()[1]))
os.rename(sys.argv[1] + ".new", sys.argv[1])
def serve(sock):
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    flood = {b"r": random, b"t": text}.get(sock.recv(1))
    try:
        while True:
            sock.sendall(flood or sock.recv(4096))
    except OSError:
        pass
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""

Connect = Callable[[], socket.socket]


class Row(NamedTuple):
    """The bytes per second of both kinds of content, and the seconds of round trips, sorted."""

    title: str
    random: float
    text: float
    times: list[float]

    def cells(self) -> tuple[str, ...]:
        """Return a row of the table."""
        rates = (f"{human_size(round(rate))}/s" for rate in (self.random, self.text))
        median, slow = statistics.median(self.times), self.times[int(len(self.times) * 0.99)]
        return (self.title, *rates, f"{median * 1e3:.2f} ms", f"{slow * 1e3:.2f} ms")


def throughput(connect: Connect, kind: bytes, size: int) -> float:
    """Return the bytes per second of a server that sends as much as it can."""
    with connect() as sock:
        sock.sendall(kind)
        return received_rate(lambda: sock.recv(1 << 18), size)


def received_rate(read: Callable[[], bytes], size: int) -> float:
    """Return the bytes per second, from the first ones on."""
    read()
    began, count = time.monotonic(), 0
    while count < size:
        part = read()
        assert part, "the connection ended"
        count += len(part)
    return count / (time.monotonic() - began)


def echoes(connect: Connect, count: int) -> list[float]:
    """Return the seconds of round trips of 64 bytes, sorted."""
    with connect() as sock:
        sock.sendall(b"e")
        return round_trips(sock.sendall, sock.recv, count)


def round_trips(
    send: Callable[[bytes], object], read: Callable[[int], bytes], count: int
) -> list[float]:
    """Return the seconds of round trips of 64 bytes, sorted."""
    times = []
    for _ in range(count):
        began = time.monotonic()
        send(b"y" * 64)
        left = 64
        while left:
            part = read(left)
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
def in_a_job(place: Path) -> Iterator[forward.Door]:
    """Start the program in a job, and give the way to it."""
    words = ("--runtime", "none", "--launcher", "none", "--job-name", "forward", "--detach", "--")
    toolkit = (sys.executable, "-m", "toolkit")
    subprocess.run(
        (*toolkit, "run", *words, "python3", "serve.py", "port-job"), cwd=place, check=True
    )
    try:
        port = port_of(place / "port-job")
        yield forward.locate(find("forward-0001", place / "runs"), port)
    finally:
        subprocess.run(
            (*toolkit, "cancel", "forward-0001"), cwd=place, check=True, capture_output=True
        )


@contextlib.contextmanager
def by_relay(route: gate.Route, place: Path) -> Iterator[Connect]:
    """Lead a socket to the program by a relay in a process of its own."""
    place.mkdir(mode=0o700)
    with sockets.listening(place / "door") as listener:
        relay = multiprocessing.get_context("fork").Process(
            target=lambda: deque(gate.carry([listener], route), maxlen=0)
        )
        relay.start()
        try:
            yield lambda: unix(place / "door")
        finally:
            os.kill(relay.pid or 0, signal.SIGINT)  # so that it ends its srun
            relay.join()


@contextlib.contextmanager
def by_ssh(place: Path) -> Iterator[Connect]:
    """Lead a socket to the program on this machine by `ssh -L`."""
    place.mkdir(mode=0o700)
    with own_sshd(place) as environment:
        leads = f"{place}/tunnel:127.0.0.1:{port_of(place.parent / 'port-here')}"
        tunnel = subprocess.Popen(("ssh", "-N", "-L", leads, "site"), env=environment)
        until = time.monotonic() + _PATIENCE
        while not (place / "tunnel").exists():
            assert time.monotonic() < until, "ssh did not connect"
            time.sleep(0.1)
        yield lambda: unix(place / "tunnel")
        tunnel.terminate()
        tunnel.wait()


@contextlib.contextmanager
def local_program(place: Path) -> Iterator[str]:
    """Start the program on this machine, and give its port."""
    with subprocess.Popen((sys.executable, "serve.py", "port-here"), cwd=place) as program:
        yield port_of(place / "port-here")
        program.terminate()


def measured(title: str, connect: Connect, size: int, count: int) -> Row:
    """Measure a way to the program."""
    random, text = (throughput(connect, kind, size) for kind in (b"r", b"t"))
    return Row(title, random, text, echoes(connect, count))


def srun_alone(door: forward.Door, size: int, count: int) -> Row:
    """Measure what srun does without a relay."""
    pipe = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
        "env": without_job(os.environ),
    }
    rates = []
    for command in ("head -c {} /dev/urandom", "yes 'the same line' | head -c {}"):
        words = door.transport(("sh", "-c", command.format(2 * size)))
        with subprocess.Popen(words, **pipe) as process:  # type: ignore[call-overload]
            rates.append(received_rate(lambda: os.read(process.stdout.fileno(), 1 << 16), size))
            process.kill()
    with subprocess.Popen(door.transport(("cat",)), **pipe) as process:  # type: ignore[call-overload]
        there, back = process.stdin.fileno(), process.stdout.fileno()
        times = round_trips(lambda data: os.write(there, data), lambda n: os.read(back, n), count)
        process.stdin.close()
    return Row("srun cat", rates[0], rates[1], times)


def rows(place: Path, size: int, count: int) -> Iterator[Row]:
    """Measure every route."""
    (place / "serve.py").write_text(_PROGRAM)
    with in_a_job(place) as door:
        yield srun_alone(door, size, count)
        for packs in (False, True):
            route = gate.Route(door.transport, [door.target], door.is_running, packs=packs)
            title = "toolkit forward" + ("" if packs else ", not compressed")
            with by_relay(route, place / f"relay{packs:d}") as connect:
                yield measured(title, connect, size, count)
    with local_program(place) as port:
        route = gate.Route(lambda command: command, [port], lambda: True, packs=False)
        with by_relay(route, place / "pipes") as connect:
            yield measured("the relay over two pipes", connect, size, count)
        with by_ssh(place / "ssh") as connect:
            yield measured("ssh -L", connect, size, count)


def main() -> int:
    """Measure all, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--size", type=int, default=50_000_000, help="bytes to send (default 50 MB)"
    )
    parser.add_argument("--count", type=int, default=2000, help="round trips (default 2000)")
    options = parser.parse_args()
    # Every node of a local cluster sees the home directory.
    with tempfile.TemporaryDirectory(prefix="bench-", dir=Path.home() / ".cache") as name:
        cells = [row.cells() for row in rows(Path(name), options.size, options.count)]
    header = ("BY", "RANDOM BYTES", "TEXT", "ROUND TRIP", "99TH PERCENTILE")
    console.out(console.table(header, cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
