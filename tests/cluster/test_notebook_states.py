"""Notebooks that wait, that share a user and a directory, and that end for a reason."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.cluster_fixtures import Toolkit
from tests.cluster.forwarding import LONG, Forward
from tests.cluster.ranks import wait_for


class Waiting:
    """`toolkit notebook` that has not printed the way in."""

    def __init__(self, cwd: Path, env: Mapping[str, str], *arguments: str) -> None:
        self.messages = cwd / "messages"
        words = (sys.executable, "-m", "toolkit", "notebook", *arguments)
        nothing = subprocess.DEVNULL
        with self.messages.open("w") as stream:
            self.process = subprocess.Popen(
                words, cwd=cwd, env=env, stdin=nothing, stdout=stream, stderr=stream
            )

    def says(self, text: str) -> bool:
        said = self.messages.read_text()
        assert self.process.poll() is None or text in said, said
        return text in said


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


def test_a_notebook_that_waits_and_a_second_one_of_the_same_directory(
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
        reasons = ("waits: Resources", "waits: Priority")
        wait_for(lambda: any(map(waiting.says, reasons)), "the reason")
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

    # The job of the first one ends; the second goes on.
    assert toolkit("notebook", "stop", "notebook-0001", cwd=cwd).returncode == 0
    assert first.process.wait(LONG) == 0
    text = first.messages.read_text()
    assert ("not running any more" in text, "Traceback" in text) == (True, False), text
    assert "cancelled" in text, text
    assert not first.socket.exists()
    assert second.get("/api/status", tokens[1]).split()[1] == "200"
    assert second.end() == 130
    assert toolkit("notebook", "stop", "notebook-0002", cwd=cwd).returncode == 0
    assert not list(shared_dir.rglob("pwned"))


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
    assert door.process.wait(2 * LONG) == 0
    text = door.messages.read_text()
    assert ("not running any more" in text, "Traceback" in text) == (True, False), text
    assert "time limit" in text, text
    assert not door.socket.exists()


@pytest.mark.long
@pytest.mark.parametrize("runtime", ["none", "conda"])
def test_jupyter_of_the_host(
    runtime, cluster, jupyter_environment, toolkit, toolkit_env, shared_dir
):
    del cluster
    env = {**toolkit_env, "HOME": str(shared_dir)}
    options = ("--env", str(jupyter_environment)) if runtime == "conda" else ()
    start = ("notebook", "--runtime", runtime, *options, "--time", "20")
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
    assert '"execution_state"' in door.get("/api/kernels", token, verb="POST")
    assert toolkit("notebook", "stop", cwd=shared_dir).returncode == 0
    assert door.process.wait(LONG) == 0
