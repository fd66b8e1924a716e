"""Examine one node from inside the image, and its links to the others; write report-<task>.json.

One task runs on each node. They exchange files in the current working directory, which every node
sees. No framework is imported. Runs on every Python since 3.6.

Arguments: the first and the last port at which ranks meet; the network interface between the nodes,
if the site knows one.
"""

import contextlib
import fcntl
import json
import os
import re
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

PATIENCE = 60.0  # seconds for the other nodes to come
ANSWER = 4.0  # seconds for a connection
AMOUNT = 8 * 1024 * 1024  # bytes that are sent to measure the throughput between two nodes
TASK, TASKS = int(os.environ.get("SLURM_PROCID", "0")), int(os.environ.get("SLURM_NTASKS", "1"))
FIRST_PORT, LAST_PORT = int(sys.argv[1]), int(sys.argv[2])
INTERFACE = sys.argv[3] if len(sys.argv) > 3 else ""
ADDRESS_OF = 0x8915  # SIOCGIFADDR


def gpus() -> Any:
    """Return the GPUs that nvidia-smi lists, else those that the driver has files for."""
    with contextlib.suppress(OSError):
        listing = subprocess.run(
            ["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ).stdout.decode(errors="replace")
        listed = re.findall(r"^(GPU .*?)(?: \(UUID.*)?$", listing, re.MULTILINE)
        if listed:
            return listed
    texts = (
        path.read_text(errors="replace")
        for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    )
    return [(re.findall(r"^Model.*?:\s*(.*)", text, re.MULTILINE) or ["GPU"])[0] for text in texts]


def driver() -> str:
    """Return the version of NVIDIA's driver; empty if there is none."""
    with contextlib.suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text()
        return " ".join(re.findall(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)[:1])
    return ""


def address_of(interface: str) -> str:
    """Return the address of a network interface; empty if there is none, or it is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        answer = fcntl.ioctl(
            probe.fileno(), ADDRESS_OF, struct.pack("256s", interface.encode()[:15])
        )
        return socket.inet_ntoa(answer[20:24])
    return ""


def interfaces() -> Any:
    """Return the network interfaces that have an address."""
    addresses = {name: address_of(name) for _, name in socket.if_nameindex()}
    return {name: address for name, address in addresses.items() if address}


class Answers(socketserver.StreamRequestHandler):
    """Answers "T" with this node's time, and "D" once all bytes have come."""

    timeout = PATIENCE

    def handle(self) -> None:
        """Answer the questions of one client until it closes the connection."""
        with contextlib.suppress(OSError):
            question = self.rfile.read(1)
            while question:
                if question == b"T":
                    self.wfile.write(struct.pack("!d", time.time()))
                elif question == b"D" and len(self.rfile.read(AMOUNT)) == AMOUNT:
                    self.wfile.write(b"!")
                else:
                    return
                question = self.rfile.read(1)


class Server(socketserver.ThreadingTCPServer):
    """Serves a port of all interfaces."""

    allow_reuse_address = daemon_threads = True
    request_queue_size = 64


def listen(port: int) -> int:
    """Serve a port in a thread; return its number."""
    server = Server(("", port), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_address[1])


def rendezvous_port() -> int:
    """Serve the first free port from the one at which the toolkit's scripts have ranks meet."""
    start = FIRST_PORT + int(os.environ.get("SLURM_JOB_ID", "0")) % (LAST_PORT - FIRST_PORT + 1)
    for port in [*range(start, LAST_PORT + 1), *range(FIRST_PORT, start)]:
        with contextlib.suppress(OSError):
            return listen(port)
    return 0


def publish(kind: str, content: Any) -> None:
    """Write a file for the other tasks, complete or not at all."""
    part = Path(f".{kind}-{TASK}")
    part.write_text(json.dumps(content))
    part.rename(f"{kind}-{TASK}.json")


def all_of(kind: str) -> Any:
    """Return what the tasks have published, after waiting for all of them for a while."""
    until = time.monotonic() + PATIENCE
    contents: Any = {}
    while len(contents) < TASKS and time.monotonic() < until:
        # Listing asks the file server again, where a file's absence may be remembered.
        names = {path.name for path in Path().iterdir()}
        for task in range(TASKS):
            name = f"{kind}-{task}.json"
            if task not in contents and name in names:
                contents[task] = json.loads(Path(name).read_text())
        if len(contents) < TASKS:
            time.sleep(0.05)
    return contents


def attempt(function: Any, *arguments: Any) -> Any:
    """Return what a function returns, or the error that it raises."""
    try:
        return function(*arguments)
    except OSError as error:
        return {"error": error.strerror or str(error)}


def resolve(host: str) -> Any:
    """Return the address of a host, and the name of that address."""
    address = socket.gethostbyname(host)
    try:
        back = socket.gethostbyaddr(address)[0]
    except OSError:
        back = ""
    return {"address": address, "back": back}


def connect(host: str, port: int, source: str = "") -> socket.socket:
    """Connect to a port, from an address if one is given."""
    return socket.create_connection((host, port), ANSWER, (source, 0) if source else None)


def clock(link: socket.socket) -> float:
    """Return the seconds by which the other clock is ahead; the fastest of five answers counts."""
    best = (1e9, 0.0)
    for _ in range(5):
        began = time.time()
        link.sendall(b"T")
        remote = struct.unpack("!d", link.recv(8, socket.MSG_WAITALL))[0]
        ended = time.time()
        best = min(best, (ended - began, remote - (began + ended) / 2))
    return best[1]


def measure_link(other: Any) -> Any:
    """Connect to another node by its name."""
    with connect(other["host"], other["port"]) as link:
        return {"clock": clock(link), "from": link.getsockname()[0], "to": link.getpeername()[0]}


def measure_throughput(other: Any, source: str) -> Any:
    """Return the MB/s from one address to another."""
    with connect(other["addresses"][INTERFACE], other["port"], source) as link:
        link.settimeout(PATIENCE)
        began = time.perf_counter()
        link.sendall(b"D" + bytes(AMOUNT))
        link.recv(1)
        return {"speed": AMOUNT / (time.perf_counter() - began) / 1e6}


def reach_rendezvous(first: Any) -> Any:
    """Connect to the port of the first node at which ranks meet."""
    connect(first["host"], first["rendezvous"]).close()
    return {}


def main() -> None:
    """Publish this node's address, examine the others, publish the report."""
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    addresses = interfaces()
    presence = {
        "host": host,
        "port": listen(0),
        "addresses": addresses,
        "rendezvous": rendezvous_port() if TASK == 0 else 0,
    }
    publish("presence", presence)
    nodes = all_of("presence")
    others = [node for task, node in sorted(nodes.items()) if task != TASK]
    names = [*(other["host"] for other in others), host]
    report = {
        "host": host,
        "gpus": gpus(),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "driver": driver(),
        "addresses": addresses,
        "names": {name: attempt(resolve, name) for name in names},
        "links": {other["host"]: attempt(measure_link, other) for other in others},
        "throughput": {
            other["host"]: attempt(measure_throughput, other, addresses[INTERFACE])
            for other in others
            if INTERFACE in addresses and INTERFACE in other["addresses"]
        },
        "rendezvous": attempt(reach_rendezvous, nodes[0]) if TASK and 0 in nodes else {},
    }
    publish("report", report)
    all_of("report")  # the others may still be asking us


main()
