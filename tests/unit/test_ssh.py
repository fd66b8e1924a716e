"""The door into a running job: where it is, what its files are, and whose servers are forwarded."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.run_fixtures import new_run
from tests.unit.samples import make_case
from toolkit import scripts
from toolkit.cli.connect import _BLOCK, host_block
from toolkit.config import package_directory
from toolkit.errors import UntrustedError, UsageError
from toolkit.model.run import JobState
from toolkit.planning.plan import decide
from toolkit.runs import ssh, status
from toolkit.runs.run import Run

_DOOR = package_directory("scripts") / "door.sh"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run on two nodes with two ranks each, in a directory whose name ssh could misread."""
    directory = tmp_path / "it's 50%h"
    directory.mkdir()
    running = new_run(directory / "runs/Train@1+a=b-0001", 7, plan=decide(make_case({"nodes": 2})))
    states = [JobState(job_id=7, state="RUNNING", nodes="nid[001-002]")]
    monkeypatch.setattr(status, "running", lambda _: states)
    return running


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


def test_what_ssh_reads_in_its_settings_is_what_was_meant(run, tmp_path):
    """By ssh itself, which prints what it has read of them."""
    block = host_block(run, ["--rank=1"], None)
    match = _BLOCK.match(block)  # as a laptop reads it
    assert match
    assert match[1] == "Train-1+a=b-0001"
    (tmp_path / "config").write_text(block)
    shown = subprocess.run(
        ("ssh", "-F", tmp_path / "config", "-G", "Train-1+a=b-0001"), capture_output=True, text=True
    ).stdout
    own = str(run.directory.absolute())
    assert f"identityfile {own.replace('%', '%%')}/ssh/user\n" in shown
    assert f"userknownhostsfile {own}/ssh/known_hosts\n" in shown  # with %% read already
    assert "toolkit --on= ssh --stdio --rank=1 " in shown
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


@pytest.mark.parametrize("runtime", ["apptainer", "conda", "none", "pyxis"])
def test_a_session_enters_what_the_ranks_run_in(runtime):
    plan = decide(make_case({"nodes": 1}))
    text = scripts.session(replace(plan, container=replace(plan.container, runtime=runtime)))
    assert "#SBATCH" not in text
    assert ("srun " in text) == (runtime == "pyxis")
    assert subprocess.run(("bash", "-n"), input=text, text=True).returncode == 0


@pytest.mark.parametrize(
    "text", ["0", "65536", "-1", "tcp:80", "run/server.sock", "", "٣", "/" + "x" * 107]
)
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
    run = Run(tmp_path / "runs/train-0001")

    def name(where: str, node: str = "") -> str:
        return ssh.socket_path(ssh.Door(run, 7, node, where)).name

    places = [
        ("6006", "nid001"),
        ("6006", "nid002"),
        ("/a/s.sock", "nid001"),
        ("/b/s.sock", "nid001"),
    ]
    names = [name(*place) for place in places]
    assert len(set(names)) == 4
    assert names[2].endswith("-s.sock")
    odd = name("/tmp/of user:6006\n" + "x" * 20)
    assert re.fullmatch(r"train-0001-[0-9a-f]{6}-[a-z0-9-]{24}", odd)
