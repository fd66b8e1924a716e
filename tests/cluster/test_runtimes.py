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

from tests.cluster.contained import TELL, containers_end_with_their_job, hostile, options_of, told
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
    options = "run --runtime none --launcher none --nodes 2 --module demo/1.0".split()
    more = (*options_of(variables), "tell.py", *words)
    done = toolkit(*options, *more, cwd=directory, env=environment)
    assert done.returncode == 0, done.stderr
    assert "without a container, by the virtual environment venv one" in done.stderr
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
    prefix = f"{conda_root}/digits"

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return toolkit(*start, *words, cwd=shared_dir, env=environment)

    done = call("--env", "digits", "tell.py", *words)
    assert done.returncode == 0, done.stderr
    assert "the environment holds no torch), the conda environment digits" in done.stderr
    (rank, _) = told(shared_dir, "tell-0001")
    assert (rank["argv"], rank["python"]) == (words, f"{prefix}/bin/python3")
    wanted = {
        **variables,
        "CONDA_PREFIX": prefix,
        "CONDA_DEFAULT_ENV": "digits",
        "ACTIVATED": f"{prefix} ",
        "OF_THE_ENVIRONMENT": "it's $(touch pwned)",
    }
    assert {name: rank["environment"][name] for name in wanted} == wanted
    for options, code, message in (
        ("--env digit", 91, "close     digits"),
        ("--env digits --module no/such", 72, "the modules cannot be loaded here: no/such"),
    ):
        done = call(*options.split(), "tell.py")
        assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert len(list((shared_dir / "runs").iterdir())) == 1, "what is refused leaves nothing"


def test_ranks_of_the_hosts_own_mpi_meet(toolkit, shared_dir):
    compile_it = ("mpicc", "-o", str(shared_dir / "hello"), str(JOBS / "mpi-hello/hello.c"))
    subprocess.run(compile_it, check=True)
    options = "run --runtime none --launcher mpirun --nodes 2 --ntasks-per-node 2 hello"
    done = toolkit(*options.split(), cwd=shared_dir)
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
    places = (*shared_dir.parents, cluster, *cluster.parents)
    before = {path: path.stat() for path in places if path.stat().st_mode & 0o001 == 0}
    socket = Path(docker_engine.address.removeprefix("unix://"))
    try:
        # For the user's group: the fixtures of other workers look whether everybody may enter.
        for path in before:
            shutil.chown(path, group=user.name)
            path.chmod(0o710)
        socket.chmod(0o666)
        environment = {**engine_env, "HOME": str(user.home), "SCRATCH": str(user.home)}
        sbatch = f"cluster exec -- sbatch --parsable --uid={user.name} --gid={user.name}"
        done = toolkit(*sbatch.split(), str(script), cwd=shared_dir, env=environment)
        assert done.returncode == 0, done.stderr

        def said() -> str:
            return "".join(log.read_text() for log in logs.glob("*"))

        wait_for(lambda: told(shared_dir, "write-0001"), "the rank", says=said)
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
    start = "run --runtime pyxis --nodes 2 --launcher srun --bind".split()
    image = './a "b" $(c).sqsh'
    more = ("/usr/share:/in side;x:ro", *options_of(variables), "--image", image, "tell.py", *words)
    done = toolkit(*start, *more, cwd=directory)
    assert done.returncode == 0, done.stderr
    ranks = told(directory, "tell-0001")
    assert {rank["environment"]["RANK"] for rank in ranks} == {"0", "1"}
    mounts = f":/home/toolkit,{directory}:{directory},/usr/share:/in side;x:ro"
    for rank in ranks:
        inside = rank["environment"]
        assert rank["argv"] == words
        assert {name: inside[name] for name in variables} == variables
        assert inside["STANDIN_IMAGE"] == f"{directory}/{image[2:]}"
        assert inside["STANDIN_WORKDIR"] == str(directory)
        assert inside["STANDIN_MOUNTS"].endswith(mounts)
        assert "STANDIN_NO_HOME" in inside
