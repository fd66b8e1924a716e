"""The command line: every mistake ends with its own exit code, a cause and a next step, and the tool starts without heavy imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from toolkit import errors
from toolkit.cli import main as cli
from toolkit.errors import ToolkitError


def said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["toolkit", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    output = capsys.readouterr()
    return int(caught.value.code or 0), output.out, output.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("rnu",), 64, ("no command 'rnu'", "run")),
        (
            ("run", "--nodse", "2", "x.py"),
            64,
            ("no option --nodse", "--nodes", "toolkit run --help"),
        ),
        (("run", "--nodes", "two", "x.py"), 64, ("--nodes", "two")),
        (("run", "--nodes", "0", "x.py"), 64, ("--nodes", "0")),
        (("run",), 64, ("SCRIPT",)),
        (("run", "no-such-script.py"), 66, ("no script", "no-such-script.py")),
        (("logs", "no-such-run"), 84, ("no run",)),
        (("run", "--site", "generik", "jobs/digits-ddp"), 85, ("generic",)),
        (("run", "--env", "=A", "jobs/digits-ddp"), 64, ("NAME=VALUE",)),
        (("run", "--env", "", "jobs/digits-ddp"), 64, ("NAME=VALUE",)),
    ],
)
def test_mistakes(
    arguments: tuple[str, ...],
    code: int,
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    got, _, error = said(monkeypatch, capsys, *arguments)
    assert got == code
    for word in words:
        assert word in error
    assert f"exit {code}:" in error


def test_every_error_has_an_exit_code_of_its_own() -> None:
    public = [
        error
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, ToolkitError)
    ]
    assert (
        len({error.exit_code for error in public})
        == len({error.kind for error in public})
        == len(public)
        > 20
    )


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_help_with_examples(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = said(monkeypatch, capsys, verb, "--help")
    assert code == 0
    assert "Examples:" in out
    assert f"toolkit {verb}" in out


def test_nothing_heavy_is_imported_at_the_start() -> None:
    heavy = ("jinja2", "spython", "docker", "torch", "horovod", "asyncio", "concurrent")
    code = f"import sys, toolkit.cli.main, toolkit.cli.run, toolkit.planning.gather; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_everything_after_the_script_belongs_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from toolkit.cli import run

    seen: list[object] = []

    class StoppedError(Exception):
        pass

    def remember(script: str, flags: object, here: object, *, dry_run: bool) -> None:
        del here, dry_run
        seen.extend((script, flags))
        raise StoppedError

    monkeypatch.setattr(run, "gather_run", remember)
    words = ["--nodes", "9", "--help", "--", "-x", "--image=y", "--dry-run"]
    with pytest.raises(StoppedError):
        run.command.main(["--nodes", "2", "train.py", *words], standalone_mode=False)
    assert seen[0] == "train.py"
    assert seen[1].values == {"nodes": 2, "arguments": tuple(words)}  # type: ignore[attr-defined]
