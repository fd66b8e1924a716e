"""The pages of the documentation that come with the toolkit, as Markdown, by their topics."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from toolkit.config import shipped
from toolkit.errors import UsageError

# Parts of the site whose names a topic leaves out; the pages of a part without a name come first.
_PARTS = ("tutorials", "how-to", "explanation")
# Lines that begin so are marks of the tests and pictures.
_HIDDEN = ("<!-- ", "![")
# Pages that are made for the site alone, and the command that prints what they show.
_COMMANDS: Mapping[str, str] = {
    "reference/checks.md": "toolkit site rules",
    "reference/commands.md": "toolkit --help",
    "reference/exercises.md": "toolkit jobs list",
    "reference/exit-codes.md": "toolkit docs reference",
    "reference/files.md": "toolkit site schema",
    "reference/recipes.md": "toolkit image list",
    "reference/rules-of-lint.md": "toolkit lint --rules",
    "reference/sites.md": "toolkit site list",
}
_ITEM = re.compile(r"(?:[-*]|\d+\.) +")
_LINK = re.compile(r"\[([^\[\]]{1,200})\]\(([^()\s]{1,200})\)")
_CONTENTS = re.compile(r"^```\{toctree\}\n([^`]*)```\n", re.MULTILINE)


def topics() -> dict[str, Path]:
    """Return the file of each topic: ``run/pending`` is ``how-to/run/pending.md``."""
    directory = shipped("docs")
    files = {path.relative_to(directory): path for path in sorted(directory.rglob("*.md"))}
    return {_topic(name): path for name, path in files.items() if name.parts[0] != "contributing"}


def _topic(name: Path) -> str:
    parts = name.with_suffix("").parts
    parts = parts[1:] if parts[0] in _PARTS else parts
    return "/".join(parts[:-1] if parts[-1] == "index" else parts) or "quick-start"


def title(path: Path) -> str:
    """Return the heading of a page."""
    with path.open(encoding="utf-8") as file:
        return file.readline().strip("# \n")


def text(topic: str) -> str:
    """Return a page without the marks that only the site needs, and with topics as links.

    The last part of a topic is enough if no other topic ends with it.

    Raises:
        UsageError: no page has this topic.
    """
    known = topics()
    name = topic.strip("/").removesuffix(".md")
    ends = [full for full in known if full.endswith(f"/{name}")]
    if name not in known and len(ends) == 1:
        name = ends[0]
    if name not in known:
        raise UsageError(
            f"no page is called {topic!r}",
            place="TOPIC",
            choices=known,
            value=name,
            next_step="toolkit docs",
        )
    page = known[name].read_text(encoding="utf-8")
    page = _LINK.sub(lambda link: _link(link, known[name], known), page)
    page = _CONTENTS.sub(lambda contents: _contents(contents[1], known[name], known), page)
    lines = (line for line in page.split("\n") if not line.startswith(_HIDDEN))
    return re.sub("\n{3,}", "\n\n", "\n".join(lines)).strip("\n") + "\n"


def _contents(entries: str, page: Path, known: Mapping[str, Path]) -> str:
    """Return the pages of a table of contents with their titles; nothing for a hidden one."""
    files = {str(page.parent / f"{entry}.md") for entry in entries.split()}
    rows = [f"- {name}: {title(path)}" for name, path in known.items() if str(path) in files]
    return "" if ":hidden:" in entries else "\n".join([*rows, ""])


def _link(link: re.Match[str], page: Path, known: Mapping[str, Path]) -> str:
    """Return a link as a command that prints its page; text alone if only the site has the page."""
    label, target = link.groups()
    if target.startswith("http"):
        return f"{label} ({target})"
    path = os.path.normpath(page.parent / target.partition("#")[0])
    commands = {str(file): f"toolkit docs {name}" for name, file in known.items()}
    commands |= {str(shipped("docs") / name): command for name, command in _COMMANDS.items()}
    return f"{label} ({commands[path]})" if path in commands and path != str(page) else label


def wrapped(page: str, width: int) -> str:
    """Return a page for a terminal: paragraphs and list items filled, commands and tables as is.

    Args:
        page: Markdown that ends with a line end.
        width: of the terminal.
    """
    lines: list[str] = []
    paragraph: list[str] = []
    is_code = False
    for line in page.split("\n"):
        is_code ^= line.startswith("```")
        is_text = line.strip() and not is_code and not line.startswith(("```", "#", "|", "    "))
        if paragraph and (not is_text or _ITEM.match(line)):
            lines += _filled(" ".join(map(str.strip, paragraph)), width)
            paragraph = []
        (paragraph if is_text else lines).append(line)
    return "\n".join(lines)


def _filled(text: str, width: int) -> list[str]:
    item = _ITEM.match(text)
    indent = " " * len(item[0]) if item else ""
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
