"""`toolkit run` on the real local cluster, in the real image: Slurm, Apptainer, torchrun and Horovod as they are."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.ranks import logs_of, none_left, outcome, wait_for
from tests.hostile import HOSTILE

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
sys.stdout.write(json.dumps({"argv": sys.argv[1:], "environment": dict(os.environ), "path": sys.path, "directory": os.getcwd()}) + "\\n")
"""


def test_a_script_runs_without_us(toolkit, pytorch_image, shared_dir):
    (shared_dir / "hello.py").write_text(
        "import os; print('rank', os.environ['SLURM_PROCID'], 'on', os.uname().nodename)\n"
    )
    arguments = ("--image", str(pytorch_image), "--nodes", "2", "--launcher", "horovod", "hello.py")
    dry = toolkit("run", "--dry-run", *arguments, cwd=shared_dir)
    assert not (shared_dir / "runs").exists()
    done = toolkit("run", *arguments, cwd=shared_dir, timeout=120)
    assert done.returncode == 0, done.stderr
    script = shared_dir / "runs/hello-0001/job.sbatch"
    assert dry.stdout == script.read_text(), "the dry run prints what is submitted"
    subprocess.run(["shellcheck", str(script)], check=True)
    for log in script.parent.glob("logs/*"):
        log.unlink()
    alone = toolkit(
        "cluster", "exec", "--", "sbatch", "--wait", "job.sbatch", cwd=script.parent, timeout=120
    )
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
    done = launch(
        pytorch_image,
        f"--launcher {launcher} --nodes 2 --ntasks-per-node 2 failing.py {how}",
        timeout=150,
    )
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
    leaks = {
        "PYTHONPATH": "/leak",
        "LD_LIBRARY_PATH": "/leak",
        "CONDA_PREFIX": "/leak",
        "APPTAINERENV_LEAK": "1",
        "SBATCH_PARTITION": "no",
    }
    done = launch(pytorch_image, "--launcher horovod tell.py", env={**toolkit_env, **leaks})
    assert done.returncode == 0, done.stderr
    told = outcome(shared_dir, "tell-0001")["results"]
    assert not {"CONDA_PREFIX", "LEAK"} & set(told["environment"])
    assert told["environment"]["PYTHONPATH"] == str(
        shared_dir / "runs/tell-0001/report"
    )  # records why a rank fails
    assert "/leak" not in told["environment"].get("LD_LIBRARY_PATH", "")
    assert told["environment"]["HOME"] == "/home/toolkit"
    assert told["environment"]["PYTHONNOUSERSITE"] == "1"
    assert not any(
        entry.startswith((str(Path.home()), "/leak"))
        for entry in told["path"]
        if entry != str(shared_dir)
    )


def test_sbatch_itself_reads_back_every_hostile_value(toolkit, shared_dir):
    from toolkit.quoting import sbatch

    for index, value in enumerate(HOSTILE):
        lines = (
            "#!/bin/bash",
            f"#SBATCH --comment={sbatch(value)}",
            f"#SBATCH --job-name=hostile{index}",
            "#SBATCH --hold",
            "true",
        )
        (shared_dir / f"{index}.sbatch").write_text("\n".join(lines) + "\n")
    loop = 'for file in *.sbatch; do sbatch --parsable "$file" || exit; done'
    submitted = toolkit("cluster", "exec", "--", "bash", "-c", loop, cwd=shared_dir)
    assert submitted.returncode == 0, submitted.stderr
    jobs = json.loads(toolkit("cluster", "exec", "--", "squeue", "--json", "--states=all").stdout)[
        "jobs"
    ]
    toolkit("cluster", "exec", "--", "scancel", *submitted.stdout.split())
    read = {job["name"]: job["comment"] for job in jobs if job["name"].startswith("hostile")}
    assert read == {f"hostile{index}": value for index, value in enumerate(HOSTILE)}


def test_detach_ps_logs_cancel(toolkit, pytorch_image, shared_dir):
    (shared_dir / "wait.py").write_text("import time; print('here', flush=True); time.sleep(300)\n")
    image = ("--image", str(pytorch_image), "--launcher", "horovod")
    submitted = toolkit("run", "--detach", "--json", *image, "wait.py", cwd=shared_dir)
    assert json.loads(submitted.stdout)["run"] == "wait-0001"
    wait_for(lambda: "here" in logs_of(shared_dir, "wait-0001"), "the rank to print")
    assert "here" in toolkit("logs", "wait-0001", cwd=shared_dir).stdout
    (row,) = json.loads(toolkit("ps", "--json", cwd=shared_dir).stdout)
    assert (row["run"], row["state"], row["exit_code"]) == ("wait-0001", "RUNNING", None)
    assert toolkit("cancel", "wait-0001", cwd=shared_dir).returncode == 0
    followed = toolkit("logs", "-f", "wait-0001", cwd=shared_dir)
    assert followed.returncode == 130
    assert "0| here" in followed.stdout
    (row,) = json.loads(toolkit("ps", "--json", cwd=shared_dir).stdout)
    assert (row["state"], row["exit_code"]) == ("CANCELLED", 130)
    assert "CANCELLED" in toolkit("ps", cwd=shared_dir).stdout
    assert "ended already" in toolkit("cancel", "wait-0001", cwd=shared_dir).stderr


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_detaches_and_twice_cancels(times, toolkit, pytorch_image, shared_dir, toolkit_env):
    (shared_dir / "wait.py").write_text("import time; print('here', flush=True); time.sleep(300)\n")
    process = subprocess.Popen(
        [
            sys.executable,
            *f"-m toolkit run --image {pytorch_image} --launcher horovod wait.py".split(),
        ],
        env=toolkit_env,
        cwd=shared_dir,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
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


# digits-ddp is what the demo trains, in test_wheel.py.
def test_an_ordinary_user_has_digits_learnt_on_two_nodes(user, pytorch_image):
    """All but the installation of packages: cluster, image and ranks, in a home that is nobody else's."""
    images = user.home / ".local/share/toolkit/images"
    user.run("mkdir", "-p", str(images), "work")
    shutil.copy(pytorch_image, images)
    shutil.chown(images / pytorch_image.name, user.name)
    up = user.toolkit("cluster", "up", "--nodes", "2", "--mem-per-node", "8G")
    assert up.returncode == 0, up.stderr
    try:
        done = user.toolkit(*"run --image pytorch_cpu jobs/digits-horovod".split(), timeout=300)
    finally:
        down = user.toolkit("cluster", "down")
    assert done.returncode == 0, done.stdout + done.stderr
    came_out = outcome(user.home, "digits-horovod-0001")
    assert came_out["results"]["accuracy"] >= 0.93
    assert came_out["results"]["world_size"] == 4
    assert came_out["results"]["parameters_equal"] is True
    assert sorted(rank for ranks in came_out["ranks"].values() for rank in ranks) == [0, 1, 2, 3]
    assert [len(ranks) for ranks in came_out["ranks"].values()] == [2, 2]
    for word in [*"plan queued running done".split(), "rank 0,1", "logs digits-horovod-0001"]:
        assert word in done.stderr
    assert "0| epoch 12" in done.stdout
    assert down.returncode == 0, down.stderr


def test_whatever_slurm_is_on_path(toolkit, pytorch_image, shared_dir):
    """The site `generic`, on the login side of the cluster, where Slurm's commands answer by themselves."""
    (shared_dir / "hello.py").write_text(
        "import os; print('rank', os.environ['SLURM_PROCID'], 'on', os.uname().nodename)\n"
    )
    words = (
        f"run --site generic --image {pytorch_image} --launcher horovod --nodes 2 hello.py".split()
    )
    done = toolkit("cluster", "exec", "--", sys.executable, "-m", "toolkit", *words, cwd=shared_dir)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0| rank 0 on nid001", "1| rank 1 on nid002"]
    assert "site generic" in done.stderr
