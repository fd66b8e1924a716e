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
TASK, TASKS = int(os.environ.get("SLURM_PROCID", "0")), int(os.environ.get("SLURM_NTASKS", "1"))
FIRST_PORT, LAST_PORT = int(sys.argv[1]), int(sys.argv[2])
INTERFACE = sys.argv[3] if len(sys.argv) > 3 else ""
ADDRESS_OF = 0x8915  # SIOCGIFADDR


def started() -> float:
    """Return the seconds from the start of the container's command to ours.

    By then the image was found, opened and mounted.
    """
    try:
        ticks = int(Path(f"/proc/{os.getppid()}/stat").read_text().rsplit(")", 1)[1].split()[19])
        return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


STARTED = started()


def gpus() -> Any:
    """Return the name and the driver's version of each GPU that nvidia-smi sees."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        lines = subprocess.check_output(query, stderr=subprocess.DEVNULL).decode(errors="replace")
        return [line.split(", ") for line in lines.splitlines() if ", " in line]
    return []


def address_of(interface: str) -> str:
    """Return the address of a network interface; empty if there is none, or it is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        answer = fcntl.ioctl(
            probe.fileno(), ADDRESS_OF, struct.pack("256s", interface.encode()[:15])
        )
        return socket.inet_ntoa(answer[20:24])
    return ""


class Answers(socketserver.BaseRequestHandler):
    """Tells this node's time to each client."""

    def handle(self) -> None:
        """Send the time; a client may have gone already."""
        with contextlib.suppress(OSError):
            self.request.sendall(struct.pack("!d", time.time()))


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
    except (OSError, struct.error) as error:
        return {"error": getattr(error, "strerror", None) or str(error)}


def resolve(host: str) -> Any:
    """Return the address of a host, and the name of that address; itself if it has none."""
    address = socket.gethostbyname(host)
    return {"address": address, "back": socket.getfqdn(address)}


def measure_link(host: str, port: int, source: str = "") -> Any:
    """Connect to a port, from an address if one is given; return how far its clock is ahead."""
    with socket.create_connection((host, port), ANSWER, (source, 0) if source else None) as link:
        began = time.time()  # the name is resolved, and the connection made
        remote = struct.unpack("!d", link.recv(8, socket.MSG_WAITALL))[0]
        return {"clock": remote - (began + time.time()) / 2}


def main() -> None:
    """Publish this node's address, examine the others, publish the report."""
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    address = address_of(INTERFACE) if INTERFACE else ""
    port = listen(0)
    rendezvous = rendezvous_port() if TASK == 0 else 0
    publish("presence", {"host": host, "port": port, "address": address, "rendezvous": rendezvous})
    devices = gpus()
    nodes = all_of("presence")
    others = [node for task, node in sorted(nodes.items()) if task != TASK]
    links, over_interface = {}, {}
    for other in others:
        links[other["host"]] = attempt(measure_link, other["host"], other["port"])
        if address and other["address"]:
            over_interface[other["host"]] = attempt(
                measure_link, other["address"], other["port"], address
            )
    first = nodes.get(0) if TASK else None
    report = {
        "host": host,
        "started": STARTED,
        "gpus": [name for name, _ in devices],
        "driver": devices[0][1] if devices else "",
        "address": address,
        "names": {name: attempt(resolve, name) for name in [*links, host]},
        "links": links,
        "over_interface": over_interface,
        "rendezvous": (
            {first["host"]: attempt(measure_link, first["host"], first["rendezvous"])}
            if first
            else {}
        ),
    }
    publish("report", report)
    all_of("report")  # the others may still be asking us


main()
