# Elastic Horovod under Slurm, without ssh: Horovod's own driver decides which ranks there are, and the batch shell of the job starts them.
# It prints "start ID HOST NAME=VALUE...", "stop ID" and "look" once a second, and reads "ended ID CODE" and "lost HOST".
# Called as: HOST... PORT PORTS RANKS-OF-A-HOST LEAST-RANKS MOST-RANKS RESETS
from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from typing import Any

from horovod.runner.elastic.discovery import HostManager
from horovod.runner.elastic.driver import ElasticDriver
from horovod.runner.elastic.rendezvous import create_rendezvous_handler
from horovod.runner.http.http_server import RendezvousHTTPServer, RendezvousServer
from horovod.runner.util.threads import in_thread

*hosts, port, ports, slots, least, most, resets = sys.argv[1:]
changed = threading.Condition()
available = dict.fromkeys(hosts, int(slots))
codes: dict[str, int] = {}  # of processes that have ended
failures: list[tuple[int, str]] = []  # since the ranks were last put together


def say(text: str) -> None:
    sys.stderr.write(f"elastic: {text}\n")


def tell(text: str) -> None:
    os.write(1, f"{text}\n".encode())  # a line at once: several threads speak


def wake() -> None:
    """The batch shell looks for ranks that have ended whenever it is told something."""
    while True:
        tell("look")
        time.sleep(1)


def hear() -> None:
    """What the batch shell says; it is gone when it says nothing more."""
    for line in sys.stdin:
        what, name, *code = line.split()
        with changed:
            if what == "ended":
                codes[name] = int(code[0])
            elif available.pop(name, None):
                say(f"node {name} is lost")
            changed.notify_all()
    os._exit(1)


def work(slot: Any, events: list[threading.Event]) -> tuple[int, float]:
    """A rank from its start to its end; Horovod calls this in a thread for each."""
    fields = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "hostname")
    told = " ".join(f"HOROVOD_{field.upper()}={getattr(slot, field)}" for field in fields)
    number, stopped = f"{slot.hostname}.{slot.local_rank}.{time.monotonic_ns()}", False
    tell(f"start {number} {slot.hostname} {told} HOROVOD_GLOO_RENDEZVOUS_PORT={rendezvous.port}")
    with changed:
        while not changed.wait_for(lambda: number in codes, 0.1):
            if not stopped and any(event.is_set() for event in events):
                stopped = True
                tell(f"stop {number}")
    code = codes[number]
    if code and not stopped:
        how = f"killed by signal {code - 128}" if code > 128 else f"exit code {code}"
        failures.append((code, f"rank {slot.rank} on {slot.hostname}: {how}"))
        say(failures[-1][1])
    return code, time.time()


class Discovery:
    """The hosts of the job: what Horovod calls host discovery."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        with changed:
            return dict(available)


class Rendezvous(RendezvousServer):  # type: ignore[misc]
    """Horovod's own, at the first free port from the one that the job's number gave."""

    def start(self, handler: Any) -> None:
        address = socket.gethostbyname(hosts[0])
        address = "" if address.startswith("127.") else address  # the node calls itself so, the others do not
        first, last = map(int, ports.split("-"))
        for self.port in (*range(int(port), last + 1), *range(first, int(port))):
            with contextlib.suppress(OSError):
                self._httpd = RendezvousHTTPServer((address, self.port), handler, 0)
                self._listen_thread = in_thread(target=self._httpd.serve_forever)
                return
        raise SystemExit("elastic: no port is free")

    def init(self, slots: Any) -> None:
        failures.clear()
        say(f"{len(slots)} ranks on {', '.join(sorted({slot.hostname for slot in slots}))}")
        super().init(slots)


def in_order(found: set[str], before: list[str]) -> list[str]:
    """Hosts that were there keep their places, so that rank 0 has the state; Horovod itself takes new ones in any order."""
    return [*(host for host in before if host in found), *(host for host in hosts if host in found - set(before))]


HostManager.order_available_hosts = staticmethod(in_order)
for thread in (hear, wake):
    threading.Thread(target=thread, daemon=True).start()
low, _, high = os.environ["HOROVOD_ELASTIC_COOLDOWN"].partition(",")
limit, cooldown, rendezvous = int(resets) if resets else None, (int(low), int(high)), Rendezvous()
driver = ElasticDriver(rendezvous, Discovery(), int(least), int(most), reset_limit=limit, cooldown_range=cooldown)
rendezvous.start(create_rendezvous_handler(driver))
driver.start(int(least), work)
results = driver.get_results()
driver.stop()
codes_of_ranks = [code for code, _ in results.worker_results.values()]
code = 0
if not codes_of_ranks or any(codes_of_ranks):
    unknown = (next(filter(None, codes_of_ranks), 1), results.error_message or "the ranks could not be put together again")
    code, text = failures[0] if failures else unknown
    say(f"failed: {text}")
os._exit(code)  # threads of Horovod's driver may still wait for ranks that are lost
