"""`toolkit notebook`: JupyterLab on a node that only its owner can reach."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.cluster_fixtures import Toolkit
from tests.cluster.forwarding import LONG, Channels, Forward
from tests.cluster.image_fixtures import command_lines
from tests.cluster.ranks import wait_for

_CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
_STATUS = "/api/status"
_DEBUG = {
    "command": "initialize",
    "arguments": {"clientID": "test", "adapterID": "python", "pathFormat": "path"},
}


class Running(NamedTuple):
    """A notebook that runs: where it was started, its connection, its token, its socket on the node."""

    directory: Path
    door: Forward
    token: str
    node: str
    socket: str


@pytest.fixture(scope="module")
def running(
    cluster: str, notebook_image: Path, base: Path, toolkit: Toolkit, toolkit_env: dict[str, str]
) -> Iterator[Running]:
    del cluster
    directory = base / "w" / "notebook"
    (directory / "course").mkdir(parents=True)
    words = ("--image", str(notebook_image), "--nodelist", "nid003", "--cpus-per-task", "2")
    door = Forward(directory, toolkit_env, "notebook", *words, "--time", "20", "course")
    token = door.entry["address"].split("token=")[1]
    place = json.loads((directory / "runs/notebook-0001/place.json").read_text())
    yield Running(directory, door, token, place["node"], place["socket"])
    toolkit("notebook", "stop", cwd=directory)
    door.end()


def status(door: Forward, token: str = "") -> int:
    return int(door.get(_STATUS, token).split()[1])


# The addresses on which processes of the notebook listen, run on its node.
_LISTENING = r"""
import contextlib, os, pathlib, re
own = set()
def links(process):
    for number in os.listdir(process / "fd"):
        with contextlib.suppress(FileNotFoundError):  # a server closes connections all the time
            yield os.readlink(process / "fd" / number)
for entry in pathlib.Path("/proc").glob("[0-9]*"):
    with contextlib.suppress(OSError):
        if re.match(rb"\S*python.*(notebook_server|ipykernel|debugpy)", (entry / "cmdline").read_bytes()):
            own |= set(links(entry))
for name in ("tcp", "tcp6", "udp", "udp6"):
    for row in pathlib.Path("/proc/net", name).read_text().splitlines()[1:]:
        words = row.split()
        if f"socket:[{words[9]}]" in own and (words[3] == "0A" or name[0] == "u"):
            print(words[1])
print("listed", len(own))
"""


def listening(toolkit: Toolkit, node: str) -> list[str]:
    done = toolkit(*f"cluster exec --node {node} --".split(), "/usr/bin/python3", "-c", _LISTENING)
    *addresses, last = done.stdout.splitlines()
    assert int(last.split()[1]) > 0, done
    return addresses


def test_a_notebook_that_only_its_owner_reaches(running, toolkit, toolkit_env, user):
    directory, door, token, node, path = running
    assert re.fullmatch(r"http://localhost:8888/lab\?token=[0-9a-f]{64}", door.entry["address"])
    assert node == "nid003"
    assert (status(door), status(door, "0" * 64), status(door, token)) == (403, 403, 200)

    # Who has the token cannot set a password that would outlive it.
    page = door.get("/login")
    assert ("_xsrf" in page, "new_password" in page) == (True, False)

    # It listens on no address. A kernel has one, on the loopback address, on which ipykernel takes
    # the output of forked processes; it sends nothing, and takes nothing without a secret.
    assert listening(toolkit, node) == []
    kernel = json.loads(door.get("/api/kernels", token, verb="POST").split("\r\n\r\n", 1)[1])
    wait_for(lambda: len(listening(toolkit, node)) == 1, "the kernel")
    assert listening(toolkit, node)[0].startswith("0100007F:")

    # The debugger, to whose ports every user of the node could connect, cannot be started.
    assert "@jupyterlab/debugger-extension" in door.get("/lab", token)
    channels = Channels(door, kernel["id"], token)
    channels.ask("debug_request", {"type": "request", "seq": 1, **_DEBUG})
    channels.ask("kernel_info_request", {})
    kinds = iter(each["msg_type"] for each in channels.answers())
    replies = {next(kind for kind in kinds if kind.endswith("_reply"))}
    assert (replies, len(listening(toolkit, node))) == ({"kernel_info_reply"}, 1)

    # The token is in no list of processes, and in no file but its own.
    assert not any(token.encode() in line for line in command_lines())
    run = directory / "runs/notebook-0001"
    holding = [
        file.name
        for file in run.rglob("*")
        if file.is_file() and token.encode() in file.read_bytes()
    ]
    assert holding == ["token"]
    assert (run / "token").stat().st_mode & 0o777 == 0o600

    # A second user gets nothing, on the node and on the login node.
    if user.become:
        there = ("cluster", "exec", "--node", node, "--", *user.become, "/usr/bin/python3", "-c")
        tried = toolkit(*there, _CONNECT, path)
        assert "PermissionError" in tried.stderr, tried
        tried = user.run("/usr/bin/python3", "-c", _CONNECT, str(door.socket))
        assert "PermissionError" in tried.stderr, tried
        assert user.run("cat", str(run / "token")).returncode == 1

    # A session is where the kernels are: in the image, with what the job sees.
    inside = toolkit(
        "ssh", "notebook-0001", "ls runs; python3 -c 'import jupyterlab'", cwd=directory
    )
    assert (inside.returncode, inside.stdout) == (0, "notebook-0001\n"), inside

    # The step is killed, and is there again.
    steps = toolkit(*"cluster exec -- squeue --steps --noheader".split(), "--format=%i %j").stdout
    (step,) = [row.split()[0] for row in steps.splitlines() if "toolkit-ssh" in row]
    toolkit("cluster", "exec", "--", "scancel", step)
    wait_for(lambda: door.says("nid003 again"), "the step to start again")
    assert status(door, token) == 200

    # The way in is closed and opened; the notebook goes on.
    assert door.end() == 130
    again = Forward(directory, toolkit_env, "notebook", "connect", "notebook-0001")
    assert again.entry["address"].endswith(token)
    listed = json.loads(toolkit("ps", "--json", cwd=directory).stdout)
    assert [(row["run"], row["state"], row["nodes"]) for row in listed] == [
        ("notebook-0001", "RUNNING", "nid003")
    ]

    # It is stopped while a client is connected: a plain end, and nothing is left.
    assert status(again, token) == 200
    assert toolkit("notebook", "stop", "notebook-0001", cwd=directory).returncode == 0
    assert again.process.wait(LONG) == 0
    assert again.says("not running any more")
    wait_for(lambda: not (run / "token").exists(), "the job's own clean-up")
    left = toolkit(*f"cluster exec --node {node} -- ls /tmp".split()).stdout
    assert "toolkit-notebook" not in left
    ended = toolkit("notebook", "connect", "notebook-0001", cwd=directory)
    assert (ended.returncode, "is not running" in ended.stderr) == (87, True)


def test_an_image_without_jupyter_names_the_feature(cluster, pytorch_image, toolkit, shared_dir):
    del cluster
    done = toolkit("notebook", "--image", str(pytorch_image), "--time", "10", cwd=shared_dir)
    assert (done.returncode, "--with jupyter" in done.stderr) == (86, True)
    assert not (shared_dir / "runs").exists()


@pytest.mark.long
def test_a_notebook_that_is_not_used_stops_itself(
    cluster, notebook_image, toolkit, toolkit_env, shared_dir
):
    """Jupyter looks once a minute whether it is used."""
    del cluster
    words = ("--image", str(notebook_image), "--time", "10", "--idle", "10s")
    door = Forward(shared_dir, toolkit_env, "notebook", *words)
    assert door.process.wait(2 * LONG) == 0
    assert door.says("not running any more")
    listed = json.loads(toolkit("ps", "--json", cwd=shared_dir).stdout)
    assert [row["state"] for row in listed] == ["COMPLETED"]
