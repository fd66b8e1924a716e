"""One run is one job: answers of sbatch that are lost, an sbatch that dies, a controller that is away.

Cluster and sbatch are the real ones; a stand-in for a lossy network goes before sbatch on PATH.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ranks import logs_of, wait_for

pytestmark = pytest.mark.usefixtures("cluster")

RUN = ("run", "--detach", "--launcher", "none", "--job-name", "once")
TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"


class Lossy:
    """Runs the toolkit behind an sbatch that fails once, or always, and counts the jobs that Slurm has of a directory."""

    def __init__(self, toolkit: Any, env: dict[str, str], image: Path, place: Path) -> None:
        self.toolkit, self.env, self.image, self.place = toolkit, env, image, place
        self.bin = place / "bin"
        self.bin.mkdir()

    def sbatch(self, *first: str) -> None:
        """Put a stand-in for a lossy network before sbatch: what it does the first time; `$real` is sbatch."""
        real, been = shutil.which("sbatch"), self.bin / "been"
        again = f'if [[ -e {been} ]]; then exec $real "$@"; fi'
        lines = ("#!/bin/bash", f"real={real}", again, f"touch {been}", *first)
        (self.bin / "sbatch").write_text("\n".join(lines) + "\n")
        (self.bin / "sbatch").chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        return {**self.env, "PATH": f"{self.bin}:{self.env['PATH']}"}

    @property
    def words(self) -> tuple[str, ...]:
        return (*RUN, "--image", str(self.image))

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        words = (*self.words, *options, "--", "true")
        return self.toolkit(*words, cwd=self.place, env=self.environment)

    def jobs(self) -> list[int]:
        asked = "squeue --noheader --states=all --Format=ArrayJobID:0|,State:0|,Command:0"
        answer = self.toolkit("cluster", "exec", "--", *asked.split(), env=self.env)
        assert answer.returncode == 0, answer.stderr
        lines = [line for line in answer.stdout.splitlines() if f"{self.place}/runs/" in line]
        return sorted({int(line.split("|")[0]) for line in lines if "|CANCELLED|" not in line})

    def job_id(self) -> int:
        """Of the run, as it is written down."""
        return int(json.loads((self.place / "runs/once-0001/run.json").read_text())["job_id"])


@pytest.fixture
def lossy(
    toolkit: Any, toolkit_env: dict[str, str], pytorch_image: Path, shared_dir: Path
) -> Lossy:
    return Lossy(toolkit, toolkit_env, pytorch_image, shared_dir)


@pytest.mark.parametrize("saying", ["exit 0", f"echo '{TIMED_OUT}' >&2; exit 1", "kill -9 $$"])
def test_a_job_whose_answer_is_lost_is_found_and_not_submitted_again(saying, lossy):
    lossy.sbatch('$real "$@" >/dev/null', saying)
    done = lossy.run()
    assert done.returncode == 0, done.stderr
    assert "asking Slurm whether it has the job" in done.stderr
    assert lossy.jobs() == [lossy.job_id()]
    assert not (lossy.place / "runs/once-0001/attempt.json").exists()


def test_an_sbatch_that_dies_before_it_submits_is_never_started_again(lossy):
    """Whether Slurm has the job is not known; the user decides, and then gets one job."""
    lossy.sbatch("kill -9 $$")
    done = lossy.run()
    assert done.returncode == 89, done.stderr
    assert "toolkit ps, which looks for the job again" in done.stderr
    assert lossy.jobs() == []
    (row,) = json.loads(lossy.toolkit("ps", "--json", env=lossy.env, cwd=lossy.place).stdout)
    assert (row["state"], row["job_id"]) == ("UNKNOWN", 0)
    done = lossy.toolkit("run", "--detach", "runs/once-0001", cwd=lossy.place, env=lossy.env)
    assert done.returncode == 0, done.stderr
    assert "the submission of once-0001 did not end" in done.stderr
    assert len(lossy.jobs()) == 1


@pytest.mark.parametrize("option", ["--nodes=77", "--frobnicate"])
def test_what_slurm_refuses_is_not_asked_twice(option, lossy):
    lossy.sbatch(f'echo "$@" >> {lossy.bin}/asked; rm {lossy.bin}/been; $real {option} "$@"')
    done = lossy.run()
    assert done.returncode == 76, done.stderr
    assert len((lossy.bin / "asked").read_text().splitlines()) == 1
    assert lossy.jobs() == []
    (row,) = json.loads(lossy.toolkit("ps", "--json", env=lossy.env, cwd=lossy.place).stdout)
    assert (row["state"], row["exit_code"]) == ("REFUSED", 76)
    assert (lossy.place / "runs/once-0001/job.sbatch").is_file()
    assert not (lossy.place / "runs/once-0001/attempt.json").exists()
    (lossy.bin / "sbatch").unlink()
    assert "did not end" not in lossy.run().stderr


class Controller:
    """The controller of a cluster of its own, which can be killed and started again."""

    def __init__(self, toolkit: Any, env: dict[str, str], directory: Path) -> None:
        self.toolkit, self.env = toolkit, env
        self.stop = f"kill -9 $(cat {directory}/run/slurmctld.pid)"
        # It writes its jobs down every five seconds, and one that it has not is lost with it.
        self.saves = f"touch {directory}/now; until [[ {directory}/state/job_state -nt {directory}/now ]]; do sleep .1; done"

    def bash(self, line: str) -> subprocess.CompletedProcess[str]:
        return self.toolkit("cluster", "exec", "--", "bash", "-c", line, env=self.env)

    def kill(self) -> None:
        assert self.bash(self.stop).returncode == 0

    def start(self) -> None:
        is_up = "sinfo >/dev/null 2>&1"
        done = self.bash(f"{is_up} || slurmctld; until {is_up}; do sleep .2; done")
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def controller(toolkit: Any, toolkit_env: dict[str, str], base: Path) -> Iterator[Controller]:
    env = {**toolkit_env, "TOOLKIT_CLUSTER": "away"}
    up = toolkit("cluster", "up", "--nodes", "1", env=env)
    assert up.returncode == 0, up.stderr
    yield Controller(toolkit, env, base / "c/away")
    assert toolkit("cluster", "down", env=env).returncode == 0


def test_a_controller_that_is_away_is_waited_for(controller, pytorch_image, shared_dir, started):
    lossy = Lossy(controller.toolkit, controller.env, pytorch_image, shared_dir)
    controller.kill()

    done = lossy.run("--wait-for-slurm", "1")
    assert done.returncode == 89, done.stderr
    assert not (shared_dir / "runs").exists(), "Slurm was asked for its partitions first"
    assert "the query was repeated for 0:01" in done.stderr

    log = shared_dir / "said"
    with log.open("w") as said:
        process = started(*lossy.words, "--", "true", cwd=shared_dir, env=lossy.env, stderr=said)
    wait_for(lambda: "asking again for 5:00" in log.read_text(), "the message")
    controller.start()
    assert process.wait(timeout=100) == 0, log.read_text()
    assert lossy.jobs() == [lossy.job_id()]


def test_a_job_whose_answer_is_lost_with_the_controller_is_found_when_it_is_back(
    controller, pytorch_image, shared_dir
):
    lossy = Lossy(controller.toolkit, controller.env, pytorch_image, shared_dir)
    lossy.sbatch('$real "$@" >/dev/null', controller.saves, controller.stop)
    done = lossy.run("--wait-for-slurm", "1")
    assert done.returncode == 89, done.stderr
    assert "it is not known whether Slurm has the job" in done.stderr
    controller.start()
    (row,) = json.loads(lossy.toolkit("ps", "--json", env=lossy.env, cwd=shared_dir).stdout)
    assert [row["job_id"]] == lossy.jobs()
    assert lossy.job_id() == row["job_id"]


def test_a_controller_that_restarts_in_the_middle_of_a_run_costs_nothing(
    controller, shared_dir, started
):
    job = "--runtime none --launcher none --job-name long -- sh -c".split()
    loop = "echo begun; until [ -e go ]; do sleep 0.2; done; echo ended"
    call, env = controller.toolkit, controller.env
    done = call("run", "--detach", *job, loop, env=env, cwd=shared_dir)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: "begun" in logs_of(shared_dir, "long-0001"), "the beginning")
    with started("logs", "-f", "long-0001", env=env, cwd=shared_dir) as follower:
        # A plain end, which writes its jobs down.
        controller.bash(
            "scontrol shutdown slurmctld; while sinfo >/dev/null 2>&1; do sleep .2; done"
        )
        controller.start()
        (shared_dir / "go").touch()
        out, error = follower.communicate(timeout=90)
    assert (follower.returncode, out.count("ended")) == (0, 1), out + error
