"""The search of TensorFlow's job script for ports that are free on all nodes."""

from __future__ import annotations

import socket
import subprocess
from contextlib import ExitStack, suppress

import pytest
from msgspec.structs import replace

from tests.unit.samples import make_case
from tests.unit.test_scripts import HOLDS_ALL
from toolkit.planning.plan import decide
from toolkit.scripts import script


@pytest.mark.parametrize(
    ("listening", "silent", "works"), [((), (), True), ((0, 1), (), False), ((), (0, 1), True)]
)
def test_the_search_for_ports_of_tensorflow_ends(listening, silent, works):
    """Of two ports none is taken, both are, or both drop packets, as a firewall does."""
    with ExitStack() as stack:
        one, two = neighbours(stack)
        for number in listening:
            (one, two)[number].listen()
        for number in silent:
            fill(stack, (one, two)[number])
        ports = (one.getsockname()[1], two.getsockname()[1])
        decided = replace(
            decide(make_case({"launcher": "tensorflow"}, manifest=HOLDS_ALL)), ports=ports
        )
        search = (
            script(decided)
            .partition("# Where the workers are")[2]
            .partition("# What each task does")[0]
        )
        before = "set -euo pipefail; scontrol() { echo 127.0.0.1; }; SLURM_JOB_ID=7 SLURM_JOB_NODELIST=x; #"
        done = subprocess.run(
            ["bash", "-c", f"{before}{search}\necho $WORKERS"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,  # one silent port alone takes 130 s by itself
        )
    if works:
        assert done.stdout.count("127.0.0.1:") == 2, done.stderr
    else:
        assert done.returncode == 1
        assert f"of the ports {ports[0]}-{ports[1]}, no" in done.stderr


def neighbours(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    """Bind two ports of this host that follow each other."""
    while True:
        one, two = (stack.enter_context(socket.socket()) for _ in range(2))
        one.bind(("127.0.0.1", 0))
        with suppress(OSError, OverflowError):
            two.bind(("127.0.0.1", one.getsockname()[1] + 1))
            return one, two


def fill(stack: ExitStack, server: socket.socket) -> None:
    """Have a port that answers no more: Linux drops what comes to a full queue."""
    server.listen(0)
    for _ in range(4):
        waiting = stack.enter_context(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex(server.getsockname())
