"""Notebooks that wait, that share a user and a directory, and that end under their browsers."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.cluster.cluster_fixtures import Toolkit
from tests.cluster.forwarding import LONG, Forward
from tests.cluster.ranks import wait_for

_CONNECTIONS = 40


class Waiting:
    """`toolkit notebook` that has not printed the way in."""

    def __init__(self, cwd: Path, env: Mapping[str, str], *arguments: str) -> None:
        self.messages = cwd / "messages"
        with self.messages.open("w") as stream:
            self.process = subprocess.Popen(
                (sys.executable, "-m", "toolkit", "notebook", *arguments),
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )

    def says(self, text: str) -> bool:
        assert self.process.poll() is None or text in self.messages.read_text(), (
            self.messages.read_text()
        )
        return text in self.messages.read_text()


@contextmanager
def full_cluster(toolkit: Toolkit) -> Iterator[None]:
    """A job that has all nodes for itself."""
    submit = "cluster exec -- sbatch --parsable --nodes 3 --exclusive --output /dev/null --wrap"
    job = toolkit(*submit.split(), "sleep 600").stdout.strip()
    queue = f"cluster exec -- squeue --noheader --format=%T --job {job}".split()
    wait_for(lambda: toolkit(*queue).stdout.strip() == "RUNNING", "all nodes")
    try:
        yield
    finally:
        toolkit("cluster", "exec", "--", "scancel", job)


def connected(stack: ExitStack, path: Path, number: int) -> list[socket.socket]:
    """Return connections to a socket, each of which a server has answered."""
    sockets = []
    for _ in range(number):
        sock = stack.enter_context(socket.socket(socket.AF_UNIX))
        sock.settimeout(LONG)
        sock.connect(str(path))
        sock.sendall(b"GET /api/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        sockets.append(sock)
    for sock in sockets:
        assert sock.recv(65536).startswith(b"HTTP/1.1 403")
    return sockets


def test_two_notebooks_of_one_directory_and_forty_connections_at_the_end_of_one(
    cluster, notebook_image, toolkit, toolkit_env, shared_dir
):
    del cluster
    cwd, shown = shared_dir / "it's $(touch pwned) 한글", shared_dir / 'a "course" é'
    for directory in (cwd, cwd / "jupyter", shown):
        directory.mkdir()
    (shown / "lesson.txt").write_text("read me")
    words = ("--image", str(notebook_image), "--cpus-per-task", "2", "--time", "20", str(shown))

    # It says why it waits. Ctrl-C leaves the job, which is not reached before it runs.
    with full_cluster(toolkit):
        waiting = Waiting(cwd, toolkit_env, *words)
        wait_for(
            lambda: waiting.says("waits: Resources") or waiting.says("waits: Priority"),
            "the reason",
        )
        waiting.process.send_signal(signal.SIGINT)
        assert waiting.process.wait(LONG) == 130
        assert "toolkit notebook connect notebook-0001" in waiting.messages.read_text()
        early = toolkit("notebook", "connect", cwd=cwd)
        assert (early.returncode, "is not running" in early.stderr) == (87, True)

    # A second one beside it; both run, and neither takes the other's token.
    second = Forward(cwd, toolkit_env, "notebook", *words, "--port", "8889")
    wait_for((cwd / "runs/notebook-0001/place.json").is_file, "the first one")
    first = Forward(cwd, toolkit_env, "notebook", "connect", "notebook-0001")
    doors = (first, second)
    tokens = [door.entry["address"].split("token=")[1] for door in doors]
    answers = [[door.get("/api/status", token).split()[1] for token in tokens] for door in doors]
    assert answers == [["200", "403"], ["403", "200"]]
    assert [door.entry["address"][17:21] for door in doors] == ["8888", "8889"]
    for door, token in zip(doors, tokens, strict=True):
        assert '"lesson.txt"' in door.get("/api/contents", token)

    # From another terminal of this host there is one door for each notebook.
    busy = toolkit("notebook", "connect", "notebook-0001", cwd=cwd)
    assert (busy.returncode, f"listens on {first.socket}" in busy.stderr) == (75, True)

    # The job of the first ends while forty connections are open.
    with ExitStack() as stack:
        sockets = connected(stack, first.socket, _CONNECTIONS)
        assert toolkit("notebook", "stop", "notebook-0001", cwd=cwd).returncode == 0
        for sock in sockets:
            while sock.recv(65536):
                pass
        assert first.process.wait(LONG) == 0
    text = first.messages.read_text()
    assert ("not running any more" in text, "Traceback" in text) == (True, False), text
    assert "cancelled" in text, text
    assert not first.socket.exists()
    assert second.get("/api/status", tokens[1]).split()[1] == "200"
    assert second.end() == 130
    assert toolkit("notebook", "stop", "notebook-0002", cwd=cwd).returncode == 0
    assert not list(shared_dir.rglob("pwned"))


def test_a_directory_that_the_nodes_do_not_see_is_refused_before_the_job_queues(
    cluster, notebook_image, toolkit, shared_dir
):
    del cluster
    done = toolkit("notebook", "--image", str(notebook_image), "/tmp", cwd=shared_dir)
    assert (done.returncode, "/tmp cannot be seen by the nodes" in done.stderr) == (82, True)
    assert not (shared_dir / "runs").exists()


@pytest.mark.long
def test_the_time_limit_and_a_full_disk_end_a_notebook_with_the_reason(
    cluster, notebook_image, toolkit_env, shared_dir
):
    """The file that cannot be written stands for a full disk."""
    del cluster
    words = ("--image", str(notebook_image), "--cpus-per-task", "2")
    door = Forward(shared_dir, toolkit_env, "notebook", *words, "--time", "1")
    waiting = Waiting(shared_dir, toolkit_env, *words, "--job-name", "full", "--time", "20")
    run = shared_dir / "runs/full-0001"
    wait_for(run.is_dir, "the run")
    (run / "place.json.new").mkdir()
    assert waiting.process.wait(LONG) == 1
    text = waiting.messages.read_text()
    assert "its place cannot be written" in text
    assert "Traceback" not in text
    with ExitStack() as stack:
        connected(stack, door.socket, 3)
        assert door.process.wait(2 * LONG) == 0
    text = door.messages.read_text()
    assert ("not running any more" in text, "Traceback" in text) == (True, False), text
    assert "time limit" in text, text
    assert not door.socket.exists()


@pytest.mark.long
@pytest.mark.parametrize("runtime", ["none", "conda", "pyxis"])
def test_jupyter_of_the_host(
    runtime, cluster, jupyter_environment, pyxis, toolkit, toolkit_env, shared_dir
):
    """Pyxis is a stand-in, which starts no container: its tasks have the host's Python."""
    del cluster, pyxis
    env = {**toolkit_env, "HOME": str(shared_dir)}
    options = {
        "none": (),
        "conda": ("--env", str(jupyter_environment)),
        "pyxis": ("--image", "./mine.sqsh"),
    }[runtime]
    start = ("notebook", "--runtime", runtime, *options, "--time", "20")
    (shared_dir / "mine.sqsh").touch()
    if runtime == "none":
        bare = toolkit(*start, cwd=shared_dir, env=env)
        assert (bare.returncode, "-m pip install jupyterlab" in bare.stderr) == (86, True)
    able = {**env, "PATH": f"{jupyter_environment}/bin:{env['PATH']}"}
    door = Forward(shared_dir, able, *start)
    token = door.entry["address"].split("token=")[1]
    assert door.get("/api/status", token).split()[1] == "200"
    assert door.get("/api/status").split()[1] == "403"
    python = ("ssh", "notebook-0001", "hostname; python3 -c 'import jupyterlab'")
    inside = toolkit(*python, cwd=shared_dir, env=able)
    assert (inside.returncode, inside.stdout) == (0, f"{door.entry['node']}\n"), inside
    kernel = door.get("/api/kernels", token, verb="POST")
    assert '"execution_state"' in kernel
    if runtime == "pyxis":
        print_mounts = (
            "tr '\\0' '\\n' </proc/$(pgrep -f '^\\S*python\\S* .*/notebook_server.py')/environ"
        )
        node = f"cluster exec --node {door.entry['node']} -- bash -c".split()
        mounts = re.findall("STANDIN_MOUNTS=(.*)", toolkit(*node, print_mounts).stdout)[0].split(
            ","
        )
        place = json.loads((shared_dir / "runs/notebook-0001/place.json").read_text())
        own = Path(place["socket"]).parent
        assert f"{own}:{own}" in mounts
        assert f"{shared_dir}:{shared_dir}" in mounts
    assert toolkit("notebook", "stop", cwd=shared_dir).returncode == 0
    assert door.process.wait(LONG) == 0
