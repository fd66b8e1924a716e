"""The README's tables, its script and its commands are those of the code.

To renew the tables and the script: UPDATE_GOLDEN=1 pytest tests/unit/test_readme.py.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import click
import pytest

from benchmarks.coverage import read, table
from toolkit import errors
from toolkit.cli import main as cli
from toolkit.errors import ToolkitError
from toolkit.files import read_toml
from toolkit.images.recipe import library
from toolkit.images.recipe.names import recipe_names
from toolkit.launchers import LAUNCHERS
from toolkit.model.job import Job
from toolkit.resources import shipped

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"


def codes() -> str:
    found = [
        error
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, ToolkitError)
    ]
    rows = [
        (error.exit_code, " ".join((error.__doc__ or "").split("\n\n")[0].split()))
        for error in found
        if error is not ToolkitError
    ]
    return "".join(f"| {code} | {text.rstrip('.')} |\n" for code, text in sorted(rows))


def verbs() -> str:
    return "".join(f"| `toolkit {name}` | {text} |\n" for name, (_, text) in cli.VERBS.items())


def starters() -> str:
    return "".join(f"| `{name}` | {entry.summary} |\n" for name, entry in LAUNCHERS.items())


def exercises() -> str:
    found = sorted((shipped("jobs")).glob("*/job.toml"))
    return "".join(
        f"| [`jobs/{path.parent.name}`](jobs/{path.parent.name}) | {read_toml(path, Job).summary} |\n"
        for path in found
    )


def recipes() -> str:
    return "".join(f"| `{name}` | {library.load(name).summary} |\n" for name in recipe_names())


def guides() -> str:
    return table(*read())


def script() -> str:
    return (README.parent / "tests/golden/scripts/horovod.sbatch").read_text()


@pytest.mark.parametrize(
    ("before", "content"),
    [
        ("| Exit code | Means |\n|---|---|\n", codes()),
        ("| Verb | Does |\n|---|---|\n", verbs()),
        ("| Launcher | Starts |\n|---|---|\n", starters()),
        ("| Recipe | Contains |\n|---|---|\n", recipes()),
        ("| Exercise | Shows |\n|---|---|\n", exercises()),
        (
            "| Here | A step of the guides | By hand | Took | Said |\n|---|---|---|---|---|\n",
            guides(),
        ),
        ("```bash\n", script()),
    ],
)
def test_what_is_generated_is_up_to_date(before: str, content: str) -> None:
    text = README.read_text()
    start = text.index(before) + len(before)
    if os.environ.get("UPDATE_GOLDEN"):
        rows = re.match(r"(\| (`|\d|\[`).*\n)*", text[start:])
        end = (
            text.index("```\n", start)
            if before.startswith("```")
            else start + (rows.end() if rows else 0)
        )
        text = text[:start] + content + text[end:]
        README.write_text(text)
    assert text[start:].startswith(content)


def commands() -> list[str]:
    lines = re.findall(r"^    ((?:\.venv/bin/)?toolkit [^#\n]*)", README.read_text(), re.MULTILINE)
    return [*lines, *re.findall(r"`(toolkit [^`]*)`", README.read_text())]


@pytest.mark.parametrize("line", commands())
def test_every_command_of_the_readme_is_one(line: str) -> None:
    """Its verb and its options exist; what they do is tested elsewhere."""
    words = [word for word in shlex.split(line)[1:] if word != "..."]
    command = (
        cli.cli.get_command(click.Context(cli.cli), words[0])
        if words and not words[0].startswith("-")
        else cli.cli
    )
    assert command is not None, line
    while isinstance(command, click.Group) and len(words) > 1:
        inner = command.get_command(click.Context(command), words[1])
        if inner is None:
            break
        command, words = inner, words[1:]
    known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    own = words[
        : next(
            (
                index
                for index, word in enumerate(words)
                if word.endswith(".py") or word.startswith("jobs/") or word == "--"
            ),
            len(words),
        )
    ]
    assert {
        word.split("=")[0] for word in own[1:] if word.startswith("-") and word != "--"
    } <= known, line


def test_the_tests_that_the_security_policy_names_are_there() -> None:
    """Every statement that names a test names one that exists."""
    text = (ROOT / "SECURITY.md").read_text()
    files = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}
    named = re.findall(r"`(?:tests/(?:unit|cluster)/)?(test_\w+\.py)(?:::(\w+))?`", text)
    assert len(named) > 10
    for file, test in named:
        assert file in files
        assert not test or f"def {test}(" in files[file].read_text(), test
    assert len(text.splitlines()) < 150
