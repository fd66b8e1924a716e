"""The tables, the script and the commands of README and docs/ are those of the code.

To renew the tables and the script: UPDATE_GOLDEN=1 pytest tests/unit/test_readme.py.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pytest

from benchmarks.coverage import read, table
from tests.unit.test_scripts import script_of
from toolkit import errors
from toolkit.cli import learn
from toolkit.cli import main as cli
from toolkit.config import shipped
from toolkit.files import read_toml
from toolkit.images.recipe import library
from toolkit.images.recipe.names import list_recipes
from toolkit.model.job import Job
from toolkit.model.slurm_options import OPTIONS
from tools.docs import reference
from tools.docs.links import COPIED

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
TOP = [
    ROOT / f"{name}.md" for name in "README CONTRIBUTING ARCHITECTURE CHANGELOG SECURITY".split()
]
PAGES = [*TOP, *sorted(DOCS.rglob("*.md"))]
# Pages that only the site has: it copies them, or generates them from the code.
ON_SITE = {*COPIED.values(), *(f"docs/{name}" for name in reference.pages())}


def rows(cells: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


ERRORS = {
    each.exit_code: " ".join((each.__doc__ or "").split("\n\n")[0].split()).rstrip(".")
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, errors.ToolkitError)
    if each is not errors.ToolkitError
}
JOBS = {path.parent.name: read_toml(path, Job) for path in shipped("jobs").glob("*/job.toml")}
REFUSED = [option for option in OPTIONS.values() if option.refusal]
# Page, header, rows.
TABLES: list[tuple[str, str, Iterable[tuple[str, ...]]]] = [
    (
        "reference",
        "Exit code | Means",
        [(str(code), text) for code, text in sorted(ERRORS.items())],
    ),
    (
        "reference",
        "Command | Does",
        [(f"`toolkit {name}`", text) for name, (_, text) in cli.cli.entries.items()],
    ),
    (
        "slurm-options",
        "Refused | Reason | Use instead",
        [(f"`--{one.name}`", one.refusal, one.instead or "-") for one in REFUSED],
    ),
    (
        "images",
        "Recipe | Contains",
        [(f"`{name}`", library.load(name).summary) for name in list_recipes()],
    ),
    (
        "workshops",
        "Exercise | Shows",
        [(f"[`jobs/{name}`](../jobs/{name})", str(JOBS[name].summary)) for name in sorted(JOBS)],
    ),
]
TEXTS = [
    *(
        (page, f"| {header} |\n|{'---|' * (header.count('|') + 1)}\n", rows(cells))
        for page, header, cells in TABLES
    ),
    ("guides", "Result |\n|---|---|---|---|---|\n", table(*read())),
    ("script", "```bash\n", script_of("horovod")),
]


@pytest.mark.parametrize(("page", "before", "content"), TEXTS)
def test_what_is_generated_is_up_to_date(page, before, content):
    path = DOCS / f"{page}.md"
    text = path.read_text(encoding="utf-8")
    start = text.index(before) + len(before)
    if os.environ.get("UPDATE_GOLDEN"):
        old = r"((?!```).*\n)*" if "```" in before else r"(\| (`|\d|\[`).*\n)*"
        text = text[:start] + content + re.sub(rf"\A{old}", "", text[start:])
        path.write_text(text, encoding="utf-8")
    assert text[start:].startswith(content)


# Where people read of commands. A changelog tells of commands that are gone, too.
SHOWN = (
    *("*.md", "docs/**/*.md", "toolkit/**/*.py", "toolkit/**/*.toml", "toolkit/**/*.j2"),
    *("recipes/*.toml", "containers/*", "jobs/*/*", "workshops/**/*.*", "tools/**/*.sh"),
)
SHOWN_FILES = sorted({path for pattern in SHOWN for path in ROOT.glob(pattern) if path.is_file()})
# Prose may go on after the name of the program or of a group with one of these.
PROSE = set("from has itself knows on reads rehearsal sets shows starts".split())
COMMAND = re.compile(r"(?<![\w./-])(?<!the )(?<!The )toolkit((?: [^\s`;|)]+)+)")


def messages(source: str) -> Iterator[str]:
    """Yield the strings of a module, with a word for each value that is filled in."""
    nodes = list(ast.walk(ast.parse(source)))
    joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in joined for part in node.values}
    for node in joined:
        shown = (str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        yield "".join(shown)
    for text in nodes:
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and id(text) not in parts:
            yield text.value


def named_commands(path: Path) -> set[str]:
    """Return what a file shows after the word toolkit, up to the end of the command or sentence."""
    text = path.read_text(encoding="utf-8")
    texts = messages(text) if path.suffix == ".py" else (text,)
    lines = (match[1] for each in texts for match in COMMAND.finditer(each.replace("\\\n", "")))
    return {re.split(r"[.,:](?= |$)| (?:#|&&|>) ", line.strip())[0] for line in lines}


def wrong_in(line: str) -> str:
    """Return why a command would be refused before it begins; empty if it would not."""
    words = re.sub(r"[\"'\\]", "", line).split()
    command: click.Command | None = cli.cli
    while isinstance(command, click.Group) and words:
        context = click.Context(command)
        if words[0].startswith("-"):
            command = command.get_command(context, "start") or command  # of toolkit notebook
            break
        inner = command.get_command(context, words[0])
        if inner is None and re.fullmatch("[a-z-]+", words[0]) and words[0] not in PROSE:
            return f"no command {words[0]}"
        if inner is None:
            return ""
        command, words = inner, words[1:]
    assert command is not None
    if command.name == "docs" and words:
        return "" if words[0] in "TOPIC X" or learn.page_text(words[0]) else "no page"
    try:
        context = click.Context(command, **command.context_settings)
        command.make_parser(context).parse_args([word for word in words if word != "..."])
    except click.NoSuchOption as error:
        return "" if "X" in error.option_name else error.format_message()
    except click.UsageError as error:  # prose may name an option without its value
        return error.format_message() if line.startswith("run ") else ""
    return ""


@pytest.mark.parametrize("path", SHOWN_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_that_is_shown_is_one(path):
    """In pages, messages, next steps, rules and examples; what a command does is tested elsewhere."""
    if path.name != "CHANGELOG.md":
        found = {line: wrong_in(line) for line in named_commands(path)}
        assert {line: why for line, why in found.items() if why} == {}


def test_the_tests_that_the_security_policy_names_are_there():
    """Every statement that names a test names one that exists."""
    text = (ROOT / "SECURITY.md").read_text()
    named = re.findall(r"`(?:tests/(unit|cluster)/)?(test_\w+\.py)(?:::(\w+))?`", text)
    assert len(named) > 10
    for folder, file, test in named:
        files = [*(ROOT / "tests" / folder).rglob(file)]
        assert files, file
        assert not test or any(f"def {test}(" in path.read_text() for path in files), test
    assert len(text.splitlines()) < 220, "with the table of files"


@pytest.mark.parametrize(
    "page", [*TOP[1:3], *DOCS.glob("contributing/*.md")], ids=lambda path: path.name
)
def test_the_files_that_pages_for_developers_name_are_there(page):
    named = re.findall(r"`((?:toolkit|tests|tools|docs)/[\w/.-]+)`", page.read_text())
    own = ("NAME", "toy")  # what a contributor writes
    ours = [name for name in named if not any(word in name for word in own)]
    assert [name for name in ours if not (ROOT / name).exists()] == []


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_link_into_the_repository_resolves(page):
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
