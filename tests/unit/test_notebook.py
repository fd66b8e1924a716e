"""Notebooks before they are submitted: what is refused, and what the script holds."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import click
import pytest
from msgspec.structs import replace

from tests.unit.run_fixtures import new_run
from tests.unit.samples import FACTS, LOCAL, MANIFEST, PARTITIONS, make_case
from toolkit import sites
from toolkit.cli import connect
from toolkit.cli.connect import idle_seconds
from toolkit.cli.connect import notebook_stop as stop
from toolkit.errors import (
    BusyError,
    JobLostError,
    PlanError,
    SlurmUnreachableError,
    UntrustedError,
    UsageError,
)
from toolkit.model.image import Environment, Packages, Python
from toolkit.model.job import Job
from toolkit.model.run import JobState
from toolkit.planning.plan import decide
from toolkit.planning.settings import Layer
from toolkit.planning.target import understand
from toolkit.runs import ssh, status
from toolkit.runs.run import Run
from toolkit.scripts import script

_JUPYTER = replace(MANIFEST, packages=Packages(pip={"jupyterlab": "4.6.6", "torch": "2.13.0"}))


def notebook(job: dict[str, Any] | None = None, **changes: Any) -> Any:
    given = {
        "launcher": "notebook",
        "arguments": ("0", "."),
        "ntasks_per_node": None,
        "nodes": 1,
        **(job or {}),
    }
    settings = {"script": "jupyter", "is_program": True, "manifest": _JUPYTER, **changes}
    return make_case(given, **settings)


def refusal(given: Any) -> str:
    with pytest.raises(PlanError) as caught:
        decide(given)
    return " ".join(f"{each.place} {each.cause} {each.next_step}" for each in caught.value.findings)


@pytest.mark.parametrize(
    ("text", "seconds"), [(None, 0), ("30m", 1800), ("2h", 7200), ("90s", 90), ("30", 1800)]
)
def test_times_without_use(text, seconds):
    assert idle_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0m", "1.5h", "-1m", "30 m", "1d", "٣m", "9999999m"])
def test_other_times_are_refused(text):
    with pytest.raises(UsageError):
        idle_seconds(text)


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
        ({"runtime": "docker"}, {"image": "mine:latest"}, "the job's own /tmp"),
        ({"runtime": "docker"}, {"image": "mine:latest"}, "build --engine docker gives a SIF"),
        ({"time": "12:00:00"}, {"site": SHORT}, "site local gives notebooks 600 minutes at most"),
        ({"time": "10:00:00"}, {"site": SHORT}, ""),
        ({"gpus": "1"}, {"facts": NO_GPUS}, "main has 0 GPUs, 1 was asked for leave --gpus out"),
        (
            {"partition": "jupyter"},
            {"site": "neuron"},
            "partition jupyter takes no batch jobs one of",
        ),
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
    text = script(decide(notebook({"runtime": "pyxis"}, image="/images/mine.sqsh", manifest=None)))
    mounts = "--container-mounts=$TOOLKIT_NOTEBOOK:$TOOLKIT_NOTEBOOK,"
    assert f'pyxis=("${{pyxis[@]/#--container-mounts=/{mounts}}}")' in text


def test_a_directory_that_is_called_as_the_server_is_no_job(tmp_path):
    (tmp_path / "jupyter").mkdir()
    known, flags = Job(launcher="notebook"), Layer("flag", {})
    target, *_ = understand("jupyter", flags, tmp_path, known, is_command=False)
    assert (target.script, target.is_program) == ("jupyter", True)


def test_the_script_holds_no_token_and_no_port():
    text = script(decide(notebook()))
    assert "umask 077" in text
    assert "--port" not in text
    assert '"KernelManager.transport": "ipc"' in text


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


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssh.Door:
    """The way to a server of an array of two elements on one node."""
    states = [JobState(job_id=number, state="RUNNING", nodes="nid001") for number in (71, 72)]
    monkeypatch.setattr(status, "running", lambda _: states)
    run = tmp_path / "runs/notebook-0001"
    run.mkdir(parents=True)
    return ssh.locate(Run(run), "8888")


def test_the_first_element_of_an_array_is_reached(server):
    assert (server.node, server.job_id, server.target) == ("nid001", 71, "8888")


def test_a_job_that_was_requeued_to_another_node_has_ended(server):
    assert server.is_running()
    assert not server._replace(node="nid002").is_running()
    assert not server._replace(job_id=70).is_running()  # another element, which has ended


def newest(runs: Path) -> str:
    run = ssh.newest(runs)
    return run.name if run else ""


def test_the_newest_notebook_that_has_not_ended_is_meant(tmp_path, monkeypatch):
    monkeypatch.setattr(ssh, "is_notebook", lambda paths: "notebook" in paths.name)
    for number, name in enumerate(("notebook-0001", "notebook-0002", "train-0001")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.json").touch()
        os.utime(tmp_path / name / "plan.json", (number, number))
    assert newest(tmp_path) == "notebook-0002"
    (tmp_path / "notebook-0002/outcome.json").touch()
    assert newest(tmp_path) == "notebook-0001"
    (tmp_path / "notebook-0001/outcome.json").touch()
    assert newest(tmp_path) == "notebook-0002"


def test_ctrl_c_says_what_slurm_may_have(tmp_path, monkeypatch, capsys):
    run = new_run(tmp_path / "notebook-0001", 7)
    (run.directory / "allocation").touch()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def lose(*_: object) -> None:
        raise SlurmUnreachableError("Slurm does not answer")

    changed = {"patiently": lambda *_: make_case(), "with_image": lambda case, _: case}
    for name, value in {**changed, "write": lambda _: run, "submit": interrupt}.items():
        monkeypatch.setattr(connect, name, value)
    with pytest.raises(click.Abort):
        connect.notebook_start.main([str(tmp_path)], standalone_mode=False)
    assert "Slurm may have the job of notebook-0001" in capsys.readouterr().err
    monkeypatch.setattr(connect, "finish_salloc", lose)
    assert "Slurm does not answer: its nodes are free as soon as" in connect._cancelled(run)


def test_no_job_is_cancelled_that_has_the_number_of_one_that_ended(tmp_path, monkeypatch, capsys):
    (tmp_path / "notebook-0001").mkdir()
    (tmp_path / "notebook-0001/plan.json").touch()
    monkeypatch.setattr(ssh, "is_notebook", lambda _: True)
    monkeypatch.setattr(status, "query", lambda _: None)
    stop.main(["--runs", str(tmp_path)], standalone_mode=False)
    assert "notebook-0001 has ended already" in capsys.readouterr().out


def test_a_server_that_does_not_listen_yet(server, monkeypatch):
    monkeypatch.setattr(ssh, "is_notebook", lambda _: True)
    with pytest.raises(JobLostError, match="not listen yet"):
        ssh.server(server.run)


def test_no_token_goes_to_a_server_that_others_could_have_named(server, monkeypatch):
    run = server.run.directory
    (run / "place.json").write_text('{"node": "nid001", "socket": "/tmp/a.sock"}')
    (run / "token").write_text("secret")
    monkeypatch.setattr(ssh, "is_notebook", lambda _: True)
    assert ssh.server(server.run).token == "secret"
    run.chmod(0o1777)
    with pytest.raises(UntrustedError, match="every user"):
        ssh.server(server.run)
