"""A training of known scaling: a step is a serial part and a part that is divided by the ranks.

It sleeps, so that a machine with two cores can run many ranks of it. The ranks meet at the end of each
step, as they do in an all-reduce, through a socket of rank 0. The first steps take longer.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from pathlib import Path

parser = argparse.ArgumentParser()
# Seconds of a step that all ranks do, and that are divided; steps that take three times as long;
# the run that waits for the file goes-on.
numbers = {"serial": 0.02, "parallel": 0.2, "steps": 12, "warm-up": 2, "hold": 0}
for name, number in numbers.items():
    parser.add_argument(f"--{name}", type=type(number), default=number)
args = parser.parse_args()
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))


def reach() -> socket.socket:
    for _ in range(600):
        try:
            return socket.create_connection(address)
        except OSError:
            time.sleep(0.05)
    raise SystemExit("rank 0 does not answer")


def meet() -> list[socket.socket]:
    """The connections of this rank: rank 0 has one to each other rank."""
    if rank:
        return [reach()]
    server = socket.create_server(address, backlog=ranks)
    return [server.accept()[0] for _ in range(ranks - 1)]


def wait_for_all(others: list[socket.socket]) -> None:
    for sending in (bool(rank), not rank):
        for other in others:
            if sending:
                other.sendall(b".")
            else:
                other.recv(1)


def hold() -> None:
    """Let a test act while a run goes on: count the runs of this directory, and wait in one of them."""
    with Path("begun").open("a") as begun:
        begun.write(".")
        number = begun.tell()
    while number == args.hold and not Path("goes-on").exists():
        time.sleep(0.05)


others = meet()
if args.hold and not rank:
    hold()
wait_for_all(others)
# The ends of steps follow a schedule, so that what a busy machine adds to one sleep is taken from the
# next; who is late by half a step begins a new schedule, as a training cannot catch up.
due = time.perf_counter()
for step in range(args.steps):
    began = time.perf_counter()
    length = (args.serial + args.parallel / ranks) * (3 if step < args.warm_up else 1)
    due = (began if began - due > length / 2 else due) + length
    time.sleep(max(0.0, due - began))
    wait_for_all(others)
    print(json.dumps({"samples_per_second": 1 / (time.perf_counter() - began)}), flush=True)
