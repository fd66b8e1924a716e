"""What ranks run inside where it is no SIF, on the real cluster: Docker's real engine, this machine's Pythons and modules, Open MPI.

Two things are stand-ins, and are named so: Slurm has no plugin Pyxis here (one of ours takes its
options), and there is no conda.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster.contained import (
    TELL,
    containers_end_with_their_job,
    hostile,
    options_of,
    told,
)
from tests.cluster.engine_fixtures import TestEngine
from tests.cluster.ranks import wait_for

pytestmark = pytest.mark.usefixtures("cluster")
JOBS = Path(__file__).parents[2] / "jobs"


def test_hostile_strings_reach_ranks_without_a_container(
    toolkit, toolkit_env, venv, modules, shared_dir
):
    directory = shared_dir / "it's $(touch pwned) 한글"
    directory.mkdir()
    (directory / "tell.py").write_text(TELL + "import only_there\n")
    words, variables = hostile()
    environment = {
        **toolkit_env,
        **modules,
        "PATH": f"{venv}/bin:{os.environ['PATH']}",
        "PYTHONPATH": "/of/the/shell",
    }
    options = ("--nodes", "2", "--launcher", "none", "--module", "demo/1.0", *options_of(variables))
    done = toolkit(
        "run", "--runtime", "none", *options, "tell.py", *words, cwd=directory, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert (
        "none (--launcher), without a container, by the virtual environment venv one" in done.stderr
    )
    ranks = told(directory, "tell-0001")
    assert sorted(rank["host"] for rank in ranks) == ["nid001", "nid002"]
    for rank in ranks:
        assert rank["argv"] == words
        assert {name: rank["environment"][name] for name in variables} == variables
        assert rank["python"] == f"{venv}/bin/python3"
        assert (rank["directory"], rank["environment"]["DEMO"]) == (str(directory), "loaded")
        assert "/of/the/module" in rank["path"], "what a module sets counts"
        assert "/of/the/shell" not in rank["path"], "what the shell had does not"
    assert not list(directory.rglob("pwned"))


def test_an_environment_of_conda_is_found_entered_and_asked_what_it_holds(
    toolkit, toolkit_env, conda_root, shared_dir
):
    (shared_dir / "tell.py").write_text(TELL)
    environment = {**toolkit_env, "CONDA_ENVS_PATH": str(conda_root), "HOME": str(shared_dir)}
    words, variables = hostile()
    start = ("run", "--runtime", "conda", "--nodes", "2", *options_of(variables))
    done = toolkit(*start, "--env", "digits", "tell.py", *words, cwd=shared_dir, env=environment)
    assert done.returncode == 0, done.stderr
    assert (
        "none (tell.py imports nothing that spreads it, and the environment holds no torch), the conda environment digits"
        in done.stderr
    )
    (rank, _) = told(shared_dir, "tell-0001")
    assert (rank["argv"], rank["python"]) == (words, f"{conda_root}/digits/bin/python3")
    inside = rank["environment"]
    assert {name: inside[name] for name in variables} == variables
    assert (inside["CONDA_PREFIX"], inside["CONDA_DEFAULT_ENV"]) == (
        f"{conda_root}/digits",
        "digits",
    )
    assert (inside["ACTIVATED"], inside["OF_THE_ENVIRONMENT"]) == (
        f"{conda_root}/digits ",
        "it's $(touch pwned)",
    )

    done = toolkit(
        "run", "--runtime", "conda", "--env", "digit", "tell.py", cwd=shared_dir, env=environment
    )
    assert done.returncode == 91
    assert "close: digits" in done.stderr
    done = toolkit(
        *start, *"--env digits --launcher torchrun tell.py".split(), cwd=shared_dir, env=environment
    )
    assert done.returncode == 86
    assert "torch, which this environment does not hold" in done.stderr
    done = toolkit(
        *start, "--env", "digits", "--module", "no/such", "tell.py", cwd=shared_dir, env=environment
    )
    assert done.returncode == 72
    assert "the modules cannot be loaded here: no/such" in done.stderr
    assert len(list((shared_dir / "runs").iterdir())) == 1, "what is refused leaves nothing"


@pytest.mark.parametrize("launcher", ["mpi", "mpirun"])
def test_ranks_of_the_hosts_own_mpi_meet(launcher, toolkit, shared_dir):
    subprocess.run(
        ["mpicc", "-o", str(shared_dir / "hello"), str(JOBS / "mpi-hello/hello.c")], check=True
    )
    options = ("--launcher", launcher, "--nodes", "2", "--ntasks-per-node", "2")
    done = toolkit("run", "--runtime", "none", *options, "hello", cwd=shared_dir)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(4):
        assert f"rank {rank} of 4  host nid00{rank // 2 + 1}" in done.stdout
    assert '"sum": 6' in done.stdout


@pytest.fixture
def engine_env(toolkit_env: dict[str, str], docker_engine: TestEngine) -> dict[str, str]:
    """For a user whose Docker is set to the tests' engine."""
    return {**toolkit_env, **docker_engine.environment}


def test_files_of_ranks_in_docker_are_the_users(
    toolkit, engine_env, docker_engine, python_tag, user, shared_dir
):
    """The script, planned by root and submitted for somebody else, as it stands for itself."""
    (shared_dir / "write.py").write_text(
        'open("made", "w").write("x")\nopen("/home/toolkit/at-home", "w")\n' + TELL
    )
    options = ("--runtime", "docker", "--image", python_tag, "--launcher", "none")
    dry = toolkit("run", "--dry-run", *options, "write.py", cwd=shared_dir, env=engine_env)
    assert dry.returncode == 0, dry.stderr
    logs = shared_dir / "runs/write-0001/logs"
    logs.mkdir(parents=True)
    script = logs.parent / "job.sbatch"
    script.write_text(dry.stdout)
    for path in (shared_dir, *shared_dir.rglob("*")):
        shutil.chown(path, user.name)
    # A cluster is for its own user; slurmd runs the script from its directory as the other one.
    cluster = Path(engine_env["TOOLKIT_CLUSTER_DIR"], engine_env["TOOLKIT_CLUSTER"])
    opened = [
        path
        for path in (*shared_dir.parents, cluster, *cluster.parents)
        if path.stat().st_mode & 0o001 == 0
    ]
    before = {path: path.stat() for path in opened}
    socket = Path(docker_engine.address.removeprefix("unix://"))
    try:
        # For the user's group: the fixtures of other workers look whether everybody may enter.
        for path in opened:
            shutil.chown(path, group=user.name)
            path.chmod(0o710)
        socket.chmod(0o666)
        environment = {**engine_env, "HOME": str(user.home), "SCRATCH": str(user.home)}
        words = (
            *"cluster exec -- sbatch --parsable".split(),
            f"--uid={user.name}",
            f"--gid={user.name}",
            str(script),
        )
        done = toolkit(*words, cwd=shared_dir, env=environment)
        assert done.returncode == 0, done.stderr
        wait_for(
            lambda: told(shared_dir, "write-0001"),
            "the rank",
            says=lambda: "".join(log.read_text() for log in logs.glob("*")),
        )
        wait_for(lambda: docker_engine.containers() == [], "no container")
    finally:
        socket.chmod(0o660)
        for path, was in before.items():
            shutil.chown(path, group=was.st_gid)
            path.chmod(was.st_mode)
    (rank,) = told(shared_dir, "write-0001")
    assert rank["user"] == (shared_dir / "made").stat().st_uid == shared_dir.stat().st_uid != 0
    home = user.home / "toolkit/home/stand-in-python-here/at-home"
    assert home.stat().st_uid == rank["user"]


def test_containers_of_docker_end_with_their_job_however_it_ends(
    toolkit, engine_env, docker_engine, python_tag, shared_dir
):
    containers_end_with_their_job(toolkit, engine_env, docker_engine, python_tag, shared_dir)


def test_slurms_own_parser_takes_the_options_of_pyxis(toolkit, pyxis, shared_dir):
    del pyxis
    directory = shared_dir / "it's $(touch pwned) 한글"
    directory.mkdir()
    (directory / "tell.py").write_text(TELL)
    (directory / 'a "b" $(c).sqsh').touch()
    words, variables = hostile()
    options = (
        *"--nodes 2 --launcher srun --bind".split(),
        "/usr/share:/in side;x:ro",
        *options_of(variables),
    )
    image = './a "b" $(c).sqsh'
    done = toolkit(
        "run", "--runtime", "pyxis", "--image", image, *options, "tell.py", *words, cwd=directory
    )
    assert done.returncode == 0, done.stderr
    ranks = told(directory, "tell-0001")
    assert len(ranks) == 2
    for rank in ranks:
        inside = rank["environment"]
        assert rank["argv"] == words
        assert {name: inside[name] for name in variables} == variables
        assert inside["STANDIN_IMAGE"] == f"{directory}/{image[2:]}"
        assert inside["STANDIN_WORKDIR"] == str(directory)
        assert inside["STANDIN_MOUNTS"].endswith(
            f":/home/toolkit,{directory}:{directory},/usr/share:/in side;x:ro"
        )
        assert "STANDIN_NO_HOME" in inside
    assert {rank["environment"]["RANK"] for rank in ranks} == {"0", "1"}
    done = toolkit(
        "run", "--dry-run", "--runtime", "pyxis", "--image", "pytorch_cpu", "tell.py", cwd=directory
    )
    assert done.returncode == 68
    assert "is a SIF" in done.stderr
