"""The tables, the script and the commands of README and docs/ are those of the code.

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
from toolkit.cli import main as cli
from toolkit.config import shipped
from toolkit.files import read_toml
from toolkit.images.recipe import library
from toolkit.images.recipe.names import list_recipes
from toolkit.launchers import LAUNCHERS
from toolkit.model.job import Job
from toolkit.model.slurm_options import OPTIONS
from tools.docs import reference
from tools.docs.links import COPIED
from tools.docs.reference import codes

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [
    README,
    *(
        ROOT / name
        for name in ("CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md", "SECURITY.md")
    ),
]
PAGES += sorted(DOCS.rglob("*.md"))
# Pages that only the site has: it copies them, or generates them from the code.
ON_SITE = {*COPIED.values(), *(f"docs/{name}" for name in reference.pages())}


def verbs() -> str:
    return "".join(f"| `toolkit {name}` | {text} |\n" for _, name, text in cli.cli.summaries())


def starters() -> str:
    return "".join(f"| `{name}` | {LAUNCHERS[name].summary} |\n" for name in LAUNCHERS.offered())


def exercises() -> str:
    found = sorted((shipped("jobs")).glob("*/job.toml"))
    return "".join(
        f"| [`jobs/{path.parent.name}`](../jobs/{path.parent.name}) | {read_toml(path, Job).summary} |\n"
        for path in found
    )


def refused_options() -> str:
    return "".join(
        f"| `--{option.name}` | {option.refusal} | {option.instead or '-'} |\n"
        for option in OPTIONS.values()
        if option.refusal
    )


def recipes() -> str:
    return "".join(f"| `{name}` | {library.load(name).summary} |\n" for name in list_recipes())


def guides() -> str:
    return table(*read())


def script() -> str:
    return (ROOT / "tests/golden/scripts/horovod.sbatch").read_text()


@pytest.mark.parametrize(
    ("page", "before", "content"),
    [
        ("reference", "| Exit code | Means |\n|---|---|\n", codes()),
        ("reference", "| Command | Does |\n|---|---|\n", verbs()),
        ("running", "| Launcher | Starts |\n|---|---|\n", starters()),
        (
            "slurm-options",
            "| Refused | Reason | Use instead |\n|---|---|---|\n",
            refused_options(),
        ),
        ("images", "| Recipe | Contains |\n|---|---|\n", recipes()),
        ("workshops", "| Exercise | Shows |\n|---|---|\n", exercises()),
        (
            "guides",
            "| Here | A step of the guides | By hand | Took | Result |\n|---|---|---|---|---|\n",
            guides(),
        ),
        ("script", "```bash\n", script()),
    ],
)
def test_what_is_generated_is_up_to_date(page: str, before: str, content: str) -> None:
    path = DOCS / f"{page}.md"
    text = path.read_text(encoding="utf-8")
    start = text.index(before) + len(before)
    if os.environ.get("UPDATE_GOLDEN"):
        rows = re.match(r"(\| (`|\d|\[`).*\n)*", text[start:])
        end = (
            text.index("```\n", start)
            if before.startswith("```")
            else start + (rows.end() if rows else 0)
        )
        text = text[:start] + content + text[end:]
        path.write_text(text, encoding="utf-8")
    assert text[start:].startswith(content)


def commands() -> list[str]:
    """Return the commands that README and docs/ show, as a block or in code."""
    text = "\n".join(
        path.read_text(encoding="utf-8") for path in [README, *sorted(DOCS.rglob("*.md"))]
    )
    lines = re.findall(r"^(?:    (?:\$ )?|\$ )(toolkit [^#|<>\n]*)", text, re.MULTILINE)
    return sorted({*lines, *re.findall(r"`(toolkit [^`]*)`", text)})


@pytest.mark.parametrize("line", commands())
def test_every_command_of_the_pages_is_one(line: str) -> None:
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
                if word.endswith(".py") or word.startswith(("jobs/", "./")) or word == "--"
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
    named = re.findall(r"`(?:tests/(unit|cluster)/)?(test_\w+\.py)(?:::(\w+))?`", text)
    assert len(named) > 10
    for folder, file, test in named:
        files = [*(ROOT / "tests" / folder).rglob(file)]
        assert files, file
        assert not test or any(f"def {test}(" in path.read_text() for path in files), test
    assert len(text.splitlines()) < 220, "with the table of files"


def test_the_readme_stays_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_link_into_the_repository_resolves(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"https?:|mailto:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.is_relative_to(ROOT), f"{page.name}: {target}"
        if str(file.relative_to(ROOT)) in ON_SITE:
            continue
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), target
