"""A job's Ray works for its own script alone; who has no token, on another node, gets nothing."""

from __future__ import annotations

import json
import re

import pytest

from tests.cluster.ranks import logs_of, wait_for

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.long]

TELLING = """\
import json, os, time
import ray
ray.init(log_to_driver=False)
names = sorted(node["NodeManagerHostname"] for node in ray.nodes())
print(json.dumps({"nodes": names, "address": os.environ["RAY_ADDRESS"]}), flush=True)
while not os.path.exists("end"):
    time.sleep(0.2)
"""
STRANGER = """\
import sys
import ray
ray.init(address=sys.argv[1], log_to_driver=False)
print("inside", ray.get(ray.remote(lambda: 42).remote()), flush=True)
"""


def test_a_stranger_gets_no_work_from_a_jobs_ray(toolkit, ray_image, shared_dir):
    (shared_dir / "train.py").write_text(TELLING)
    (shared_dir / "stranger.py").write_text(STRANGER)
    image = ("--image", str(ray_image))
    own = ("--launcher", "ray", "--nodes", "2", "--nodelist", "nid[001-002]")
    assert toolkit("run", "--detach", *image, *own, "train.py", cwd=shared_dir).returncode == 0
    try:
        wait_for(
            lambda: "address" in logs_of(shared_dir, "train-0001"),
            "the script",
            says=lambda: logs_of(shared_dir, "train-0001"),
        )
        (line,) = re.findall(r"{.*}", logs_of(shared_dir, "train-0001"))
        told = json.loads(line)
        other = ("--launcher", "none", "--nodelist", "nid003", "stranger.py", told["address"])
        done = toolkit("run", *image, *other, cwd=shared_dir, timeout=200)
    finally:
        (shared_dir / "end").touch()
    assert done.returncode != 0
    assert "inside" not in done.stdout
    followed = toolkit("logs", "-f", "train-0001", cwd=shared_dir, timeout=100)
    assert followed.returncode == 0, followed.stdout + followed.stderr
    assert told["nodes"] == ["nid001", "nid002"]
    script = (shared_dir / "runs/train-0001/job.sbatch").read_text()
    assert re.findall(r"RAY_AUTH_TOKEN=(.*)", script) == [
        r"$(od -An -N32 -v -tx1 /dev/urandom | tr -d ' \n')"
    ]
    hidden = [
        path
        for path in (shared_dir / "runs/train-0001").rglob("*")
        if path.is_file() and re.search(r"\b[0-9a-f]{64}\b", path.read_text(errors="replace"))
    ]
    assert {path.name for path in hidden} <= {"plan.json", "job.sbatch", "code.json"}, "hashes"
