"""Requeued jobs, sweeps, dependencies, shells and interactive jobs on the real cluster."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ranks import logs_of, none_left, row, wait_for
from tests.cluster.terminal import Terminal

pytestmark = pytest.mark.usefixtures("cluster", "no_jobs_left")


@pytest.fixture
def no_jobs_left(toolkit: Any) -> Iterator[None]:
    """Give the nodes back after a test that failed."""
    yield
    toolkit("cluster", "exec", "--", "bash", "-c", 'scancel --user="$(id -un)"')


# Counts, and saves its count when it is told to stop, as a training would; who saves ends with a
# code of its own.
COUNTING = """\
import pathlib, signal, sys, time
saved = pathlib.Path("saved")
count = int(saved.read_text()) if saved.exists() else 0
print("starts at", count, flush=True)
told = []  # it may be told more than once: Slurm tells every process of the rank, and the container passes it on
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
while True:
    time.sleep(0.1)
    count += 1
    if count % 10 == 0:
        print("count", count, flush=True)
    if told:
        saved.write_text(str(count))
        sys.exit(75)
"""
TERMINAL = """\
import os, sys
print("terminal", [os.isatty(number) for number in (0, 1)], os.popen("stty size").read().strip(), flush=True)
sys.exit(int(sys.argv[1]))
"""
# One point of this sweep fails until it is mended.
OBJECTIVE = """\
import argparse, json, os, pathlib, sys
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--tag")
parser.add_argument("--scale", type=float)
args = parser.parse_args()
pathlib.Path(os.environ["TOOLKIT_POINT"], "written").write_text(args.tag)
if (args.lr, args.tag) == (0.25, "a") and not pathlib.Path("mended").exists():
    sys.exit(3)
print(json.dumps({"loss": args.lr * args.scale}), flush=True)
"""


def tell_to_stop(toolkit: Any, directory: Path, run: str) -> None:
    """What Slurm does a while before the time limit."""
    job = row(toolkit, directory, run)["job_id"]
    done = toolkit("cluster", "exec", "--", "scancel", "--batch", "--signal=USR1", str(job))
    assert done.returncode == 0, done.stderr


def test_ranks_save_when_they_are_told_to_and_the_number_of_attempts_is_bounded(
    toolkit, pytorch_image, shared_dir
):
    (shared_dir / "counting.py").write_text(COUNTING)
    options = f"--image {pytorch_image} --launcher none --requeue --max-requeues 1 --signal B:USR1@60".split()
    assert toolkit("run", "--detach", *options, "counting.py", cwd=shared_dir).returncode == 0
    run = "counting-0001"
    wait_for(lambda: "count 10" in logs_of(shared_dir, run), "the first attempt")
    tell_to_stop(toolkit, shared_dir, run)
    wait_for(lambda: logs_of(shared_dir, run).count("starts at") == 2, "the second attempt")
    assert int((shared_dir / "saved").read_text()) >= 10
    tell_to_stop(toolkit, shared_dir, run)
    followed = toolkit("logs", "-f", run, cwd=shared_dir, timeout=120)
    assert followed.returncode == 75, "it saved, and may not go back again"
    came_out = json.loads((shared_dir / "runs" / run / "outcome.json").read_text())
    assert [stint["how"] for stint in came_out["stints"]][-1] == "exit code 75"
    (second,) = (shared_dir / "runs" / run / "logs").glob("*.1-0-*.log")
    assert "starts at" in second.read_text()
    assert "starts at 0" not in second.read_text()


@pytest.fixture
def terminal(toolkit_env, shared_dir, pytorch_image):
    """A terminal of one's own in which `toolkit WORDS --image ...` runs."""

    def call(words: str, *more: str) -> Terminal:
        argv = (
            sys.executable,
            "-m",
            "toolkit",
            *words.split(),
            "--image",
            str(pytorch_image),
            *more,
        )
        return Terminal(argv, env={**toolkit_env, "TERM": "dumb"}, cwd=shared_dir)

    return call


def test_a_shell_has_the_size_of_its_terminal_and_ctrl_c_and_hands_its_exit_code_on(
    toolkit, terminal, shared_dir
):
    shell = terminal("shell --nodes 2 --gpus 1")
    shell.until("> ")
    assert shell.ask("stty size", 1) == "33 101"
    shell.resize(40, 120)
    wait_for(lambda: shell.ask("stty size", 2) == "40 120", "the new size")
    assert shell.ask("hostname", 3).startswith("nid00")
    tell = "echo gpus $CUDA_VISIBLE_DEVICES nodes $SLURM_JOB_NUM_NODES"
    assert shell.ask(tell, 4) == "gpus 0 nodes 2"
    shell.press("echo is waiting; sleep 300\n")
    shell.until("is waiting\r\n")
    for _ in range(20):  # a Ctrl-C while bash starts the program goes to neither
        shell.press("\x03")
        with contextlib.suppress(AssertionError):
            shell.until("> ", seconds=3)
            break
    assert shell.ask("echo ended by $?", 5) == "ended by 130"
    assert row(toolkit, shared_dir, "shell-0001")["state"] == "RUNNING"
    shell.press("exit 5\n")
    assert shell.code() == 5
    ended = row(toolkit, shared_dir, "shell-0001")
    assert (ended["state"], ended["exit_code"]) == ("FAILED", 5)
    none_left(shared_dir)


def test_a_shell_needs_a_terminal_and_a_node(toolkit, terminal, pytorch_image, shared_dir):
    assert toolkit("shell", "--image", str(pytorch_image), cwd=shared_dir).returncode == 64
    shell = terminal("shell --slurm licenses=nowhere")
    assert (shell.code(), "no allocation" in shell.seen) == (76, True)
    assert not list((shared_dir / "runs").iterdir())


def test_a_shell_that_waits_for_nodes_waits_no_more_after_ctrl_c(toolkit, terminal, shared_dir):
    take = "cluster exec -- sbatch --parsable --exclusive --nodes 3 --output /dev/null --wrap"
    job = toolkit(*take.split(), "sleep 300").stdout.strip()
    queue = "cluster exec -- squeue --noheader --format=%T"
    wait_for(lambda: "RUNNING" in toolkit(*queue.split(), f"--job={job}").stdout, "all nodes")
    shell = terminal("shell")
    shell.until("queued and waiting")
    shell.press("\x03")
    assert shell.code() == 130
    assert list((shared_dir / "runs").iterdir()) == []
    assert toolkit(*queue.split(), "--name=shell").stdout == ""


def test_an_interactive_run_ends_with_its_exit_code_and_ctrl_c_gives_the_nodes_back(
    toolkit, started, pytorch_image, shared_dir
):
    (shared_dir / "terminal.py").write_text(TERMINAL)
    (shared_dir / "wait.py").write_text("import time; print('here', flush=True); time.sleep(300)\n")
    words = ("run", "--interactive", "--image", str(pytorch_image), "--launcher", "srun")
    done = toolkit(*words, "terminal.py", "3", cwd=shared_dir)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "0| terminal [False, False]" in done.stdout
    process = started(*words, "--nodes", "2", "wait.py", cwd=shared_dir, stderr=subprocess.STDOUT)
    while "| here" not in process.stdout.readline():
        assert process.poll() is None
    os.kill(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert row(toolkit, shared_dir, "wait-0001")["state"] == "CANCELLED"
    none_left(shared_dir)


def test_the_first_rank_of_an_interactive_run_has_the_users_terminal(terminal, shared_dir):
    (shared_dir / "terminal.py").write_text(TERMINAL)
    shell = terminal("run --interactive --pty --launcher srun", "terminal.py", "4")
    shell.until("terminal [True, True] 33 101")
    assert shell.code() == 4


@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_ranks_of_a_batch_job_have_a_terminal_where_they_want_one(
    launcher, launch, pytorch_image, shared_dir
):
    (shared_dir / "terminal.py").write_text(TERMINAL)
    done = launch(pytorch_image, f"--pty --launcher {launcher} terminal.py 5")
    assert done.returncode == 5, done.stdout + done.stderr
    # torchrun itself reads what its ranks print.
    assert f"0| terminal [True, {launcher == 'srun'}] 40 120" in done.stdout


def test_a_sweep_is_one_array_with_a_table_and_failed_points_run_again_alone(
    toolkit, pytorch_image, shared_dir
):
    (shared_dir / "objective.py").write_text(OBJECTIVE)
    start = f"run --image {pytorch_image} --launcher none --sweep lr=0.5,0.25 --sweep".split()
    done = toolkit(*start, "tag=a,it's b", "objective.py", "--scale", "2", cwd=shared_dir)
    assert done.returncode == 3, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    table = [line.split() for line in lines if line[:1].isdigit() and "|" not in line]
    assert table == [
        ["0", "0.5", "a", "COMPLETED", "0", "1"],
        ["1", "0.5", "it's", "b", "COMPLETED", "0", "1"],
        ["2", "0.25", "a", "FAILED", "3", "-"],
        ["3", "0.25", "it's", "b", "COMPLETED", "0", "0.5"],
    ]
    run = shared_dir / "runs/objective-0001"
    assert {path.name for path in (run / "points").iterdir()} == {"0", "1", "2", "3"}
    assert (run / "points/3/written").read_text() == "it's b"
    assert "4 points: 3 done, 1 failed (2)" in row(toolkit, shared_dir, "objective-0001")["message"]
    (shared_dir / "mended").touch()
    again = toolkit("run", "--failed", "runs/objective-0001", cwd=shared_dir)
    assert again.returncode == 0, again.stdout + again.stderr
    found = json.loads(toolkit("results", "--json", cwd=shared_dir).stdout)
    assert [(point["number"], point["values"]["lr"]) for point in found] == [(2, "0.25")]
    assert found[0]["results"]["loss"] == 0.5
    assert toolkit("run", "--failed", "runs/objective-0002", cwd=shared_dir).returncode == 64


def test_a_run_starts_after_another_that_has_to_end_well(toolkit, pytorch_image, shared_dir):
    wait = "while not pathlib.Path('go').exists(): time.sleep(0.1)\nsys.exit(3)\n"
    (shared_dir / "first.py").write_text(f"import pathlib, sys, time\n{wait}")
    (shared_dir / "then.py").write_text("print('then', flush=True)\n")
    options = ("run", "--detach", "--image", str(pytorch_image), "--launcher", "none")
    assert toolkit(*options, "first.py", cwd=shared_dir).returncode == 0
    for after in ("first-0001", "afterany:first-0001", "afterok:then-0002"):
        assert toolkit(*options, "--after", after, "then.py", cwd=shared_dir).returncode == 0
    assert row(toolkit, shared_dir, "then-0002")["message"] == "Dependency"
    (shared_dir / "go").touch()

    def state(run: str) -> str:
        return str(row(toolkit, shared_dir, run)["state"])

    wait_for(lambda: state("then-0003") == "COMPLETED", "the chain's end")
    assert state("then-0002") == "COMPLETED"
    wait_for(lambda: state("then-0001") == "CANCELLED", "the one that could never start")
    assert "never started" in row(toolkit, shared_dir, "then-0001")["message"]
    refused = toolkit(*options, "--after", "first-0001", "then.py", cwd=shared_dir)
    assert (refused.returncode, "would never start" in refused.stderr) == (64, True)
    well = toolkit(*options, "--after", "then-0003", "--dry-run", "then.py", cwd=shared_dir)
    assert "--dependency" not in well.stdout, "that has ended well already"
    again = toolkit("run", "--dry-run", "runs/then-0002", cwd=shared_dir)
    assert "--dependency" not in again.stdout, "it is repeated by itself"


BUSY = """\
import subprocess, sys
data = bytearray(100_000_000)
for _ in range(5):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", "x" * 2500])
print("here", flush=True)
while True: pass
"""


def test_top_shows_what_ranks_use_on_their_nodes(toolkit, pytorch_image, shared_dir):
    """Also with command lines that Slurm does not send in one piece."""
    (shared_dir / "busy.py").write_text(BUSY)
    options = f"run --detach --image {pytorch_image} --launcher srun --nodes 2".split()
    assert toolkit(*options, "busy.py", cwd=shared_dir).returncode == 0
    wait_for(lambda: logs_of(shared_dir, "busy-0001").count("here") == 2, "both ranks")
    seen = json.loads(toolkit("top", "--json", cwd=shared_dir).stdout)["processes"]
    own = [one for one in seen if "busy.py" in one["command"] and one["memory"] > 100_000_000]
    ranks = {one["rank"]: one for one in own}
    assert set(ranks) == {0, 1}, seen
    assert ranks[0]["host"] != ranks[1]["host"]
    idle = [(one["host"], one["rank"]) for one in seen if one["command"].endswith("x" * 2500)]
    assert sorted(idle) == [("nid001", 0)] * 5 + [("nid002", 1)] * 5, seen
    assert any(one["cpu"] > 0 for one in ranks.values())
    assert "busy.py" in toolkit("top", "busy-0001", cwd=shared_dir).stdout
    toolkit("cancel", "busy-0001", cwd=shared_dir)
    wait_for(lambda: toolkit("top", "busy-0001", cwd=shared_dir).returncode == 87, "the end")
    none_left(shared_dir)
