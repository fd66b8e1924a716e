"""What the client learns about jobs from a real Slurm, of whichever version is installed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ranks import wait_for
from toolkit.localcluster.access import access
from toolkit.slurm.client import Client

HOSTILE = "a | b\n7<S>8 %s é 'q' $(x) \"d\""


class Cluster:
    """A client of a cluster, and scripts to submit."""

    def __init__(self, toolkit: Any, env: Mapping[str, str], place: Path) -> None:
        self.client = Client(access(env["TOOLKIT_CLUSTER"]))
        self.place, self._toolkit, self._env = place, toolkit, dict(env)

    def script(self, body: str, *options: str, name: str = "job.sbatch") -> Path:
        """Write a batch script."""
        path = self.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (f"#SBATCH {option}" for option in (f"--output={path.parent}/%j.log", *options))
        path.write_text("\n".join(("#!/bin/bash", *lines, body, "")))
        return path

    def submit(self, body: str, *options: str, name: str = "job.sbatch") -> int:
        """Submit a script."""
        return self.client.submit(self.script(body, *options, name=name))

    def find(self, name: str = "job.sbatch") -> int | None:
        """Return the job of a script that was submitted within the last minutes."""
        return self.client.find(str(self.place / name), time.time() - 600)

    def call(self, *words: str) -> str:
        """Run one of Slurm's commands as a user types it."""
        done = self._toolkit("cluster", "exec", "--", *words, env=self._env, cwd=self.place)
        assert done.returncode == 0, done.stderr
        return str(done.stdout).strip()

    def ended(self, job_id: int) -> Any:
        """Wait for the end of a job and return its state."""
        wait_for(lambda: self.client.jobs([job_id])[job_id].ended, f"the end of job {job_id}")
        return self.client.jobs([job_id])[job_id]

    def until(self, job_id: int, state: str) -> None:
        """Wait for a job's state."""
        wait_for(lambda: self.client.jobs([job_id])[job_id].state == state, f"{state} {job_id}")

    def forgets(self, *jobs: object) -> None:
        """Wait until the controller knows nothing of jobs that have ended: it looks once a minute."""
        queue = "squeue --array --noheader --states=all --format=%i".split()
        names = {str(job) for job in jobs}
        wait_for(
            lambda: names.isdisjoint(self.call(*queue).split()), "Slurm to forget", seconds=180
        )


@pytest.fixture
def slurm(cluster, toolkit, toolkit_env, shared_dir, monkeypatch) -> Cluster:
    assert cluster == toolkit_env["TOOLKIT_CLUSTER"]
    monkeypatch.setenv("TOOLKIT_CLUSTER_DIR", toolkit_env["TOOLKIT_CLUSTER_DIR"])
    return Cluster(toolkit, toolkit_env, shared_dir)


ENDS = {
    "true": ("COMPLETED", 0, 0),
    "exit 3": ("FAILED", 3, 0),
    "exit 255": ("FAILED", 255, 0),
    "kill -9 $$": ("FAILED", 0, 9),
    "kill -11 $$": ("FAILED", 0, 11),
}


def test_how_jobs_end(slurm):
    jobs = {body: slurm.submit(body, "--nodes=2", "--job-name=ends") for body in ENDS}
    states = {body: slurm.ended(job_id) for body, job_id in jobs.items()}
    ends = {body: (one.state, one.exit_code, one.signal) for body, one in states.items()}
    assert ends == ENDS
    for state in states.values():
        assert (state.name, state.partition, state.nodes) == ("ends", "main", "nid[001-002]")
        assert 0 < state.start <= state.end
        assert state.command == f"{slurm.place}/job.sbatch"
        assert slurm.client.snapshot().states[state.job_id] == state


def test_a_job_is_found_by_its_script_in_all_its_life(slurm):
    """Held, running, requeued by an administrator, ended; the name and the comment stay the user's."""
    options = ("--hold", "--requeue", "--job-name=mine", "--comment=theirs")
    job_id = slurm.submit("sleep 60", *options)
    slurm.submit("true", name="other/job.sbatch")
    assert slurm.find() == job_id
    slurm.call("scontrol", "release", str(job_id))
    slurm.until(job_id, "RUNNING")
    assert slurm.find() == job_id
    slurm.call("scontrol", "requeue", str(job_id))
    slurm.until(job_id, "PENDING")
    assert slurm.find() == job_id
    slurm.client.cancel(job_id)
    assert slurm.ended(job_id).state == "CANCELLED"
    assert slurm.find() == job_id
    queue = ("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%j|%k")
    assert slurm.call(*queue) == "mine|theirs"
    assert slurm.find("none.sbatch") is None
    by_hand = int(slurm.call("sbatch", "--parsable", "job.sbatch"))
    assert slurm.find() == by_hand, "a script that is submitted by hand"


def test_names_and_paths_may_contain_anything(slurm):
    name = f"x,y:0 {HOSTILE}/job.sbatch".replace("\n", " ")
    script = slurm.script("true", name=name)
    script.write_text("#!/bin/bash\n#SBATCH --output=/dev/null --hold\n")
    job_id = slurm.client.submit(script)
    slurm.call("scontrol", "update", f"JobId={job_id}", f"JobName={HOSTILE}")
    assert slurm.find(name) == job_id
    assert slurm.client.snapshot().states[job_id].name == HOSTILE
    slurm.call("scancel", str(job_id))


def test_an_array_that_is_cancelled_keeps_all_its_tasks(slurm):
    """Slurm keeps tasks that never started in one entry; the points of a sweep are run again by it."""
    body = "case $SLURM_ARRAY_TASK_ID in 0) exit 3;; 1) exit 0;; esac; sleep 60"
    job_id = slurm.submit(body, "--array=0-3,10-90:2%2")
    begun = ["FAILED", "COMPLETED", "RUNNING", "RUNNING", "PENDING"]

    def states() -> list[str]:
        return [state.state for state in slurm.client.elements(job_id).values()]

    wait_for(lambda: states()[:5] == begun, "two tasks to end and two others to run")
    assert slurm.find() == job_id
    assert slurm.client.jobs([job_id])[job_id].state == "RUNNING"
    slurm.client.cancel(job_id)
    found = slurm.ended(job_id)
    tasks = slurm.client.elements(job_id)
    assert list(tasks) == [0, 1, 2, 3, *range(10, 91, 2)]
    assert [state.state for state in tasks.values()] == ["FAILED", "COMPLETED", *["CANCELLED"] * 43]
    assert (tasks[0].exit_code, found.job_id, found.end > 0) == (3, job_id, True)
    assert slurm.find() == job_id


@pytest.fixture
def forgetful(toolkit, toolkit_env, shared_dir, base, monkeypatch) -> Iterator[Cluster]:
    """A cluster with accounting whose controller forgets a job some seconds after its end."""
    env = {**toolkit_env, "TOOLKIT_CLUSTER": "forgets"}
    monkeypatch.setenv("TOOLKIT_CLUSTER_DIR", toolkit_env["TOOLKIT_CLUSTER_DIR"])
    up = toolkit("cluster", "up", "--nodes", "1", "--accounting", env=env, timeout=300)
    assert up.returncode == 0, up.stderr
    found = Cluster(toolkit, env, shared_dir)
    (config,) = (base / "c/forgets").rglob("slurm.conf")
    config.write_text(re.sub(r"(?m)^MinJobAge=.*$", "MinJobAge=2", config.read_text()))
    found.call("scontrol", "reconfigure")
    yield found
    assert toolkit("cluster", "down", env=env).returncode == 0


def test_the_accounting_knows_what_the_controller_has_forgotten(forgetful):
    """Also the tasks of an array that ended long before the last one."""
    job_id = forgetful.submit("exit 3")
    body = "[ $SLURM_ARRAY_TASK_ID = 0 ] && exit 4; [ $SLURM_ARRAY_TASK_ID = 1 ] && sleep 600"
    array = forgetful.submit(body, "--array=0-5%1", name="array/job.sbatch")
    forgetful.forgets(job_id, f"{array}_0")
    assert job_id not in forgetful.client.snapshot().states

    state = forgetful.client.jobs([job_id])[job_id]
    assert (state.state, state.exit_code) == ("FAILED", 3)
    assert forgetful.find() == job_id
    tasks = forgetful.client.elements(array)
    assert [tasks[task].state for task in range(6)] == ["FAILED", "RUNNING", *["PENDING"] * 4]
    assert tasks[0].exit_code == 4

    forgetful.client.cancel(array)
    assert forgetful.ended(array).state == "FAILED"
    wait_for(lambda: array not in forgetful.client.snapshot().states, "the rest", seconds=180)
    tasks = forgetful.client.elements(array)
    assert [tasks[task].state for task in range(6)] == ["FAILED", *["CANCELLED"] * 5]
    assert forgetful.client.jobs([array])[array].state == "FAILED"
    assert forgetful.find("array/job.sbatch") == array
