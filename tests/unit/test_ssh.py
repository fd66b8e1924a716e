"""The door into a running job: where it is, its files, whose servers are forwarded, and notebooks."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from msgspec.structs import replace

from tests.unit.run_fixtures import Slurm, new_run
from tests.unit.samples import FACTS, LOCAL, MANIFEST, PARTITIONS, make_case
from toolkit import scripts, sites
from toolkit.cli import connect
from toolkit.cli.connect import IDLE
from toolkit.cli.connect import notebook_stop as stop
from toolkit.cli.ssh import _BLOCK, host_block
from toolkit.config import package_directory
from toolkit.errors import BusyError, JobLostError, PlanError, UntrustedError, UsageError
from toolkit.model.image import Environment, Packages, Python
from toolkit.model.job import Job
from toolkit.model.run import JobState
from toolkit.planning.plan import decide
from toolkit.planning.settings import Layer
from toolkit.planning.target import understand
from toolkit.runs import ssh, status
from toolkit.runs.run import Run

_DOOR = package_directory("scripts") / "door.sh"


@pytest.fixture
def run(tmp_path: Path, slurm: Slurm) -> Run:
    """A run on two nodes with two ranks each, in a directory whose name ssh could misread."""
    directory = tmp_path / "it's 50%h" / "runs/Train@1+a=b-0001"
    slurm.add(job_id=7, nodes="nid[001-002]")
    return new_run(directory, 7, plan=decide(make_case({"nodes": 2})))


def test_a_node_by_its_name_or_by_a_rank(run):
    assert ssh.locate(run).node == "nid001"
    assert ssh.locate(run, node="nid002").node == "nid002"
    last = run.plan.nodes * run.plan.ranks_per_node - 1
    assert ssh.locate(run, rank=last).node == "nid002"
    with pytest.raises(UsageError, match="no rank"):
        ssh.locate(run, rank=last + 1)
    with pytest.raises(UsageError, match="does not run on nid003"):
        ssh.locate(run, node="nid003")
    run.__dict__["plan"] = replace(run.plan, gpus_by_node=(1, 3))
    assert [ssh.locate(run, rank=rank).node[-1] for rank in range(4)] == ["1", "2", "2", "2"]


def test_the_keys_are_the_runs_own_and_made_once(run):
    directory = ssh.prepare(run)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {(directory / key).stat().st_mode & 0o777 for key in ("host", "user")} == {0o600}
    before = (directory / "user").read_bytes()
    assert ssh.prepare(run) == directory
    assert (directory / "user").read_bytes() == before
    assert [path.name for path in run.directory.glob(".ssh-*")] == []


def test_a_host_is_called_as_its_run(run):
    """As a laptop reads it; what OpenSSH makes of the rest is seen in tests/cluster."""
    match = _BLOCK.match(host_block(run, ["--rank=1"], None))
    assert match
    assert match[1] == "Train-1+a=b-0001"
    away = host_block(run, [], "me@login")
    assert "\n    ProxyCommand ssh me@login '" in away
    assert "IdentityFile" not in away


def test_a_directory_that_ssh_cannot_name_is_refused(run):
    odd = run.directory.parent / 'a"b'
    run.directory.rename(odd)
    with pytest.raises(UsageError, match="such characters"):
        ssh.prepare(Run(odd))
    assert [path.name for path in odd.glob("*ssh*")] == []


def test_the_step_listens_on_no_port_and_hides_no_line(run):
    words = ssh.locate(run, node="nid002").proxy("image", "6006")
    assert {"--unbuffered", "--mpi=none", "--nodelist=nid002", "--jobid=7"} <= {*words}
    assert words[-4:] == ("bash", str(run.directory.absolute() / "ssh/door"), "image", "6006")


@pytest.mark.parametrize("runtime", ["apptainer", "pyxis"])
def test_a_session_enters_what_the_ranks_run_in(runtime):
    plan = decide(make_case({"nodes": 1}))
    text = scripts.session(replace(plan, container=replace(plan.container, runtime=runtime)))
    assert "#SBATCH" not in text
    assert ("srun " in text) == (runtime == "pyxis")
    assert subprocess.run(("bash", "-n"), input=text, text=True).returncode == 0


@pytest.mark.parametrize("text", ["0", "65536", "tcp:80", "run/s.sock", "", "٣", "/" + "x" * 107])
def test_a_target_that_is_none(text):
    with pytest.raises(UsageError):
        ssh.target(text)


def test_only_servers_of_this_user_are_forwarded(tmp_path):
    """By a stand-in for sshd, which the script starts or does not; of another user in tests/cluster."""
    (tmp_path / "sshd").write_text("#!/bin/sh\necho started >&2\nexit 255\n")
    (tmp_path / "sshd").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURMD_NODENAME": "nid001"}

    def said(*words: str, path: str = "") -> str:
        done = subprocess.run(
            ("bash", _DOOR, "image", *words),
            env=env | ({"PATH": path} if path else {}),
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout) == (0, "")
        return done.stderr

    with socket.socket() as port, socket.socket(socket.AF_INET6) as other:
        for server, host in ((port, "127.0.0.1"), (other, "::1")):
            server.bind((host, 0))
            number = str(server.getsockname()[1])
            assert f"nothing listens on port {number} of nid001" in said(number)
            server.listen()
            assert said(number) == "started\n"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        assert said(str(tmp_path / "s")) == "started\n"
    assert "there is no socket" in said(str(tmp_path / "sshd"))
    assert said() == "started\n"


def test_the_way_from_ones_own_machine(monkeypatch):
    monkeypatch.setenv("LOGNAME", "alice")
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.7 50022 198.51.100.1 22")
    line = ssh.ssh_command(6006, Path("/tmp/toolkit-1000/train-0007-6006"))
    assert line == "ssh -N -L 6006:/tmp/toolkit-1000/train-0007-6006 alice@198.51.100.1"
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.7 50022 198.51.100.1 2222")
    assert ssh.ssh_command(1, Path("/s")) == "ssh -N -p 2222 -L 1:/s alice@198.51.100.1"
    monkeypatch.delenv("SSH_CONNECTION")
    monkeypatch.setattr("socket.getfqdn", lambda: "login1.site")
    assert ssh.ssh_command(1, Path("/s")).endswith("@login1.site")


def test_the_directory_of_sockets_is_ones_own(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    directory = ssh.private_directory()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert ssh.private_directory() == directory
    directory.chmod(0o750)
    with pytest.raises(UntrustedError, match="only you"):
        ssh.private_directory()
    directory.rmdir()
    directory.symlink_to(tmp_path)
    with pytest.raises(UntrustedError):
        ssh.private_directory()
    (tmp_path / "run").mkdir(mode=0o700)  # another user who takes the name locks no one out
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    assert ssh.private_directory() == tmp_path / "run/toolkit"
    assert directory.is_symlink()


def test_servers_and_nodes_have_sockets_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    run = Run(tmp_path / "runs/train-0001")
    odd = "/tmp/of user:6006\n" + "x" * 20
    servers = [("6006", "nid001"), ("6006", "nid002"), ("/a/s.sock", ""), ("/b/s.sock", "")]
    doors = [ssh.Door(run, 7, node, server) for server, node in (*servers, (odd, ""))]
    names = [ssh.socket_path(door).name for door in doors]
    assert len(set(names)) == 5
    assert names[2].endswith("-s.sock")
    assert re.fullmatch(r"train-0001-[0-9a-f]{6}-[a-z0-9-]{24}", names[-1])


def test_a_place_that_cannot_be_had_is_refused_before_the_job_queues(tmp_path):
    tmp_path.chmod(0o755)
    with pytest.raises(UntrustedError):
        ssh.Entrance(tmp_path / "door").require_free()
    tmp_path.chmod(0o700)
    with pytest.raises(UsageError, match="at most 107 bytes"):
        ssh.Entrance(tmp_path / ("d" * 107)).require_free()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not a socket"):
        ssh.Entrance(tmp_path / "file").require_free()
    assert (tmp_path / "file").exists()
    with socket.socket() as port, socket.socket(socket.AF_UNIX) as dead:
        port.bind(("127.0.0.1", 0))
        port.listen()
        with pytest.raises(BusyError, match="listens on port"):
            ssh.Entrance(Path(), port.getsockname()[1]).require_free()
        dead.bind(str(tmp_path / "door"))
        dead.listen()
        with pytest.raises(BusyError, match="listens on /"):
            ssh.Entrance(tmp_path / "door").require_free()
    ssh.Entrance(tmp_path / "door").require_free()
    assert not (tmp_path / "door").exists()


# Notebooks.

_JUPYTER = replace(MANIFEST, packages=Packages(pip={"jupyterlab": "4.6.6", "torch": "2.13.0"}))


def notebook(job: dict[str, Any] | None = None, **changes: Any) -> Any:
    given = {"launcher": "notebook", "arguments": ("0", "."), "ntasks_per_node": None, "nodes": 1}
    given |= job or {}
    settings = {"script": "jupyter", "is_program": True, "manifest": _JUPYTER, **changes}
    return make_case(given, **settings)


def refusal(given: Any) -> str:
    with pytest.raises(PlanError) as caught:
        decide(given)
    return " ".join(f"{each.place} {each.cause} {each.next_step}" for each in caught.value.findings)


def test_times_without_use():
    times = {"30m": 1800, "2h": 7200, "90s": 90, "30": 1800}
    assert {text: IDLE(text) for text in times} == times


@pytest.mark.parametrize("text", ["", "0m", "1.5h", "-1m", "30 m", "1d", "٣m", "9999999m"])
def test_other_times_are_refused(text):
    with pytest.raises(click.BadParameter):
        IDLE(text)


CONDA = Environment(name="digits", kind="conda", prefix="/e/it s", python="/e/it s/bin/python3")
PYTHON = Python(path=CONDA.python, version="3.11", modules=("json", "torch"))
BARE = replace(MANIFEST, packages=Packages(pip={"torch": "2.13.0"}))
IN_CONDA = replace(MANIFEST, packages=Packages(), pythons=(PYTHON,))
ABLE = replace(IN_CONDA, pythons=(replace(PYTHON, modules=("jupyterlab",)),))
ENTERED = {"runtime": "conda", "conda_env": "digits"}
NO_GPUS = replace(FACTS, partitions=[replace(each, gpus=0, gpu_type="") for each in PARTITIONS])
DAYS = {"partition": "cas_v100_4", "gpus": "1", "time": "2-0:00:00"}
SHORT = replace(LOCAL, notebook_minutes=600)
ONE_DAY = "site neuron gives notebooks 1440 minutes at most"


@pytest.mark.parametrize(
    ("job", "changes", "words"),
    [
        ({}, {"manifest": BARE}, "--with jupyter"),
        ({}, {"manifest": None}, ""),  # what is not known is not refused
        (ENTERED, {"manifest": IN_CONDA}, "'/e/it s/bin/python3' -m pip install jupyterlab"),
        (ENTERED, {"manifest": ABLE}, ""),
        ({"runtime": "docker"}, {"image": "mine:latest"}, "build --engine docker gives a SIF"),
        ({"time": "12:00:00"}, {"site": SHORT}, "site local gives notebooks 600 minutes at most"),
        ({"time": "10:00:00"}, {"site": SHORT}, ""),
        ({"gpus": "1"}, {"facts": NO_GPUS}, "main has 0 GPUs, 1 was asked for leave --gpus out"),
        ({"partition": "jupyter"}, {"site": "neuron"}, "partition jupyter takes no batch jobs"),
        (DAYS, {"site": "neuron"}, ONE_DAY),
        ({"array": "0-3"}, {}, "--array"),
    ],
)
def test_what_cannot_be_a_notebook_is_refused(job, changes, words):
    if job is ENTERED:
        changes = {"environment": CONDA, "image": "", **changes}
    if "site" in changes and isinstance(changes["site"], str):
        changes = {"site": sites.load(changes["site"])}
    given = notebook(job, **changes)
    if words:
        assert words in refusal(given)
    else:
        decide(given)


def test_pyxis_shows_the_sockets_in_its_one_option_of_mounts():
    text = scripts.script(
        decide(notebook({"runtime": "pyxis"}, image="/images/mine.sqsh", manifest=None))
    )
    mounts = "--container-mounts=$TOOLKIT_NOTEBOOK:$TOOLKIT_NOTEBOOK,"
    assert f'pyxis=("${{pyxis[@]/#--container-mounts=/{mounts}}}")' in text


def test_a_directory_that_is_called_as_the_server_is_no_job(tmp_path):
    (tmp_path / "jupyter").mkdir()
    known, flags = Job(launcher="notebook"), Layer("flag", {})
    target, *_ = understand("jupyter", flags, tmp_path, known, is_command=False)
    assert (target.script, target.is_program) == ("jupyter", True)


def test_the_script_holds_no_token_and_no_port():
    text = scripts.script(decide(notebook()))
    assert "umask 077" in text
    assert "--port" not in text
    assert '"KernelManager.transport": "ipc"' in text


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssh.Door:
    """The way to a server of an array of two elements on one node."""
    states = [JobState(job_id=number, state="RUNNING", nodes="nid001") for number in (71, 72)]
    monkeypatch.setattr(status, "running", lambda _: states)
    run = tmp_path / "runs/notebook-0001"
    run.mkdir(parents=True)
    return ssh.locate(Run(run), "8888")


def test_the_first_element_of_an_array_is_reached_while_it_is_on_its_node(server):
    assert (server.node, server.job_id, server.target) == ("nid001", 71, "8888")
    assert server.is_running()
    assert not server._replace(node="nid002").is_running()
    assert not server._replace(job_id=70).is_running()  # another element, which has ended


def a_notebook(directory: Path, job_id: int) -> Run:
    return new_run(directory, job_id, plan=decide(notebook()))


def test_the_newest_notebook_that_has_not_ended_is_meant(tmp_path):
    plans = [decide(notebook()), decide(notebook()), decide(make_case())]
    runs = [new_run(tmp_path / f"x-{number}", plan=plan) for number, plan in enumerate(plans)]
    for number, run in enumerate(runs):
        os.utime(run.directory / "plan.json", (number, number))
    for name in ("x-1", "x-0", "x-1"):
        newest = ssh.newest(tmp_path)
        assert newest is not None
        assert newest.name == name
        (tmp_path / name / "outcome.json").touch()


def test_ctrl_c_says_what_slurm_may_have(tmp_path, slurm, monkeypatch, capsys):
    run = a_notebook(tmp_path / "notebook-0001", 7)
    (run.directory / "allocation").touch()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    changed = {"patiently": lambda *_: make_case(), "with_image": lambda case, _: case}
    for name, value in {**changed, "write": lambda _: run, "submit": interrupt}.items():
        monkeypatch.setattr(connect, name, value)
    with pytest.raises(click.Abort):
        connect.notebook_start.main([str(tmp_path)], standalone_mode=False)
    assert "Slurm may have the job of notebook-0001" in capsys.readouterr().err
    slurm.silent = 99
    assert "no Slurm controller answers: its nodes are free as soon as" in connect._cancelled(run)


def test_no_job_is_cancelled_that_has_the_number_of_one_that_ended(tmp_path, slurm, capsys):
    run = a_notebook(tmp_path / "notebook-0001", 7)
    slurm.add(run.script.parent / "other", 7)
    stop.main(["--runs", str(tmp_path)], standalone_mode=False)
    assert "notebook-0001 has ended already" in capsys.readouterr().out
    assert slurm.cancelled == []


def test_a_token_goes_to_no_server_that_others_could_have_named(tmp_path, slurm):
    run = a_notebook(tmp_path / "notebook-0001", 7)
    slurm.add(job_id=7, nodes="nid001")
    with pytest.raises(JobLostError, match="not listen yet"):
        ssh.server(run)
    (run.directory / "place.json").write_text('{"node": "nid001", "socket": "/tmp/a.sock"}')
    (run.directory / "token").write_text("secret")
    assert ssh.server(run).token == "secret"
    run.directory.chmod(0o1777)
    with pytest.raises(UntrustedError, match="every user"):
        ssh.server(run)
