"""Hostile words through every launcher's script and a real bash; secrets that are in no file but their own."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.golden_scripts import assert_golden
from tests.hostile import HOSTILE, MULTILINE
from tests.unit.samples import FACTS, make_case
from tests.unit.test_scripts import HOLDS_ALL, captured, script_of
from toolkit import scripts, shell
from toolkit.api.run import write
from toolkit.cli import console
from toolkit.errors import CommandFailedError, ConfigError, PlanError, UntrustedError, UsageError
from toolkit.launchers import LAUNCHERS
from toolkit.model.base import to_json
from toolkit.model.case import Case
from toolkit.model.run import Submission
from toolkit.planning.plan import decide
from toolkit.planning.target import resolve
from toolkit.quoting import sbatch
from toolkit.quoting import shell as quoted
from toolkit.runs.logs import Tail
from toolkit.runs.run import Run
from toolkit.runs.submit import reserve, write_secrets

TOKEN = "hf_abcdefghijklmnopqrstuvwx"
# Everything that a word of a command line can hold: all but NUL; lone surrogates are bytes that are
# no UTF-8, and are refused.
WORDS = st.lists(
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12), max_size=6
)
EVERY_WORD = [*HOSTILE, *MULTILINE, "", "--help", "--", "-N"]
# What a directory can be called that Apptainer can bind.
NAMES = st.text(
    st.characters(exclude_characters="\0/,:\\\n\r", codec="utf-8"), min_size=1, max_size=12
).filter(lambda name: name not in (".", "..") and len(name.encode()) < 200)


@pytest.mark.parametrize(
    "launcher", [name for name in LAUNCHERS if name not in ("submitit", "notebook")]
)  # one is given a function, and no words; the other has a program of its own
@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@example(EVERY_WORD, EVERY_WORD, 'it\'s $(touch pwned) `x` "q"; 한글', "a $(touch pwned) 'b' # d")
@given(words=WORDS, values=WORDS, name=NAMES, title=NAMES)
def test_any_word_reaches_the_rank_byte_for_byte(launcher, words, values, name, title):
    variables = {f"V{index}": value for index, value in enumerate(values)}
    terminal = {"interactive": True, "pty": True} if launcher == "shell" else {}
    with tempfile.TemporaryDirectory() as place:
        work = Path(place) / name
        work.mkdir()
        given = make_case(
            {
                "launcher": launcher,
                "arguments": tuple(words),
                "env": variables,
                "secret": ("V0",),
                **terminal,
            },
            script=f"{name}.py",
            cwd=str(work),
            folder=str(work),
            run=str(work / "runs/x-0001"),
            image=str(work / "image:1 $(x).sif"),
            facts=replace(FACTS, mpirun="mpirun (Open MPI) 4.1.4"),
            manifest=HOLDS_ALL,
        )
        try:
            decided = decide(given._replace(job=replace(given.job, job_name=title)))
            text = scripts.script(decided)
        except (PlanError, UsageError):
            # A name that no #SBATCH line can carry, or no log: refused before anything is written.
            decided = decide(given._replace(job=replace(given.job, job_name="plain")))
            text = scripts.script(decided)
        run = work / "runs/x-0001"
        run.mkdir(parents=True, exist_ok=True)
        own = {name: variables[name] for name in decided.secrets}
        write_secrets(Run(run), decided.container.prefix, own)
        arguments, inside = captured(decided, Path(place))
        assert arguments[len(arguments) - len(words) :] == words
        assert arguments[len(arguments) - len(words) - 1] == f"{name}.py"
        assert str(work / "image:1 $(x).sif") in arguments
        assert not list(Path(place).rglob("pwned"))
        assert {one: inside[one] for one in variables} == variables
        assert arguments[arguments.index("--pwd") + 1] == str(work)
        assert "V0=" not in text


@pytest.mark.parametrize("word", [b"\xff".decode(errors="surrogateescape"), "a\0b"])
def test_what_no_script_can_hold_is_refused(word):
    for quoting in (quoted, sbatch):
        with pytest.raises(UsageError):
            quoting(word)
    with pytest.raises((PlanError, UsageError)):
        scripts.script(decide(make_case({"arguments": (word,)})))


def secret_inputs(directory: Path, **env: str) -> Case:
    return make_case(
        {"env": {"HF_TOKEN": TOKEN, "PLAIN": "seen", **env}, "secret": tuple(env)},
        cwd=str(directory),
        folder=str(directory),
        run=str(directory / "runs/train-0001"),
    )


def test_the_script_reads_secrets_from_a_file_and_is_the_golden_one():
    text = scripts.script(decide(secret_inputs(Path("/home/user/project"), OTHER="x")))
    assert_golden("secret", text, script_of("torchrun"))
    assert TOKEN not in text


def test_no_file_of_a_run_has_a_secret_but_one_that_nobody_else_can_read(tmp_path):
    (tmp_path / "train.py").touch()
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
    assert again.values["env"] == {
        "HF_TOKEN": TOKEN,
        "OTHER": "it's\n$(me)\r 'here'",
        "PLAIN": "seen",
    }


def test_a_rank_that_prints_a_secret_shows_stars(tmp_path):
    (tmp_path / "train.py").touch()
    run = write(secret_inputs(tmp_path, OTHER="open sesame"))
    run.job = Submission(job_id=7, site="local", submitted="")
    (run.logs / "7-0-nid001.log").write_text(f"logged in with {TOKEN}: open sesame!\n")
    assert [line.text for line in Tail(run).read()] == ["logged in with ****: ****!"]


def test_a_secret_among_the_arguments_is_warned_of_and_the_run_is_closed_to_others(tmp_path):
    (tmp_path / "train.py").touch()
    given = secret_inputs(tmp_path)
    given = given._replace(job=replace(given.job, env={}, arguments=("--api-key", TOKEN)))
    run = write(given)
    assert any("looks like a secret" in text for text in run.plan.warnings)
    assert stat.S_IMODE(run.directory.stat().st_mode) == 0o700


def test_commands_that_are_shown_have_stars_for_secrets(capsys, monkeypatch):
    monkeypatch.setattr(shell, "_ECHO", True)
    words = (
        sys.executable,
        "-c",
        "import sys; sys.exit('wrong password=open-sesame')",
        f"--token={TOKEN}",
        "https://me:word@host/x",
    )
    with pytest.raises(CommandFailedError) as caught:
        shell.run(words)
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
