# Elastic Horovod under Slurm, without ssh: Horovod's own driver decides which ranks there are, an agent on each node starts them.
# Called as: drive FIRST-NODE PORT LEAST-RANKS MOST-RANKS RESETS NODES   or: attend FIRST-NODE PORT NODE RANKS COMMAND...
from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from handshake import Link, answer, call

PURPOSE = "horovod-elastic"
SILENCE = 15  # seconds after which a node that says nothing is lost; each side says something every second
PATIENCE = 60  # seconds for all nodes to arrive at the start; half of it for an agent to find its driver again
over = threading.Event()


def say(text: str) -> None:
    sys.stderr.write(f"elastic: {text}\n")


def how(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def in_background(target: Callable[..., Any], *arguments: Any) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()


def live(link: Link) -> None:
    """A sign of life every second."""
    while not link.closed.wait(1):
        link.send()


# The agent of a node.


def attend(first_node: str, port: int, node: str, ranks: int, command: list[str]) -> int:
    """Start and end ranks as the driver says, until it says that all is over."""
    patience: float = PATIENCE
    while True:
        link = call(first_node, port, PURPOSE, patience)
        if link is None:
            say(f"{node} does not reach the driver on {first_node}, port {port}")
            return 1
        link.connection.settimeout(SILENCE)
        link.send(node=node, ranks=ranks)
        in_background(live, link)
        if serve(link, command):
            return 0
        say(f"{node} does not hear the driver any more; its ranks are ended")
        patience = PATIENCE / 2


def serve(link: Link, command: list[str]) -> bool:
    """Do what one connection's messages say; True: all is over, False: the driver is gone."""
    processes: dict[str, subprocess.Popen[bytes]] = {}
    for message in link.messages():
        if "start" in message:
            process = processes[message["start"]] = spawn(command, message["environment"])
            in_background(watch, process, message, link)
        elif "stop" in message:
            in_background(end, processes[message["stop"]])
        elif "over" in message:
            return True
    for process in processes.values():
        end(process)
    return False


def spawn(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    def prepare() -> None:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no rank outlives its agent

    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, env={**os.environ, **environment}, preexec_fn=prepare, **pipes)


def watch(process: subprocess.Popen[bytes], message: dict[str, Any], link: Link) -> None:
    """Pass a rank's lines on, each with the number that the rank started with, and tell the driver of its end."""
    label = message["environment"]["HOROVOD_RANK"].encode()
    for line in process.stdout or ():
        sys.stdout.buffer.write(label + b"| " + line.rstrip(b"\n") + b"\n")
        sys.stdout.buffer.flush()
    code = process.wait()
    link.send(ended=message["start"], code=code)


def end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(5)
            return


# The driver.


class Agents:
    """The nodes whose agents are here: what Horovod calls host discovery."""

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self.ranks: dict[str, int] = {}
        self.codes: dict[str, int] = {}
        self.changed = threading.Condition()

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        with self.changed:
            return dict(self.ranks)

    def wait(self, nodes: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: len(self.links) >= nodes, PATIENCE)

    def hear(self, link: Link) -> None:
        """One agent, from its first message to its last."""
        link.connection.settimeout(SILENCE)
        messages = link.messages()
        hello = next(messages, None)
        if hello is None:
            return
        node = hello["node"]
        with self.changed:
            self.links[node], self.ranks[node] = link, hello["ranks"]
            self.changed.notify_all()
        in_background(live, link)
        for message in messages:
            self.codes[message["ended"]] = message["code"]
        with self.changed:
            if self.links.get(node) is link:
                del self.links[node], self.ranks[node]
        if not over.is_set():
            say(f"node {node} is lost")

    def run(self, node: str, environment: dict[str, str], events: list[threading.Event]) -> tuple[int, bool]:
        """Have a rank started and wait for its end: its exit code (1 where its node was lost), and whether we ended it."""
        number, link, stopped = f"{node} {time.monotonic_ns()}", self.links.get(node), False
        if link is None:
            return 1, stopped
        link.send(start=number, environment=environment)
        while number not in self.codes and not link.closed.wait(0.1):
            if not stopped and any(event.is_set() for event in events):
                stopped = True
                link.send(stop=number)
        return self.codes.get(number, 1), stopped


def drive(first_node: str, port: int, ports: tuple[int, int], least: int, most: int, resets: int | None, nodes: int) -> int:
    """Horovod's elastic driver: it puts the ranks together anew when one fails, or nodes come and go."""
    from horovod.runner.elastic.discovery import HostManager
    from horovod.runner.elastic.driver import ElasticDriver
    from horovod.runner.elastic.rendezvous import create_rendezvous_handler
    from horovod.runner.http.http_server import RendezvousHTTPServer, RendezvousServer
    from horovod.runner.util.threads import in_thread

    address = socket.gethostbyname(first_node)
    address = "" if address.startswith("127.") else address  # the node calls itself so, the others do not

    def listening(start: Callable[[int], Any]) -> tuple[Any, int]:
        """What ``start`` gives for the first free port from the one that the job's number gave, and that port."""
        for free in (*range(port, ports[1] + 1), *range(ports[0], port)):
            with contextlib.suppress(OSError):
                return start(free), free
        raise SystemExit("elastic: no port is free")

    failures: list[tuple[int, str]] = []  # since the ranks were last put together

    class Rendezvous(RendezvousServer):  # type: ignore[misc]
        def start(self, handler: Any) -> None:
            self._httpd, self.port = listening(lambda free: RendezvousHTTPServer((address, free), handler, 0))
            self._listen_thread = in_thread(target=self._httpd.serve_forever)

        def init(self, slots: Any) -> None:
            failures.clear()
            say(f"{len(slots)} ranks on {', '.join(sorted({slot.hostname for slot in slots}))}")
            super().init(slots)

    def work(slot: Any, events: list[threading.Event]) -> tuple[int, float]:
        """A rank from its start to its end; Horovod calls this in a thread for each."""
        fields = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "hostname")
        environment = {f"HOROVOD_{field.upper()}": str(getattr(slot, field)) for field in fields}
        environment["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = first_node
        environment["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(rendezvous.port)
        code, stopped = agents.run(slot.hostname, environment, events)
        if code and not stopped:
            failures.append((code, f"rank {slot.rank} on {slot.hostname}: {how(code)}"))
            say(failures[-1][1])
        return code, time.time()

    def in_order(found: set[str], before: list[str]) -> list[str]:
        """Nodes that were there keep their places, so that rank 0 has the state; Horovod itself takes new ones in any order."""
        return [*(node for node in before if node in found), *sorted(found - set(before))]

    HostManager.order_available_hosts = staticmethod(in_order)
    agents, rendezvous = Agents(), Rendezvous()
    server, own = listening(lambda free: socket.create_server((address, free)))
    in_background(answer, server, PURPOSE, agents.hear)
    print(own, flush=True)
    agents.wait(nodes)
    low, _, high = os.environ["HOROVOD_ELASTIC_COOLDOWN"].partition(",")
    driver = ElasticDriver(rendezvous, agents, least, most, reset_limit=resets, cooldown_range=(int(low), int(high)))
    rendezvous.start(create_rendezvous_handler(driver))
    driver.start(least, work)
    results = driver.get_results()
    over.set()
    driver.stop()
    codes = [code for code, _ in results.worker_results.values()]
    for link in list(agents.links.values()):
        link.send(over=True)
    if codes and not any(codes):
        return 0
    unknown = (next(filter(None, codes), 1), results.error_message or "the ranks could not be put together again")
    code, text = failures[0] if failures else unknown
    say(f"failed: {text}")
    return code if code >= 0 else 128 - code


mode, first_node, port, *rest = sys.argv[1:]
if mode == "attend":
    sys.exit(attend(first_node, int(port), rest[0], int(rest[1]), rest[2:]))
ports, least, most, resets, nodes = rest
low, _, high = ports.partition("-")
code = drive(first_node, int(port), (int(low), int(high)), int(least), int(most), int(resets) if resets else None, int(nodes))
sys.stdout.flush()
os._exit(code)  # threads of Horovod's driver may still wait for ranks that are lost
