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
    ("line", "code", "words"),
    [
        ("rnu", 64, ("no command 'rnu'", "run")),
        ("x" * 300, 64, ("no command 'xxx", "toolkit --help")),
        ("jobs xyzzy", 64, ("no command 'xyzzy'", "one of copy, list")),
        ("run --nodse 2 x.py", 64, ("no option --nodse", "--nodes", "toolkit run --help")),
        ("run --nodes two x.py", 64, ("--nodes", "two")),
        ("run --image", 64, ("'--image' requires an argument",)),
        ("run --retry 0 x.py", 64, ("0 is not in the range x>=1", "--retry")),
        ("cancel", 64, ("missing argument 'RUN...'",)),
        ("image verify-signature x", 64, ("missing option '--key'",)),
        ("ps extra", 64, ("unexpected extra argument (extra)", "toolkit ps --help")),
        ("prune", 64, ("no age", "--older-than")),
        ("prune --older-than x", 64, ("'x' is not an age", "an example is 30d")),
        ("bench allreduce --min-size 8 --max-size 4", 64, ("smaller", "--max-size")),
        ("image copy x y --mode 999", 64, ("'999' is not an octal mode",)),
        ("run --env =A jobs/digits-ddp", 64, ("NAME=VALUE",)),
        ("run no-such-script.py", 66, ("no script", "no-such-script.py")),
        ("lint no-such-script", 78, ("no-such-script", "cannot be read: No such file")),
        ("docs how-to/run/pendin", 64, ("close     how-to/run/pending",)),
        ("logs no-such-run", 84, ("no run",)),
        ("site show generik", 85, ("at        NAME", "close     generic")),
        ("run --site generik jobs/digits-ddp", 85, ("generic",)),
    ],
)
def test_mistakes(line, code, words):
    got, _, error = said(*line.split())
    assert got == code
    for word in (*words, f"exit {code}:"):
        assert word in error


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("docs", ("TOPIC", "run/pending")),
        ("docs pending", ("# ", "toolkit explain")),
        ("site list", ("NAME", "neuron")),
        ("site show neuron", ("--comment", "PARTITION", "amd_a100nv_8", "note: ")),
        ("site rules", ("RULE", "ASKS FOR")),
        ("site schema", ('"properties"',)),
        ("site use neuron", ("site       neuron   (in ",)),
        ("image show pytorch:22.03", ("FACT", "SOURCE", "unknown")),
        ("image search ngc 22.03", ("KIND", "tensorflow:22.03  release")),
        ("image render pytorch_cpu", ("Bootstrap: ", "%post")),
        ("image render pytorch_cpu --format docker", ("FROM ",)),
        ("image new mine --from pytorch_cpu --pip einops==0.8.1", ("mine.toml",)),
        ("workshop new first", ("written    first", "toolkit workshop pack first")),
    ],
)
def test_answers_that_need_no_cluster(line, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("TOOLKIT_IMAGES", str(tmp_path))
    code, out, error = said(*line.split())
    assert code == 0, error
    for word in words:
        assert word in out


@pytest.mark.parametrize("line", ["ps", "image list", "doctor", "run x.py"])
def test_a_current_directory_that_was_removed_is_no_bug(line, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, _, error = said(*line.split())
    monkeypatch.chdir(tmp_path)
    assert (code, "current directory has been removed" in error) == (64, True)


def test_a_socket_that_is_missing_is_no_removed_directory():
    assert isinstance(as_ours(FileNotFoundError(2, "No such file or directory")), InternalError)


def test_every_error_has_an_exit_code_of_its_own():
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    public = [
        each for each in classes if issubclass(each, ToolkitError) and each is not ToolkitError
    ]
    assert len(public) > 20
    for name in ("exit_code", "kind"):
        assert len({getattr(error, name) for error in public}) == len(public)


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


def test_the_tables_have_every_command_with_its_name_and_its_summary():
    """Help and start-up read the tables alone, and import a command when it is used."""
    groups: list[click.Group] = [cli.cli]
    listed = set()
    while groups:
        group = groups.pop()
        assert isinstance(group, Group)
        for name, (_, about) in group.entries.items():
            command = group.get_command(click.Context(group), name)
            assert command
            listed.add(command)
            groups += [command] if isinstance(command, click.Group) else []
            assert (command.name, (command.help or "").partition("\n")[0]) == (name, about)
            assert len(about) <= 70
            assert "Example" in (command.help or ""), name
    names = [entry.name for entry in walk_packages(toolkit.cli.__path__, "toolkit.cli.")]
    values = [value for name in names for value in vars(import_module(name)).values()]
    written = {value for value in values if isinstance(value, click.Command)}
    assert written == {cli.cli, *listed}


def test_a_partition_as_json_has_all_its_keys():
    for partition in PARTITIONS:
        assert set(_whole(partition)) == set(partition.__struct_fields__)
