"""What a run used, and what all runs used, against sacct and a reckoning by hand; runs that start again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ranks import logs_of, outcome, wait_for

# A stand-in for nvidia-smi, as this machine has no GPU: what it prints is made up, in the form of the real one.
NVIDIA_SMI = """\
#!/bin/bash
# A stand-in for nvidia-smi, for tests of the toolkit.
for word in "$@"; do [[ $word != --id=* ]] || ids=${word#--id=}; done
while :; do
    for id in ${ids//,/ }; do echo "$id, $((40 + id * 20)), 8192, 81920, 100.50, 400.00"; done
    sleep 0.5
done
"""
BUSY = """\
import time
data = bytearray(400_000_000)
end = time.time() + 12
while time.time() < end or time.process_time() < 2: pass
"""


@pytest.fixture(scope="module")
def accounted(toolkit: Any, toolkit_env: dict[str, str]) -> Iterator[dict[str, str]]:
    """The environment of a cluster of three nodes with accounting."""
    env = {**toolkit_env, "TOOLKIT_CLUSTER": "cost"}
    shape = "--nodes 3 --cpus-per-node 4 --mem-per-node 16G --gpus-per-node 2 --accounting".split()
    up = toolkit("cluster", "up", *shape, env=env, timeout=300)
    assert up.returncode == 0, up.stderr
    yield env
    assert toolkit("cluster", "down", env=env).returncode == 0


def sacct(toolkit: Any, env: dict[str, str], *options: str) -> list[list[str]]:
    words = ("env", "SLURM_TIME_FORMAT=%s", "sacct", "--noheader", "--parsable2", "--noconvert")
    done = toolkit("cluster", "exec", "--", *words, *options, env=env)
    assert done.returncode == 0, done.stderr
    return [line.split("|") for line in done.stdout.splitlines()]


def test_a_report_and_the_usage_are_what_sacct_says(
    toolkit: Any, accounted: dict[str, str], shared_dir: Path
) -> None:
    """The formulas are those of tests/unit/test_cost.py."""
    (shared_dir / "bin").mkdir()
    (shared_dir / "bin/nvidia-smi").write_text(NVIDIA_SMI)
    (shared_dir / "bin/nvidia-smi").chmod(0o755)
    (shared_dir / "busy.py").write_text(BUSY)
    env = {**accounted, "PATH": f"{shared_dir / 'bin'}:{accounted['PATH']}"}
    run = "run --runtime none --launcher none --nodes 2 --ntasks-per-node 2 --gpus-per-node 2"
    words = (*run.split(), "--mem", "8G", "--", "python3", "busy.py")
    done = toolkit(*words, cwd=shared_dir, env=env)
    assert done.returncode == 0, done.stderr

    told = json.loads(toolkit("report", "python3-0001", "--json", cwd=shared_dir, env=env).stdout)
    number = str(told["job_id"])
    fields = "JobIDRaw,ElapsedRaw,AllocCPUS,TotalCPU,AllocTRES,TRESUsageInTot,Start"
    rows = {row[0]: row for row in sacct(toolkit, env, f"--jobs={number}", f"--format={fields}")}
    job, step = rows[number], rows[f"{number}.0"]
    minutes, seconds = job[3].split(":")
    cpu_seconds = int(minutes) * 60 + float(seconds)
    assert cpu_seconds > 4 * 1.9, "four ranks took two seconds each"
    assert told["cpu_share"] == pytest.approx(cpu_seconds / (int(job[1]) * int(job[2])))
    total = int(re.findall(r"mem=(\d+)", step[5])[0])
    assert total >= 4 * 400_000_000
    assert "mem=16384M" in job[4]
    assert told["memory"]["share"] == pytest.approx(total / (16384 << 20))
    assert told["start_seconds"] == int(step[6]) - int(job[6])
    assert {(gpu["host"], gpu["number"], gpu["busy"], gpu["power"]) for gpu in told["gpus"]} == {
        (host, gpu, 40 + gpu * 20, 100.5) for host in ("nid001", "nid002") for gpu in (0, 1)
    }
    asked = "cluster exec --node nid001 -- pgrep -f nvidia-smi".split()
    assert toolkit(*asked, env=env).stdout == "", "it ends with the task"

    (main,) = json.loads(toolkit("usage", "--json", cwd=shared_dir, env=env).stdout)["partition"]
    hours = int(job[1]) / 3600
    assert (main["name"], main["jobs"], main["gpu_hours"]) == ("main", 1, pytest.approx(4 * hours))
    assert main["cpu_hours"] == pytest.approx(int(job[2]) * hours)


RETRIED = """\
import os, sys, time
from pathlib import Path
node = os.environ["SLURMD_NODENAME"]
print("starts on", node, flush=True)
if sys.argv[1] == "bug":
    sys.exit("RuntimeError: a bug")
if node == "nid002" and sys.argv[1] == "gpu":
    sys.exit("RuntimeError: CUDA error: uncorrectable ECC error encountered")
while sys.argv[1] == "node" and not Path("go").exists():
    time.sleep(0.1)
"""


@pytest.mark.slow("Slurm misses a node after a while, and starts a job again after another")
def test_what_the_infrastructure_ended_starts_again_without_its_node_and_nothing_else(
    toolkit: Any, accounted: dict[str, str], shared_dir: Path
) -> None:
    (shared_dir / "retried.py").write_text(RETRIED)

    def run(*words: str) -> Any:
        options = "run --runtime none --launcher none --nodes 2 --retry 1 --job-name".split()
        program = ("--", "python3", "retried.py", words[0])
        return toolkit(*options, *words, *program, cwd=shared_dir, env=accounted, timeout=200)

    def stints(name: str) -> list[dict[str, Any]]:
        found = outcome(shared_dir, name)
        assert (found["nodes"], len(found["stints"])) == ("nid[001,003]", 2)
        return list(found["stints"])

    assert run("bug").returncode == 1
    assert len(outcome(shared_dir, "bug-0001")["stints"]) == 1, "a failure of the program"
    assert run("gpu").returncode == 0
    assert "a GPU of nid002 was lost" in stints("gpu-0001")[0]["how"]

    assert run("node", "--detach").returncode == 0
    wait_for(lambda: logs_of(shared_dir, "node-0001").count("starts on") == 2, "both ranks")
    assert toolkit("cluster", "kill", "nid002", env=accounted).returncode == 0
    wait_for(
        lambda: "nid002 failed, and is left out" in logs_of(shared_dir, "node-0001"),
        "the script to hear of it",
        seconds=120,
    )
    assert toolkit("cluster", "start", "nid002", env=accounted).returncode == 0
    (shared_dir / "go").touch()
    assert toolkit("logs", "-f", "node-0001", cwd=shared_dir, env=accounted).returncode == 0
    assert stints("node-0001")
    number = json.loads((shared_dir / "runs/node-0001/run.json").read_text())["job_id"]
    options = ("--duplicates", "--allocations", f"--jobs={number}", "--format=State")
    rows = sacct(toolkit, accounted, *options)
    assert rows == [["NODE_FAIL"], ["COMPLETED"]], "one job, twice"
