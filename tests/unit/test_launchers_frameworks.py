"""The launchers of TensorFlow and Ray: what they refuse before anything is queued, and what they warn of."""

from __future__ import annotations

import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.samples import MANIFEST, first, make_case
from toolkit.errors import LauncherMismatchError, PlanError
from toolkit.launchers import get
from toolkit.model.source import Source
from toolkit.planning.plan import decide
from toolkit.scripts import script

HELD = replace(MANIFEST, frameworks={"tensorflow": "2.21.0", "ray": "2.60.0"})
ALONE = Source(
    python=True, imports=("tensorflow",), calls=("tensorflow.distribute.MirroredStrategy",)
)
SPREAD = Source(
    python=True,
    imports=("tensorflow",),
    calls=("tensorflow.distribute.MultiWorkerMirroredStrategy",),
)


def findings(launcher: str, **changes: Any) -> list[str]:
    """The causes for which a job is refused with the code of a launcher that does not fit; none where it is not."""
    try:
        decide(make_case({"launcher": launcher}, **changes))
    except PlanError as error:
        return [
            finding.cause
            for finding in error.findings
            if error.exit_code == LauncherMismatchError.exit_code
        ]
    return []


@pytest.mark.parametrize("launcher", ["tensorflow", "ray"])
def test_an_image_without_the_framework_is_refused(launcher: str) -> None:
    (cause,) = findings(launcher, manifest=MANIFEST)
    assert f"{launcher} needs {launcher}" in cause
    assert findings(launcher, manifest=HELD) == []
    assert findings(launcher, manifest=None) == [], "of a foreign image nobody knows what it holds"


def test_a_script_that_wants_parameter_servers_is_refused() -> None:
    script = Source(python=True, calls=("tensorflow.distribute.ParameterServerStrategy",))
    (cause,) = findings("tensorflow", manifest=HELD, source=script)
    assert "no parameter servers" in cause


def test_a_strategy_that_would_train_on_each_node_alone_is_warned_of() -> None:
    job = {"launcher": "tensorflow", "ntasks_per_node": None}
    assert "network of its own" in decide(make_case(job, manifest=HELD, source=ALONE)).warnings[0]
    assert decide(make_case(job | {"nodes": 1}, manifest=HELD, source=ALONE)).warnings == ()
    assert decide(make_case(job, manifest=HELD, source=SPREAD)).warnings == ()


@pytest.mark.parametrize(
    ("listening", "silent", "works"), [((), (), True), ((0, 1), (), False), ((), (0, 1), True)]
)
def test_the_search_for_ports_of_tensorflow_ends(
    listening: tuple[int, ...], silent: tuple[int, ...], works: bool
) -> None:
    """Of two ports none is taken, both are, or both drop packets, as a firewall does."""
    with ExitStack() as stack:
        one, two = neighbours(stack)
        for number in listening:
            (one, two)[number].listen()
        for number in silent:
            fill(stack, (one, two)[number])
        ports = (one.getsockname()[1], two.getsockname()[1])
        decided = replace(decide(make_case({"launcher": "tensorflow"}, manifest=HELD)), ports=ports)
        search = (
            script(decided).partition("# Where the workers are")[2].partition("# Slurm starts")[0]
        )
        before = "set -euo pipefail; scontrol() { echo 127.0.0.1; }; SLURM_JOB_ID=7 SLURM_JOB_NODELIST=x; #"
        began = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", f"{before}{search}\necho $WORKERS"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert time.monotonic() - began < 30  # one silent port alone takes 130 s by itself
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


def test_a_worker_has_all_gpus_of_its_node_where_nobody_says_otherwise() -> None:
    decided = decide(
        make_case({"launcher": "tensorflow", "gpus": 2, "ntasks_per_node": None}, manifest=HELD)
    )
    assert (decided.ranks_per_node, dict(decided.directives)["gres"]) == (1, "gpu:2")
    assert decided.environment["TF_NUM_INTRAOP_THREADS"] == str(decided.cpus_per_rank)


@pytest.mark.parametrize("launcher", ["tensorflow", "ray"])
def test_the_task_that_srun_names_first_is_the_one_that_failed(launcher: str) -> None:
    lines = [
        "srun: error: nid002: task 1: Exited with exit code 3",
        "srun: error: nid001: task 0: Terminated",
    ]
    failure = first(get(launcher).failures([("", lines)]))
    assert failure is not None
    assert (failure.rank, failure.host, failure.exit_code) == (1, "nid002", 3)


def test_ray_has_all_cpus_and_gpus_of_a_node_and_the_script_runs_once() -> None:
    decided = decide(
        make_case(
            {"launcher": "ray", "gpus": 2, "ntasks_per_node": 4, "cpus_per_task": 1}, manifest=HELD
        )
    )
    assert (decided.launch.ntasks_per_node, decided.launch.cpus_per_task) == (1, 4)
    assert decided.launch.options == ("4", "2", "eth0")
    assert (
        decide(
            make_case(
                {"launcher": "ray"}, manifest=HELD, site=replace(make_case().site, interface=None)
            )
        ).launch.options[2]
        == ""
    )
