"""Jobs meet although a stranger on the network knocks all the time; the stranger learns nothing and gets nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ranks import wait_for

pytestmark = pytest.mark.usefixtures("cluster")

# From another node: holds silent connections, says what strangers say, and writes down what is
# answered.
STRANGER = """\
import json, os, socket, sys, time
host, port, file = sys.argv[1], int(sys.argv[2]), sys.argv[3]
says = [b"", b"GET / HTTP/1.1\\r\\n\\r\\n" * 4, b"\\0" * 32, b'{"token": "", "node": "nid009", "ranks": 8}\\n', b"x" * 100000]
held, met, answers = [], 0, set()
while True:
    for text in says:
        try:
            link = socket.create_connection((host, port), timeout=1)
            met += 1
            if not text:
                held = [*held, link][-100:]
                continue
            link.sendall(text)
            link.settimeout(0.05)
            answers.add(len(link.recv(1 << 16)))
        except OSError:
            pass
        finally:
            with open(file + ".new", "w") as stream:  # the file is read at any time
                stream.write(json.dumps({"met": met, "answers": sorted(answers)}))
            os.replace(file + ".new", file)
        time.sleep(0.02)
"""
TELLING = """\
import json, os, socket
import ray
ray.init(log_to_driver=False)
names = sorted(node["NodeManagerHostname"] for node in ray.nodes())
print(json.dumps({"nodes": names, "token": "TOOLKIT_TOKEN" in os.environ}), flush=True)
"""
COUNTING = """\
import json, os, time
import horovod.torch as hvd
import torch
hvd.init()

@hvd.elastic.run
def count(state):
    while state.count < 6:
        hvd.allreduce(torch.ones(1), op=hvd.Sum)
        state.count += 1
        time.sleep(0.3)
        state.commit()

state = hvd.elastic.TorchState(count=0)
count(state)
if hvd.rank() == 0:
    print(json.dumps({"count": state.count, "size": hvd.size(), "token": "TOOLKIT_TOKEN" in os.environ}), flush=True)
"""


@contextmanager
def knocking(toolkit_env: dict[str, str], directory: Path, job: int) -> Iterator[Path]:
    """A stranger at the port where the job's nodes meet."""
    told = directory / "told.json"
    (directory / "stranger.py").write_text(STRANGER)
    words = (
        *"cluster exec --node nid003 --".split(),
        sys.executable,
        *"stranger.py nid001".split(),
        str(61000 + job % 4536),
        str(told),
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "toolkit", *words], cwd=directory, env=toolkit_env
    )
    try:
        yield told
    finally:
        process.terminate()
        process.wait(120)


def run(
    toolkit: Any, env: dict[str, str], directory: Path, *words: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a job printed that ran while the stranger knocked, and what that one was told."""
    # The job waits for a node until the stranger is there: nodes meet for a moment only.
    holding = (
        *"--parsable --nodelist=nid001 --exclusive --output=/dev/null".split(),
        "--wrap=sleep 600",
    )
    blocker = toolkit("cluster", "exec", "--", "sbatch", *holding)
    assert blocker.returncode == 0, blocker.stderr
    done = toolkit(
        *"run --detach --nodes 2 --nodelist nid[001-002]".split(), *words, "train.py", cwd=directory
    )
    assert done.returncode == 0, done.stderr
    place = directory / "runs" / "train-0001"
    job = int(json.loads((place / "run.json").read_text())["job_id"])
    with knocking(env, directory, job) as told:
        wait_for(told.exists, "the stranger to knock")
        assert toolkit("cluster", "exec", "--", "scancel", blocker.stdout.strip()).returncode == 0
        followed = toolkit("logs", "-f", "train-0001", cwd=directory, timeout=300)
        assert followed.returncode == 0, followed.stdout + followed.stderr
        answers = json.loads(told.read_text())
    outcome = json.loads((place / "outcome.json").read_text())
    for file in place.rglob("*"):
        if file.is_file() and "TOOLKIT_TOKEN=" in file.read_text(errors="replace"):
            assert file.name == "job.sbatch", "it says how the secret is made"
            assert re.findall(r"TOOLKIT_TOKEN=(.*)", file.read_text()) == [
                r"$(od -An -N32 -v -tx1 /dev/urandom | tr -d ' \n')"
            ]
    return outcome["results"], answers


@pytest.mark.long
def test_rays_nodes_meet(
    toolkit: Any, toolkit_env: dict[str, str], ray_image: Path, shared_dir: Path
) -> None:
    (shared_dir / "train.py").write_text(TELLING)
    results, answers = run(
        toolkit, toolkit_env, shared_dir, "--image", str(ray_image), "--launcher", "ray"
    )
    assert results == {"nodes": ["nid001", "nid002"], "token": False}
    assert answers["met"] >= 1, (
        "the meeting is short: the first node stops listening when all are there"
    )
    assert set(answers["answers"]) <= {0, 64}, (
        "a number and a proof, which say nothing to who has no secret"
    )


def test_agents_of_elastic_horovod_find_their_driver(
    toolkit: Any, toolkit_env: dict[str, str], pytorch_image: Path, shared_dir: Path
) -> None:
    (shared_dir / "train.py").write_text(COUNTING)
    options = (
        *"--launcher horovod-elastic --image".split(),
        str(pytorch_image),
        *"--env HOROVOD_GLOO_TIMEOUT_SECONDS=30".split(),
    )
    results, answers = run(toolkit, toolkit_env, shared_dir, *options)
    assert results == {"count": 6, "size": 2, "token": False}
    assert answers["met"] > 5
    assert set(answers["answers"]) <= {0, 64}
