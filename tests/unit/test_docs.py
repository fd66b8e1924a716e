"""Each command of a page is run by a test or marked; translations have the same commands and links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.test_readme import DOCS, ROOT
from toolkit.cli import learn
from toolkit.cli import main as cli
from tools.docs import tested, translation
from tools.docs.blocks import MARKS, blocks, commands

# Their commands are run by tests/cluster/test_docs.py; each block of another page is marked.
RUN = ("index", "tutorials", "how-to")
PAGES = sorted(path for path in DOCS.rglob("*.md"))


def guides() -> list[Path]:
    """Return the pages whose commands are run."""
    parts = {path: path.relative_to(DOCS).with_suffix("").parts[0] for path in PAGES}
    return [path for path in PAGES if parts[path] in RUN]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_each_block_of_commands_is_run_or_marked(page):
    is_run = page in guides()
    for block in blocks(page.read_text(encoding="utf-8")):
        marks = set(block.marks)
        if block.language == "console" and is_run:
            assert marks <= set(MARKS)
            assert commands(block)
        elif block.language == "console":
            assert marks & {"not-run", "overview"}
        elif is_run:
            assert not re.search(r"^\$ ", block.text, re.MULTILINE), f"line {block.line}"
            assert marks <= {"file"}, f"line {block.line}"


def overviews() -> list[str]:
    """Return the commands of README and of other overviews, without their options."""
    shown = [block.text for _, block in tested.shown_blocks() if "overview" in block.marks]
    line = r"^(?:\$ )?(?:[A-Z_]+=\S+ )?toolkit ([a-z-]+)(?:( [a-z-]+)(?= |$))?"
    verbs = re.findall(line, "\n".join(shown), re.MULTILINE)
    groups = [name for name, (place, _) in cli.cli.entries.items() if place.startswith("groups:")]
    return sorted({verb + (below if verb in groups else "") for verb, below in verbs})


@pytest.mark.parametrize("name", overviews())
def test_each_command_of_an_overview_is_run_elsewhere(name):
    words = r"\W+".join(name.split())
    run = [
        block.text
        for page in guides()
        for block in blocks(page.read_text(encoding="utf-8"))
        if block.language == "console" and not {"not-run", "overview"} & set(block.marks)
    ]
    tests = [path.read_text(encoding="utf-8") for path in ROOT.glob("tests/cluster/test_*.py")]
    # Fixtures add the group: `built.run("push", ...)` is `toolkit image push`.
    called = rf"""["' ({{]{words}["' ]|\.run\("{name.split()[-1]}","""
    is_run = re.search(rf"^\$ .*toolkit {words}\b", "\n".join(run), re.MULTILINE)
    assert is_run or re.search(called, "\n".join(tests))


@pytest.mark.parametrize("topic", learn.topics())
def test_a_page_is_printed_without_what_only_the_site_needs(topic):
    text = learn.page_text(topic)
    assert text.startswith("# ")
    assert "toctree" not in text
    assert not re.search("^<!-- ", text, re.MULTILINE)


CATALOGS = sorted((DOCS / "locale").rglob("*.po"))


@pytest.mark.parametrize("path", CATALOGS, ids=lambda path: path.stem)
def test_a_translation_has_the_same_commands_and_links(path):
    """Blocks of commands are no messages: both languages show the same ones."""
    text = path.read_text(encoding="utf-8")
    assert "fuzzy" not in text
    assert "\n#~" not in text
    for message in translation.read(path):
        if message.string:
            for marked in (r"`[^`]+`", r"\]\(([^)]+)\)"):
                there = set(re.findall(marked, str(message.string)))
                assert there == set(re.findall(marked, str(message.id))), message.id
        # CommonMark does not close bold text between a sign and a letter: the stars would be shown.
        bold = re.sub(r"\*\*\w[^*]*\w\*\*", "", str(message.string))
        assert not re.search(r"[^\w\s]\*\*\w", bold), message.id
