"""`toolkit run` on the real local cluster, in the real image: Slurm, Apptainer, torchrun and Horovod as they are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.ranks import logs_of, none_left, outcome, wait_for
from tests.hostile import HOSTILE
from toolkit.quoting import sbatch

pytestmark = pytest.mark.usefixtures("cluster")

# Ranks that fail in the ways that ranks do. No framework is imported: it is the launcher that is
# tested.
FAILING = """\
import os, signal, sys, time
names = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "RANK", "SLURM_PROCID")
rank = next(int(os.environ[name]) for name in names if name in os.environ)
print("rank", rank, "is there", flush=True)
if rank == 2:
    time.sleep(1)
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(sys.argv[1]))
time.sleep(300)
"""
TELLING = """\
import json, os, sys
sys.stdout.write(json.dumps({"environment": dict(os.environ), "path": sys.path}) + "\\n")
"""


def test_a_script_runs_without_us(toolkit, pytorch_image, shared_dir):
    """On the login side of the cluster, where Slurm's commands answer by themselves: the site is `generic`."""
    text = "import os; print('rank', os.environ['SLURM_PROCID'], 'on', os.uname().nodename)\n"
    (shared_dir / "hello.py").write_text(text)
    shape = f"--site generic --image {pytorch_image} --nodes 2 --launcher horovod hello.py".split()

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return toolkit("cluster", "exec", "--", *words, cwd=shared_dir)

    run = (sys.executable, "-m", "toolkit", "run")
    dry = call(*run, "--dry-run", *shape)
    assert not (shared_dir / "runs").exists()
    done = call(*run, *shape)
    assert (done.returncode, "site generic" in done.stderr) == (0, True), done.stderr
    assert sorted(done.stdout.splitlines()) == ["0| rank 0 on nid001", "1| rank 1 on nid002"]
    script = shared_dir / "runs/hello-0001/job.sbatch"
    assert dry.stdout == script.read_text(), "the dry run prints what is submitted"
    subprocess.run(["shellcheck", str(script)], check=True)
    for log in script.parent.glob("logs/*"):
        log.unlink()
    alone = call("bash", "-c", f"cd {script.parent} && sbatch --wait job.sbatch")
    assert alone.returncode == 0, alone.stderr
    printed = "".join(sorted(log.read_text() for log in script.parent.glob("logs/*-*.log")))
    assert printed == "rank 0 on nid001\nrank 1 on nid002\n"


@pytest.mark.parametrize(
    ("launcher", "how", "code"),
    [("srun", "kill", 137), ("horovod-gloo", "3", 3), ("mpirun", "kill", 137)],
)
def test_the_first_failed_rank_ends_the_job_with_its_exit_code(
    launcher, how, code, launch, pytorch_image, shared_dir
):
    (shared_dir / "failing.py").write_text(FAILING)
    words = f"--launcher {launcher} --nodes 2 --ntasks-per-node 2 failing.py {how}"
    done = launch(pytorch_image, words, timeout=150)
    assert done.returncode == code, done.stdout + done.stderr
    failure = outcome(shared_dir, "failing-0001")["failure"]
    assert failure["rank"] == 2
    assert failure["host"] in ("nid001", "nid002")
    assert "failed" in done.stderr
    none_left(shared_dir)


def test_nothing_of_the_users_shell_or_home_leaks_in(
    launch, pytorch_image, shared_dir, toolkit_env
):
    (shared_dir / "tell.py").write_text(TELLING)
    paths = dict.fromkeys(("PYTHONPATH", "LD_LIBRARY_PATH", "CONDA_PREFIX"), "/leak")
    leaks = {**paths, "APPTAINERENV_LEAK": "1", "SBATCH_PARTITION": "no"}
    done = launch(pytorch_image, "--launcher horovod tell.py", env={**toolkit_env, **leaks})
    assert done.returncode == 0, done.stderr
    told = outcome(shared_dir, "tell-0001")["results"]
    inside = told["environment"]
    assert not {"CONDA_PREFIX", "LEAK"} & set(inside)
    assert inside["PYTHONPATH"] == str(shared_dir / "runs/tell-0001/report"), "why a rank fails"
    assert "/leak" not in inside.get("LD_LIBRARY_PATH", "")
    assert (inside["HOME"], inside["PYTHONNOUSERSITE"]) == ("/home/toolkit", "1")
    entries = [entry for entry in told["path"] if entry != str(shared_dir)]
    assert not any(entry.startswith((str(Path.home()), "/leak")) for entry in entries)


def test_sbatch_itself_reads_back_every_hostile_value(toolkit, shared_dir):
    for index, value in enumerate(HOSTILE):
        options = f"--comment={sbatch(value)}", f"--job-name=hostile{index}", "--hold"
        lines = ("#!/bin/bash", *(f"#SBATCH {option}" for option in options), "true\n")
        (shared_dir / f"{index}.sbatch").write_text("\n".join(lines))
    loop = 'for file in *.sbatch; do sbatch --parsable "$file" || exit; done'
    submitted = toolkit("cluster", "exec", "--", "bash", "-c", loop, cwd=shared_dir)
    assert submitted.returncode == 0, submitted.stderr
    queue = toolkit("cluster", "exec", "--", "squeue", "--json", "--states=all").stdout
    toolkit("cluster", "exec", "--", "scancel", *submitted.stdout.split())
    read = {
        job["name"]: job["comment"]
        for job in json.loads(queue)["jobs"]
        if job["name"].startswith("hostile")
    }
    assert read == {f"hostile{index}": value for index, value in enumerate(HOSTILE)}


def test_detach_ps_logs_cancel_rm(toolkit, pytorch_image, shared_dir):
    """From the directory of the run, and by the job from elsewhere."""
    here, there = shared_dir / "here", shared_dir / "there"
    for directory in (here, there):
        directory.mkdir()
    (here / "wait.py").write_text("import time; print('here', flush=True); time.sleep(300)\n")
    image = ("--image", str(pytorch_image), "--launcher", "horovod")
    submitted = json.loads(toolkit("run", "--detach", "--json", *image, "wait.py", cwd=here).stdout)
    assert submitted["run"] == "wait-0001"
    job = str(submitted["job_id"])
    wait_for(lambda: "here" in logs_of(here, "wait-0001"), "the rank to print")
    for cwd, name in ((here, "wait-0001"), (there, job)):
        assert "here" in toolkit("logs", name, cwd=cwd).stdout
    (row,) = json.loads(toolkit("ps", "--json", cwd=here).stdout)
    assert (row["run"], row["state"], row["exit_code"]) == ("wait-0001", "RUNNING", None)
    listed = json.loads(toolkit("ps", "--all-directories", "--json", cwd=there).stdout)
    assert [row["run"] for row in listed if row["directory"].startswith(str(here))] == ["wait-0001"]
    refused = toolkit("rm", job, cwd=there)
    assert (refused.returncode, "has not ended" in refused.stderr) == (75, True)
    assert toolkit("cancel", "wait-0001", cwd=here).returncode == 0
    followed = toolkit("logs", "-f", "wait-0001", cwd=here)
    assert (followed.returncode, "0| here" in followed.stdout) == (130, True)
    (row,) = json.loads(toolkit("ps", "--json", cwd=here).stdout)
    assert (row["state"], row["exit_code"]) == ("CANCELLED", 130)
    assert "CANCELLED" in toolkit("ps", cwd=here).stdout
    assert "ended already" in toolkit("cancel", "wait-0001", cwd=here).stderr
    removed = toolkit("rm", "--cancel", job, cwd=there)
    assert removed.returncode == 0, removed.stderr
    assert list((here / "runs").iterdir()) == []


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_detaches_and_twice_cancels(times, toolkit, pytorch_image, shared_dir, started):
    (shared_dir / "wait.py").write_text("import time; print('here', flush=True); time.sleep(300)\n")
    words = f"run --image {pytorch_image} --launcher horovod wait.py".split()
    process = started(*words, cwd=shared_dir)
    assert process.stdout.readline() == "0| here\n"
    os.kill(process.pid, signal.SIGINT)
    told = next(line for line in process.stderr if "Ctrl-C again" in line)
    for _ in range(times - 1):
        os.kill(process.pid, signal.SIGINT)
    error = told + process.stderr.read()
    assert process.wait(120) == (99 if times == 1 else 130), error
    assert ("toolkit logs -f wait-0001" if times == 1 else "toolkit logs wait-0001") in error
    (row,) = json.loads(toolkit("ps", "--json", cwd=shared_dir).stdout)
    assert row["state"] in (("RUNNING",) if times == 1 else ("CANCELLED", "COMPLETING"))
    toolkit("cancel", "wait-0001", cwd=shared_dir)
