"""From sbatch to the record of its job: processes that are killed, answers that are lost, disks that are full."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ranks import wait_for
from tests.faults.tally import Row

pytestmark = pytest.mark.usefixtures("cluster")

JOB = ("--runtime", "none", "--launcher", "none", "--job-name", "once")
# Each job that does the work adds a line, after a while in which a second one could start.
WORK = "import os, time\ntime.sleep(2)\nopen('worked', 'a').write(os.environ['SLURM_JOB_ID'] + '\\n')\n"


class Place:
    """A directory to submit from, and what there is of it in Slurm."""

    def __init__(self, toolkit: Any, env: Mapping[str, str], directory: Path) -> None:
        self.toolkit = toolkit
        self.directory = directory
        self.bin = directory / "bin"
        self.bin.mkdir()
        self.env = {**env, "PATH": f"{self.bin}:{env['PATH']}"}
        (directory / "work.py").write_text(WORK)

    def sbatch(self, *lines: str) -> None:
        """Put a stand-in before sbatch; ``$real`` is sbatch, and ``$count`` how often it was called before."""
        head = (
            "#!/bin/bash",
            f'real={shutil.which("sbatch")} place={self.directory} words=("$@")',
            'count=$(cat "$place/count" 2>/dev/null || echo 0)',
            'echo $((count + 1)) >"$place/count"',
        )
        (self.bin / "sbatch").write_text("\n".join((*head, *lines)) + "\n")
        (self.bin / "sbatch").chmod(0o755)

    def run(self, *options: str, timeout: float = 200) -> subprocess.CompletedProcess[str]:
        """`toolkit run --detach`, to its end."""
        words = ("run", "--detach", *JOB, *options, "work.py")
        done: subprocess.CompletedProcess[str] = self.toolkit(
            *words, cwd=self.directory, env=self.env, timeout=timeout
        )
        return done

    def killed(self, after: str, number: int) -> list[str]:
        """`toolkit run --detach` that is killed at a step; returns the steps that were taken."""
        log = self.directory / "steps"
        log.unlink(missing_ok=True)
        words = (
            sys.executable,
            "-m",
            "tests.faults.killer",
            str(log),
            after,
            str(number),
            *"-- run --detach".split(),
            *JOB,
            "work.py",
        )
        env = {**self.env, "PYTHONPATH": str(Path(__file__).parent.parent.parent)}
        subprocess.run(
            words,
            cwd=self.directory,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=200,
        )
        return log.read_text().splitlines() if log.exists() else []

    def ps(self) -> list[dict[str, Any]]:
        """`toolkit ps`."""
        done = self.toolkit("ps", "--all", "--json", cwd=self.directory, env=self.env)
        assert done.returncode == 0, done.stderr
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows

    def jobs(self) -> dict[int, str]:
        """All jobs that Slurm has of this directory, with their states."""
        asked = (
            *"squeue --noheader --states=all --Format=ArrayJobID:0|,State:0|,Command:0".split(),
        )
        answer = self.toolkit("cluster", "exec", "--", *asked, env=self.env)
        assert answer.returncode == 0, answer.stderr
        rows = [
            line.split("|", 2)
            for line in answer.stdout.splitlines()
            if f"{self.directory}/runs/" in line
        ]
        return {int(number): state for number, state, _ in rows}

    def worked(self) -> list[int]:
        """The jobs that did the work."""
        with contextlib.suppress(FileNotFoundError):
            return [int(line) for line in (self.directory / "worked").read_text().split()]
        return []

    def settle(self, tally: Row, runs: int = 1, ignored: int = 0) -> None:
        """Wait until all has ended, and count what is wrong: each run has one job, which did the work, and a row that says so."""
        wait_for(
            lambda: all(
                state in ("COMPLETED", "CANCELLED", "FAILED") for state in self.jobs().values()
            ),
            "the jobs to end",
            seconds=90,
        )
        rows = [row for row in self.ps() if row["job_id"]]
        worked = self.worked()
        right = (
            sorted(row["job_id"] for row in rows)
            == sorted(worked)
            == sorted({*self.jobs()} - {ignored})
        )
        right = right and all((row["state"], row["exit_code"]) == ("COMPLETED", 0) for row in rows)
        tally.trials += 1
        tally.doubled += max(0, len(worked) - runs)
        tally.lost += max(0, runs - len(worked))
        tally.wrong += not right
        assert right, (rows, worked, self.jobs())
        assert len(worked) == runs


@pytest.fixture
def place(toolkit: Any, toolkit_env: dict[str, str], shared_dir: Path) -> Place:
    return Place(toolkit, toolkit_env, shared_dir)


def test_every_step(tally, toolkit, toolkit_env, shared_dir):
    """`toolkit run` killed at each step from sbatch to its record, then repeated."""
    (shared_dir / "all").mkdir()
    steps = Place(toolkit, toolkit_env, shared_dir / "all").killed("sbatch", 0)
    assert len(steps) > 5, steps
    for number in range(1, len(steps) + 1):
        directory = shared_dir / f"step-{number}"
        directory.mkdir()
        place = Place(toolkit, toolkit_env, directory)
        assert len(place.killed("sbatch", number)) == number
        done = place.run()
        assert done.returncode == 0, (steps[number - 1], done.stderr)
        # The steps after the record are of a run that is whole: then the repeated command is a run
        # of its own.
        place.settle(tally, runs=len(list((directory / "runs").glob("*/run.json"))))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_sbatch_outlives_the_toolkit(moment, tally, place):
    """`toolkit run` killed while sbatch is at work, then repeated."""
    pause = 'touch "$place/now"; until [[ -e $place/go ]]; do sleep 0.1; done'
    first = (
        (pause, "sleep 2", 'exec $real "$@"')
        if moment == "before"
        else ('$real "$@" >/dev/null', pause, "exit 1")
    )
    place.sbatch('if ((count > 0)); then exec $real "$@"; fi', *first)
    process = subprocess.Popen(
        (sys.executable, "-m", "toolkit", "run", "--detach", *JOB, "work.py"),
        cwd=place.directory,
        env=place.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: (place.directory / "now").exists(), "sbatch")
    process.kill()
    process.wait()
    (place.directory / "go").touch()
    done = place.run()
    assert done.returncode == 0, done.stderr
    place.settle(tally)


def test_together(tally, place):
    """Four `toolkit run` and four `toolkit ps` at once in one directory."""
    words = [("run", "--detach", *JOB, "work.py")] * 4 + [("ps", "--all", "--json")] * 4
    started = [
        subprocess.Popen(
            (sys.executable, "-m", "toolkit", *call),
            cwd=place.directory,
            env=place.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for call in words
    ]
    answers = [(process.communicate(timeout=120), process.returncode) for process in started]
    assert [code for _, code in answers] == [0] * 8, answers
    place.settle(tally, runs=4)


class Controller:
    """A cluster of its own, whose daemons can be stopped, killed and started again."""

    def __init__(self, toolkit: Any, env: Mapping[str, str], directory: Path) -> None:
        self.toolkit, self.env, self.directory = toolkit, dict(env), directory

    def inside(self, line: str) -> str:
        """Run a line of bash in the cluster."""
        done = self.toolkit("cluster", "exec", "--", "bash", "-c", line, env=self.env)
        assert done.returncode == 0, (line, done.stderr)
        return str(done.stdout)

    def signal(self, daemon: str, name: str) -> None:
        """Send a signal to a daemon."""
        self.inside(f"pkill -{name} -x {daemon}")

    def words(self, daemon: str) -> str:
        """The command line of a daemon with its environment, so that it can be started again."""
        process = f"/proc/$(pgrep -o -x {daemon})"
        environ, command = (
            self.inside(f"cat {process}/{file}").split("\0")[:-1] for file in ("environ", "cmdline")
        )
        return shlex.join(("env", "-i", *environ, *command))

    def start(self, command: str) -> None:
        """Start a daemon that was killed."""
        self.inside(f"setsid {command} </dev/null >/dev/null 2>&1 & sleep 1")


@pytest.fixture(scope="module")
def controller(toolkit: Any, toolkit_env: dict[str, str], base: Path) -> Iterator[Controller]:
    env = {**toolkit_env, "TOOLKIT_CLUSTER": "away"}
    up = toolkit("cluster", "up", "--nodes", "1", "--accounting", env=env)
    assert up.returncode == 0, up.stderr
    yield Controller(toolkit, env, base / "c/away")
    assert toolkit("cluster", "down", env=env).returncode == 0


@pytest.mark.parametrize("daemon", ["slurmctld", "munged", "slurmdbd", "mariadbd"])
def test_daemons(daemon, tally, controller, shared_dir):
    """The controller, munge, the accounting and its database killed in turn while a run is followed."""
    place = Place(controller.toolkit, controller.env, shared_dir)
    (shared_dir / "work.py").write_text(WORK.replace("sleep(2)", "sleep(20)"))
    command = controller.words(daemon)
    with (shared_dir / "said").open("w") as said:
        process = subprocess.Popen(
            (sys.executable, "-m", "toolkit", "run", *JOB, "work.py"),
            cwd=shared_dir,
            env=place.env,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    wait_for(lambda: "running" in (shared_dir / "said").read_text(), "the job to run")
    time.sleep(
        7
    )  # a controller writes down what it knows every few seconds; a job that it has forgotten it cancels itself
    inside = controller.inside("pgrep -o -x " + daemon).strip()
    controller.inside(f"kill -9 {inside}")
    time.sleep(5)
    controller.start(command)
    assert process.wait(timeout=200) == 0, (shared_dir / "said").read_text()
    place.settle(tally)


@pytest.mark.slow("a controller is away for a while, twice a job of half a minute")
def test_sweep(tally, controller, shared_dir):
    """The controller killed while the last points of a sweep end, and started again."""
    place = Place(controller.toolkit, controller.env, shared_dir)
    (shared_dir / "work.py").write_text(
        "import sys, time\ntime.sleep(15)\nsys.exit(3 if sys.argv[-1] == '1' else 0)\n"
    )
    command = controller.words("slurmctld")
    with (shared_dir / "said").open("w") as said:
        process = subprocess.Popen(
            (sys.executable, "-m", "toolkit", "run", *JOB, "--sweep", "n=0,1,2", "work.py"),
            cwd=shared_dir,
            env=place.env,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    wait_for(lambda: "running" in (shared_dir / "said").read_text(), "the job to run")
    time.sleep(8)
    controller.inside("pkill -9 -x slurmctld")
    time.sleep(15)
    controller.start(command)
    code = process.wait(timeout=200)
    outcome = json.loads((shared_dir / "runs/once-0001/outcome.json").read_text())
    tally.trials += 1
    points = [(point["number"], point["exit_code"]) for point in outcome["points"]]
    tally.wrong += (code, points) != (3, [(0, 0), (1, 3), (2, 0)])
    assert (code, points) == (3, [(0, 0), (1, 3), (2, 0)]), (shared_dir / "said").read_text()
