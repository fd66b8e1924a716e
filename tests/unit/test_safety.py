"""Secrets that are in no file but their own, and directories of runs that other users cannot touch."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.samples import make_case
from toolkit import shell
from toolkit.api.run import write
from toolkit.cli import console
from toolkit.errors import CommandFailedError, ConfigError, UntrustedError
from toolkit.model.base import to_json
from toolkit.model.case import Case
from toolkit.model.run import Submission
from toolkit.planning.target import resolve
from toolkit.runs.logs import Tail
from toolkit.runs.run import Run
from toolkit.runs.submit import reserve, write_secrets

TOKEN = "hf_abcdefghijklmnopqrstuvwx"


def secret_inputs(directory: Path, **env: str) -> Case:
    (directory / "train.py").touch()
    return make_case(
        {"env": {"HF_TOKEN": TOKEN, "PLAIN": "seen", **env}, "secret": tuple(env)},
        cwd=str(directory),
        folder=str(directory),
        run=str(directory / "runs/train-0001"),
    )


def test_no_file_of_a_run_has_a_secret_but_one_that_nobody_else_can_read(tmp_path):
    run = write(secret_inputs(tmp_path, OTHER="it's\n$(me)\r 'here'"))
    assert run.plan.secrets == ("HF_TOKEN", "OTHER")
    holding = [
        path.name
        for path in run.directory.rglob("*")
        if path.is_file() and TOKEN in path.read_text()
    ]
    assert holding == ["secrets"]
    assert stat.S_IMODE((run.directory / "secrets").stat().st_mode) == 0o600
    assert stat.S_IMODE(run.directory.stat().st_mode) == 0o700
    assert TOKEN not in to_json(run.plan)
    _, again = resolve("runs/train-0001", tmp_path)
    env = {"HF_TOKEN": TOKEN, "OTHER": "it's\n$(me)\r 'here'", "PLAIN": "seen"}
    assert again.values["env"] == env


def test_a_rank_that_prints_a_secret_shows_stars(tmp_path):
    run = write(secret_inputs(tmp_path, OTHER="open sesame"))
    run.job = Submission(job_id=7, site="local", submitted="")
    (run.logs / "7-0-nid001.log").write_text(f"logged in with {TOKEN}: open sesame!\n")
    assert [line.text for line in Tail(run).read()] == ["logged in with ****: ****!"]


def test_a_secret_among_the_arguments_is_warned_of_and_the_run_is_closed_to_others(tmp_path):
    given = secret_inputs(tmp_path)
    given = given._replace(job=replace(given.job, env={}, arguments=("--api-key", TOKEN)))
    run = write(given)
    assert any("looks like a secret" in text for text in run.plan.warnings)
    assert stat.S_IMODE(run.directory.stat().st_mode) == 0o700


def test_commands_that_are_shown_have_stars_for_secrets(capsys, monkeypatch):
    monkeypatch.setattr(shell, "_ECHO", True)
    fails = (sys.executable, "-c", "import sys; sys.exit('wrong password=open-sesame')")
    with pytest.raises(CommandFailedError) as caught:
        shell.run((*fails, f"--token={TOKEN}", "https://me:word@host/x"))
    console.show_error(caught.value)
    said = capsys.readouterr().err
    assert "****" in said
    for secret in (TOKEN, "me:word", "open-sesame"):
        assert secret not in said


def test_a_directory_of_runs_in_which_everybody_may_write_is_refused(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs").chmod(0o777)
    with pytest.raises(UntrustedError, match="every user of this machine can write"):
        reserve(tmp_path / "runs/a-0001")
    (tmp_path / "runs").chmod(0o1777)
    assert reserve(tmp_path / "runs/a-0001")


@pytest.mark.parametrize("is_link", [False, True])
def test_runs_that_are_no_directory_are_refused(is_link, tmp_path):
    runs = tmp_path / "runs"
    runs.symlink_to("nothing") if is_link else runs.touch()
    with pytest.raises(ConfigError, match="not a directory"):
        reserve(runs / "a-0001")


def test_nobody_else_may_write_to_what_we_make_whatever_the_umask_is(tmp_path):
    before = os.umask(0)
    try:
        assert reserve(tmp_path / "runs/a-0001")
    finally:
        os.umask(before)
    assert not (tmp_path / "runs").stat().st_mode & stat.S_IWOTH, "a group may share it"
    for path in (tmp_path / "runs/a-0001", tmp_path / "runs/a-0001/logs"):
        assert not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def test_a_file_of_secrets_follows_no_link(tmp_path):
    (tmp_path / "secrets").symlink_to(tmp_path / "elsewhere")
    write_secrets(Run(tmp_path), "X_", {"A": "b"})
    assert not (tmp_path / "elsewhere").exists()
    assert (tmp_path / "secrets").lstat().st_mode & 0o777 == 0o600
