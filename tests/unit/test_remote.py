"""A login node by a stand-in for ssh, which runs what it gets on this machine: what is sent, and what may answer."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from tests.hostile import HOSTILE, MULTILINE
from toolkit import remote
from toolkit.cli import console
from toolkit.cli import remote as cli
from toolkit.cli.main import COMMANDS
from toolkit.errors import LoginError, LoginLostError, NoSpaceError, UsageError
from toolkit.planning.settings import SENT, chosen_login
from toolkit.quoting import shell_words
from toolkit.runs import ssh
from toolkit.runs.code import IGNORE

_LOCAL = 'HOME={home}; export HOME; for command; do :; done; {before}; eval "$command"'
LOGINS = ("neuron", "me@neuron.ksc.re.kr", "ssh://me@host:2222", "[::1]", "a_b.c-d")
NO_LOGINS = ("-oProxyCommand=id", "me@-oX", "a b", "$(id)", "a\nb", "", "a;b", "`id`")


@pytest.fixture
def home(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("x")))  # a short path
    (tmp_path / ".local/share/toolkit/on").mkdir(parents=True)
    (tmp_path / ".local/share/toolkit/on" / "place").write_text(str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    return tmp_path


def stand_in(home: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Have `ssh` be a script of sh."""
    (home / "bin").mkdir(exist_ok=True)
    (home / "bin/ssh").write_text(f"#!/bin/bash\n{script}\n")
    (home / "bin/ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}/bin", prepend=os.pathsep)


def local(home: Path, before: str = ":") -> str:
    return _LOCAL.format(home=shlex.quote(str(home)), before=before)


def test_a_login_that_ssh_or_a_shell_would_obey_is_refused():
    assert [remote.require_login(login) for login in LOGINS] == [*LOGINS]
    for login in NO_LOGINS:
        with pytest.raises(UsageError):
            remote.require_login(login)


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_words_arrive_as_they_are_after_any_banner(home, monkeypatch, capfdbinary, shell):
    noise = f"head -c 200000 /dev/urandom; printf 'Welcome\\nno newline'; set -- {shell} -c"
    stand_in(home, monkeypatch, local(home, noise).replace("eval", '"$@"'))
    words = (*HOSTILE, *MULTILINE, "")
    assert remote.run("site", f"printf '%s\\0' {shell_words(words)}; exit 7") == 7
    assert capfdbinary.readouterr().out.decode().split("\0")[:-1] == [*words]


# What ssh does; the error, and a word of it.
RUBBISH = {
    "echo rubbish; exit 0": (LoginError, "rubbish"),
    "yes | head -c 1000000; exit 3": (LoginError, "exit code 3"),
    "printf '\\033]0;title\\007'; exit 127": (LoginError, "does not run commands"),
    "echo lost >&2; exit 255": (LoginLostError, "was lost"),
}


@pytest.mark.parametrize("script", RUBBISH)
def test_a_server_that_answers_rubbish_is_an_error(home, monkeypatch, capfdbinary, script):
    kind, text = RUBBISH[script]
    stand_in(home, monkeypatch, script)
    with pytest.raises(kind) as raised:
        remote.run("site", "true")
    assert text in f"{raised.value.cause} {raised.value.details}"
    assert not capfdbinary.readouterr().out


def test_lines_of_a_repeated_command_are_printed_once(home, monkeypatch, capfdbinary):
    stand_in(home, monkeypatch, local(home))
    printed = dict[bytes, int]()
    with pytest.raises(LoginLostError):
        remote.run("site", "printf 'a\\n0| x\\n0| x\\n1| y\\n0| half'; exit 255", printed=printed)
    # Another order of the ranks, and more lines.
    again = "printf '1| y\\n0| x\\n0| x\\n0| half\\n1| y\\nend\\n'"
    assert remote.run("site", again, printed=printed) == 0
    lines = "a\n0| x\n0| x\n1| y\n0| half\n1| y\nend\n"
    assert capfdbinary.readouterr().out.decode() == lines


@pytest.fixture
def project(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = home / "it's $(x)"
    (root / "sub").mkdir(parents=True)
    for name in "train.py sub/-x.py data.bin sub/gone.py notes .env kept.log #a ;b".split():
        (root / name).write_text(name)
    (home / "other.py").touch()
    (root / "out").symlink_to(home / "other.py")
    (root / ".gitignore").write_text("*.log\n")
    (root / IGNORE).write_text("data.*\n")
    for words in ("init -q", "add data.bin train.py sub", "add -f kept.log"):
        subprocess.run(["git", *words.split()], cwd=root, check=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    return root


def test_paths_of_the_tree_are_relative_and_others_refused(project):
    cwd, odd = project / "sub", (*HOSTILE, *MULTILINE, "x" * 9000, "\0", "-x.py")
    same = ("../train.py", "--nodes=2", "/scratch/me/x", f"/{project.parent}/other.py", "../none")
    words = {
        **{word: word for word in (*same, *odd)},
        f"{project}/train.py": "./../train.py",
        f"{project}/sub/-x.py": "./-x.py",
        f"--bind={project}/notes:{project}/notes:ro": f"--bind=./../notes:{project}/notes:ro",
        f"DATA={project}/new": "DATA=./../new",
        f"{project}": "./..",
    }
    assert {word: cli.translated(word, project, cwd) for word in words} == words
    outside = (f"{project.parent}/other.py", "../../other.py", "../out")
    for word in (*outside, f"--bind={project.parent}:/x"):
        with pytest.raises(UsageError, match="outside of"):
            cli.translated(word, project, cwd)


def test_the_tree_there_is_as_here_without_what_is_ignored(home, project, monkeypatch, capfd):
    stand_in(home, monkeypatch, local(home, "echo Welcome"))
    cli.send("site", project / "sub")
    (place,) = (home / "scratch").iterdir()

    def there() -> set[str]:
        return {str(path.relative_to(place)) for path in place.rglob("*") if not path.is_dir()}

    wanted = {SENT, ".gitignore", IGNORE}
    wanted |= {*"train.py sub/-x.py sub/gone.py notes kept.log out #a ;b".split()}
    assert there() == wanted
    assert "left out: .env" in capfd.readouterr().err
    (place / "results").write_text("of a run")
    (project / "sub/gone.py").unlink()
    (project / "notes").unlink()
    (project / "notes").mkdir()
    (project / "notes/a").write_text("now a directory")
    (project / "notes/a").chmod(0o666)
    cli.send("site", project)
    assert there() == (wanted | {"results", "notes/a"}) - {"sub/gone.py", "notes"}
    assert (place / "notes/a").stat().st_mode & 0o777 == 0o644


def test_more_than_200_mb_is_asked_for_before_anything_goes(home, project, monkeypatch):
    stand_in(home, monkeypatch, local(home))
    with (project / "large").open("w") as file:
        file.truncate(cli.MOST_BYTES + 1)
    with pytest.raises(NoSpaceError, match="not sent: 200 MB in 10 files to site"):
        cli.send("site", project)
    assert [path.name for path in (home / "scratch").rglob("*") if path.is_file()] == [SENT]


def test_runs_are_copied_without_their_secrets(home, project, monkeypatch):
    """Also into a directory that is a link here."""
    stand_in(home, monkeypatch, local(home))
    monkeypatch.setattr(cli, "connect", lambda *_: None)
    monkeypatch.chdir(project)
    cli.send("site", project)
    (place,) = (home / "scratch").iterdir()
    for name in ("runs/x-0001/log", "runs/x-0001/secrets", "runs/x-0002/secrets", "out2/a"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(name)
    (place / "runs/x-0001/hook").symlink_to("../../.git")
    (home / "disk").mkdir()
    (project / "runs").symlink_to(home / "disk")
    pulled = CliRunner().invoke(cli.pull, ["x-0001", "runs/x-0002", "out2/a"], obj="site")
    assert pulled.exit_code == 0, pulled.exception
    assert (project / "out2/a").read_text() == "out2/a"
    assert (project / "runs").is_symlink()
    assert [path.name for path in (home / "disk").rglob("*") if not path.is_dir()] == ["log"]
    assert CliRunner().invoke(cli.pull, ["x-0001", "."], obj="site").exception


def test_a_call_has_variables_that_are_named_and_none_that_have_a_value(project, monkeypatch):
    for name in ("TOK", "LIBRARIES"):
        monkeypatch.setenv(name, "laptop")
    monkeypatch.chdir(project)
    call = cli._call("site", ["run", "--env=TOK", "--env", "LIBRARIES=/x", "a.py"], project)
    assert "export TOK=laptop" in call
    assert "LIBRARIES" not in call


def test_the_files_of_commands_that_never_ran_are_removed(home, monkeypatch):
    stand_in(home, monkeypatch, local(home))
    stale = home / ".local/share/toolkit/on/call-1"
    stale.write_text("export TOK=x")
    os.utime(stale, (0, 0))
    cli._run("site", ["cancel", "x-0001"], "exit 0; ")
    assert not stale.exists()


def test_a_home_with_a_path_too_long_for_a_socket_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("x" * 100)))
    with pytest.raises(UsageError, match="so many bytes"):
        remote.is_connected("site")


def test_a_tree_that_was_sent_names_no_login(project):
    (project / "toolkit.toml").write_text('on = "neuron"\n')
    assert chosen_login(project / "sub") == "neuron"
    (project / SENT).touch()
    assert chosen_login(project / "sub") == ""


@pytest.mark.parametrize(
    ("on", "codes"),
    [
        (
            "-oProxyCommand=touch pwned",
            {"jobs list": 0, "ps --help": 0, "ps": 64, "setup": 64, "setup --check": 64},
        ),
        ("", {"ps": 0, "push": 64, "pull x": 64}),
    ],
)
def test_commands_about_this_machine_need_no_login(on, codes, tmp_path):
    env = {**os.environ, "TOOLKIT_ON": on, "HOME": str(tmp_path)}
    for words, code in codes.items():
        argv = [sys.executable, "-m", "toolkit", *words.split()]
        done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, check=False)
        assert done.returncode == code, done.stderr
    assert not (tmp_path / "pwned").exists()


_FORWARD, _START = ["forward", "a-0001"], ["notebook", "start"]
# Words of a command, where its connections arrive here, and the words that go there, with an S for the socket.
PLACES = [
    ([*_FORWARD, "6006"], "127.0.0.1:6006", ["forward", "S", "a-0001", "6006"]),
    ([*_FORWARD, "6006", "--port", "70"], "127.0.0.1:70", ["forward", "S", "a-0001", "6006"]),
    ([*_FORWARD, "80"], "127.0.0.1:8888", ["forward", "S", "a-0001", "80"]),
    ([*_FORWARD, "6006", "--socket", "{0}/a:b"], "{0}/a\\:b", ["forward", "S", "a-0001", "6006"]),
    (["notebook", "--nodes", "1"], "127.0.0.1:8888", ["notebook", "S", "--nodes", "1"]),
    ([*_START, "--port=9", "course/"], "127.0.0.1:9", ["notebook", "start", "S", "course/"]),
]


@pytest.mark.parametrize(("words", "here", "there"), PLACES)
def test_a_server_is_reached_at_the_place_given(words, here, there, tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    calls: list[Any] = []
    monkeypatch.setattr(cli, "connect", lambda *_: None)
    monkeypatch.setattr(ssh.Entrance, "require_free", lambda _: None)

    def hop(*ends: str) -> nullcontext[None]:
        calls.append(ends)
        return nullcontext()

    monkeypatch.setattr(cli, "hop", hop)
    monkeypatch.setattr(cli, "_run", lambda *given: calls.append(given))
    cli.run_on("site", [word.format(tmp_path) for word in words])
    (_, own, socket), (_, given, before) = calls
    assert own == here.format(tmp_path)
    assert given == [f"--socket={socket}" if word == "S" else word for word in there]
    assert f"mkdir -m 700 {socket[:-2]} ||" in before


@pytest.mark.parametrize(
    ("words", "is_repeated"),
    [
        ("forward a-0001 6006", True),
        ("notebook connect", True),
        ("notebook start", False),  # it is not known here that nothing was submitted
        ("doctor --nodes 2", False),
        ("site init ours --probe", False),
        ("cancel train-0001", False),
    ],
)
def test_only_what_cannot_act_twice_is_repeated(words, is_repeated, project, monkeypatch):
    """Over a new connection, after one was lost."""
    calls: list[str] = []

    def lose(login: str, *_: str, **__: object) -> int:
        calls.append(login)
        if len(calls) == 1:
            raise LoginLostError("the connection was lost")
        return 0

    monkeypatch.chdir(project)
    for name in ("connect", "send", "put"):
        monkeypatch.setattr(cli, name, lambda *_: None)
    monkeypatch.setattr(ssh.Entrance, "require_free", lambda _: None)
    monkeypatch.setattr(cli, "hop", lambda *_: nullcontext())
    monkeypatch.setattr(cli, "run", lose)
    if is_repeated:
        assert cli.run_on("site", words.split()) == 0
    else:
        with pytest.raises(LoginLostError):
            cli.run_on("site", words.split())
    assert len(calls) == 1 + is_repeated


def test_a_hop_is_made_again_if_the_connection_is_lost_before_the_command_begins(
    project, monkeypatch
):
    errors = [LoginLostError("the connection was lost")]

    def put(*_: str) -> None:
        if errors:
            raise errors.pop()

    monkeypatch.chdir(project)
    monkeypatch.setattr(ssh.Entrance, "require_free", lambda _: None)
    monkeypatch.setattr(cli, "connect", lambda *_: None)
    monkeypatch.setattr(cli, "put", put)
    hop = Mock(side_effect=lambda *_: nullcontext())
    monkeypatch.setattr(cli, "hop", hop)
    monkeypatch.setattr(cli, "run", lambda *_, **__: 0)
    assert cli.run_on("site", ["forward", "a-0001", "6006"]) == 0
    assert hop.call_count == 2


def test_messages_name_commands_as_they_are_typed_here(monkeypatch):
    text = "this toolkit is old: toolkit logs x; toolkit ps; toolkit setup; toolkit.toml"
    assert console.typed(text) == text
    monkeypatch.setenv("TOOLKIT_ON_NAMED", r"--on a\1 ")
    typed = r"toolkit --on a\1 logs x; toolkit --on a\1 ps; toolkit setup; toolkit.toml"
    assert console.subject("next", text) == f"next       this toolkit is old: {typed}"
    here = {"demo", "docs", "jobs", "lint", "setup"}
    names = [name for rows in COMMANDS.values() for name in rows]
    assert {name for name in names if "--on" not in console.typed(f"toolkit {name}")} == here
