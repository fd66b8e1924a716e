"""One task on each node: looks at its node from inside the image, and at the ways to the others; leaves what it found in told-<task>.json.

The directory that it runs in is the notice board: every node sees it. No framework is imported.
Runs on every Python since 3.6. Arguments: the first and the last port at which ranks meet; the
network interface between the nodes, where the site knows one.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

PATIENCE = 60.0  # seconds for the other nodes to come
ANSWER = 4.0  # seconds for a connection
AMOUNT = 8 * 1024 * 1024  # bytes that are sent to measure the way between two nodes
TASK, TASKS = int(os.environ.get("SLURM_PROCID", "0")), int(os.environ.get("SLURM_NTASKS", "1"))
FIRST_PORT, LAST_PORT = int(sys.argv[1]), int(sys.argv[2])
INTERFACE = sys.argv[3] if len(sys.argv) > 3 else ""
ADDRESS_OF = 0x8915  # SIOCGIFADDR


def started() -> float:
    """Seconds from the start of the container's command to ours: by then the image was found, opened and mounted."""
    try:
        ticks = int(Path(f"/proc/{os.getppid()}/stat").read_text().rsplit(")", 1)[1].split()[19])
        return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


STARTED = started()


def gpus() -> Any:
    """The GPUs that can be seen in the container: what nvidia-smi lists, else what the driver has files for."""
    if shutil.which("nvidia-smi"):
        with contextlib.suppress(OSError):
            said = subprocess.Popen(
                ["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ).communicate()[0]
            found = [
                line.split(" (UUID")[0]
                for line in said.decode(errors="replace").splitlines()
                if line.startswith("GPU ")
            ]
            if found:
                return found
    names = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        text = path.read_text(errors="replace")
        names.append(
            next(
                (
                    line.split(":", 1)[1].strip()
                    for line in text.splitlines()
                    if line.startswith("Model")
                ),
                "GPU",
            )
        )
    return names


def driver() -> str:
    try:
        found = re.search(
            r"\s(\d+\.\d+(?:\.\d+)?)\s", Path("/proc/driver/nvidia/version").read_text()
        )
    except OSError:
        return ""
    return found.group(1) if found else ""


def address_of(interface: str) -> str:
    """The address of a network interface; empty: there is none, or it is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked, contextlib.suppress(OSError):
        answer = fcntl.ioctl(
            asked.fileno(), ADDRESS_OF, struct.pack("256s", interface.encode()[:15])
        )
        return socket.inet_ntoa(answer[20:24])
    return ""


def interfaces() -> Any:
    found = {name: address_of(name) for _, name in socket.if_nameindex()}
    return {name: address for name, address in found.items() if address}


def serve(server: socket.socket) -> None:
    """Answer: "T" with the time here, "D" with the number of bytes that came."""
    while True:
        client, _ = server.accept()
        threading.Thread(target=answer, args=(client,), daemon=True).start()


def answer(client: socket.socket) -> None:
    with client, contextlib.suppress(OSError):
        client.settimeout(PATIENCE)
        while True:
            what = client.recv(1)
            if what == b"T":
                client.sendall(struct.pack("!d", time.time()))
            elif what == b"D":
                left = AMOUNT
                while left > 0:
                    came = client.recv(min(left, 1 << 16))
                    if not came:
                        return
                    left -= len(came)
                client.sendall(b"!")
            else:
                return


def listen(port: int) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("", port))
    server.listen(64)
    threading.Thread(target=serve, args=(server,), daemon=True).start()
    return server


def meeting_port() -> int:
    """Of the first node: the first free one from the port that the toolkit's scripts have their ranks meet at."""
    start = FIRST_PORT + int(os.environ.get("SLURM_JOB_ID", "0")) % (LAST_PORT - FIRST_PORT + 1)
    for port in [*range(start, LAST_PORT + 1), *range(FIRST_PORT, start)]:
        with contextlib.suppress(OSError):
            listen(port)
            return int(port)
    return 0


def leave(kind: str, found: Any) -> None:
    """Pin something on the notice board, whole or not at all."""
    part = Path(f".{kind}-{TASK}")
    part.write_text(json.dumps(found))
    part.rename(f"{kind}-{TASK}.json")


def all_of(kind: str) -> Any:
    """What every task left, as far as it comes in time."""
    until = time.monotonic() + PATIENCE
    found: Any = {}
    while len(found) < TASKS and time.monotonic() < until:
        here = {
            path.name for path in Path().iterdir()
        }  # asks the file server anew, where a file's absence may be remembered
        for task in range(TASKS):
            name = f"{kind}-{task}.json"
            if task not in found and name in here:
                found[task] = json.loads(Path(name).read_text())
        if len(found) < TASKS:
            time.sleep(0.05)
    return found


def tried(act: Any, *arguments: Any) -> Any:
    """What comes of it, or why nothing does."""
    try:
        return act(*arguments)
    except OSError as error:
        return {
            "error": "timed out"
            if isinstance(error, socket.timeout)
            else error.strerror or str(error)
        }


def resolved(host: str) -> Any:
    address = socket.gethostbyname(host)
    try:
        back = socket.gethostbyaddr(address)[0]
    except OSError:
        back = ""
    return {"address": address, "back": back}


def connect(host: str, port: int, source: str = "") -> socket.socket:
    return socket.create_connection((host, port), ANSWER, (source, 0) if source else None)


def clock(way: socket.socket) -> float:
    """How far the other clock is ahead of ours, in seconds: the answer that took the shortest time is the best."""
    best = (1e9, 0.0)
    for _ in range(5):
        began = time.time()
        way.sendall(b"T")
        there = struct.unpack("!d", way.recv(8, socket.MSG_WAITALL))[0]
        ended = time.time()
        best = min(best, (ended - began, there - (began + ended) / 2))
    return best[1]


def look(other: Any) -> Any:
    """The way to another node, by its name."""
    with connect(other["host"], other["port"]) as way:
        return {"clock": clock(way), "from": way.getsockname()[0], "to": way.getpeername()[0]}


def carry(other: Any, source: str) -> Any:
    """MB/s from one address to another."""
    with connect(other["addresses"][INTERFACE], other["port"], source) as way:
        way.settimeout(PATIENCE)
        began = time.perf_counter()
        way.sendall(b"D" + bytes(AMOUNT))
        way.recv(1)
        return {"speed": AMOUNT / (time.perf_counter() - began) / 1e6}


def meet(first: Any) -> Any:
    connect(first["host"], first["meeting"]).close()
    return {}


def main() -> None:
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    mine = interfaces()
    kept = listen(0)
    leave(
        "here",
        {
            "host": host,
            "port": kept.getsockname()[1],
            "addresses": mine,
            "meeting": meeting_port() if TASK == 0 else 0,
        },
    )
    found = all_of("here")
    others = [one for task, one in sorted(found.items()) if task != TASK]
    told = {
        "host": host,
        "called": socket.gethostname(),
        "started": STARTED,
        "gpus": gpus(),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "driver": driver(),
        "addresses": mine,
        "missing": TASKS - len(found),
        "names": {name: tried(resolved, name) for name in [*(one["host"] for one in others), host]},
        "ways": {one["host"]: tried(look, one) for one in others},
        "carries": {
            one["host"]: tried(carry, one, mine[INTERFACE])
            for one in others
            if INTERFACE in mine and INTERFACE in one["addresses"]
        },
        "meeting": tried(meet, found[0]) if TASK and 0 in found else {},
    }
    leave("told", told)
    all_of("told")  # the others may still be asking us


main()
