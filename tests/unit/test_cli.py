"""The command line: every mistake ends with its own exit code, a cause and a next step, and the tool starts without heavy imports."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pkgutil import walk_packages
from unittest.mock import patch

import click
import pytest

import toolkit.cli
from tests.unit.samples import PARTITIONS
from toolkit import errors
from toolkit.cli import main as cli
from toolkit.cli.cluster import _whole
from toolkit.cli.main import Group, as_ours
from toolkit.errors import InternalError, ToolkitError


def said(*arguments: str) -> tuple[int, str, str]:
    """Return the exit code of a command line, and what it prints."""
    output, errors = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["toolkit", *arguments]),
        redirect_stdout(output),
        redirect_stderr(errors),
        pytest.raises(SystemExit) as caught,
    ):
        cli.main()
    return int(caught.value.code or 0), output.getvalue(), errors.getvalue()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("rnu",), 64, ("no command 'rnu'", "run")),
        (("x" * 300,), 64, ("no command 'xxx", "toolkit --help")),
        (
            ("run", "--nodse", "2", "x.py"),
            64,
            ("no option --nodse", "--nodes", "toolkit run --help"),
        ),
        (("run", "--nodes", "two", "x.py"), 64, ("--nodes", "two")),
        (("run", "--nodes", "0", "x.py"), 64, ("--nodes", "0")),
        (("run",), 64, ("missing argument 'SCRIPT'",)),
        (("run", "--image"), 64, ("'--image' requires an argument",)),
        (("cancel",), 64, ("missing argument 'RUN...'",)),
        (("image", "verify-signature", "x"), 64, ("missing option '--key'",)),
        (("run", "--retry", "0", "x.py"), 64, ("0 is not in the range x>=1", "--retry")),
        (("cluster", "up", "--nodes", "x"), 64, ("'x' is not a valid integer range",)),
        (("ps", "extra"), 64, ("unexpected extra argument (extra)", "toolkit ps --help")),
        (("jobs", "xyzzy"), 64, ("no command 'xyzzy'", "one of copy, list")),
        (("prune",), 64, ("no age", "--older-than")),
        (("prune", "--older-than", "x"), 64, ("'x' is not an age", "such as 30d")),
        (("lint", "no-such-script"), 78, ("no-such-script", "cannot be read: No such file")),
        (("site", "show", "generik"), 85, ("at        NAME", "close     generic")),
        (
            ("bench", "allreduce", "--min-size", "8", "--max-size", "4"),
            64,
            ("smaller", "--max-size"),
        ),
        (("image", "copy", "x", "y", "--mode", "999"), 64, ("'999' is not an octal mode",)),
        (("run", "no-such-script.py"), 66, ("no script", "no-such-script.py")),
        (("logs", "no-such-run"), 84, ("no run",)),
        (("run", "--site", "generik", "jobs/digits-ddp"), 85, ("generic",)),
        (("run", "--env", "=A", "jobs/digits-ddp"), 64, ("NAME=VALUE",)),
        (("run", "--env", "", "jobs/digits-ddp"), 64, ("NAME=VALUE",)),
    ],
)
def test_mistakes(arguments, code, words):
    got, _, error = said(*arguments)
    assert got == code
    for word in words:
        assert word in error
    assert f"exit {code}:" in error


@pytest.mark.parametrize("arguments", [("ps",), ("image", "list"), ("doctor",), ("run", "x.py")])
def test_a_current_directory_that_was_removed_is_no_bug(arguments, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, _, error = said(*arguments)
    monkeypatch.chdir(tmp_path)
    assert (code, "current directory has been removed" in error) == (64, True)


def test_a_socket_that_is_missing_is_no_removed_directory():
    assert isinstance(as_ours(FileNotFoundError(2, "No such file or directory")), InternalError)


def test_every_error_has_an_exit_code_of_its_own():
    public = [
        error
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, ToolkitError) and error is not ToolkitError
    ]
    assert (
        len({error.exit_code for error in public})
        == len({error.kind for error in public})
        == len(public)
        > 20
    )


def test_a_bug_has_its_traceback_and_an_exit_code(monkeypatch):
    def break_down() -> None:
        raise KeyError("token \x1b[2J of another program")

    monkeypatch.setattr(cli.cli, "main", lambda **_: break_down())
    code, _, err = said()
    assert code == 70
    for part in ("has a bug: KeyError", "in break_down", "docs: run/errors   exit 70: internal"):
        assert part in err
    assert "\x1b" not in err


def test_nothing_heavy_is_imported_at_the_start():
    heavy = ("jinja2", "docker", "torch", "horovod", "asyncio", "concurrent")
    code = f"import sys, toolkit.cli.main, toolkit.cli.run, toolkit.planning.case; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_everything_after_the_script_belongs_to_it(monkeypatch):
    from toolkit.cli import run

    seen: list[object] = []

    class StoppedError(Exception):
        pass

    def remember(script: str, flags: object, here: object, **options: bool) -> None:
        del here, options
        seen.extend((script, flags))
        raise StoppedError

    monkeypatch.setattr(run, "gather", remember)
    words = ["--nodes", "9", "--help", "--", "-x", "--image=y", "--dry-run"]
    with pytest.raises(StoppedError):
        run.command.main(["--nodes", "2", "train.py", *words], standalone_mode=False)
    assert seen[0] == "train.py"
    assert seen[1].values == {"nodes": 2, "arguments": tuple(words)}  # type: ignore[attr-defined]


def test_every_command_has_a_short_summary_and_an_example():
    from tests.unit.test_cluster_names import all_commands

    for name, command in all_commands(cli.cli, click.Context(cli.cli), "toolkit"):
        summary = (command.help or "").partition("\n")[0]
        assert name == "toolkit" or len(summary) <= 70, f"{name}: {summary}"
        assert "Example" in (command.help or ""), name


def test_the_tables_have_every_command_with_its_name_and_its_summary():
    """Help and start-up read the tables alone, and import a command when it is used."""
    groups: list[click.Group] = [cli.cli]
    listed = set()
    while groups:
        group = groups.pop()
        for name in group.list_commands(click.Context(group)):
            command = group.get_command(click.Context(group), name)
            assert command
            listed.add(command)
            groups += [command] if isinstance(command, click.Group) else []
            if isinstance(group, Group):
                summary = (command.help or "").partition("\n")[0]
                assert (command.name, summary) == (name, group.entries[name][1])
    names = [entry.name for entry in walk_packages(toolkit.cli.__path__, "toolkit.cli.")]
    values = [value for name in names for value in vars(import_module(name)).values()]
    written = {value for value in values if isinstance(value, click.Command)}
    assert written == {cli.cli, *listed}


def test_a_partition_as_json_has_all_its_keys():
    for partition in PARTITIONS:
        assert set(_whole(partition)) == set(partition.__struct_fields__)
