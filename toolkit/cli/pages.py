"""The pages of the documentation that come with the toolkit, as Markdown, by their topics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from toolkit.config import shipped
from toolkit.errors import UsageError

# Parts of the site whose names a topic leaves out; the pages of a part without a name come first.
_PARTS = ("tutorials", "how-to", "explanation")
# Lines that begin so are marks of the tests and pictures.
_HIDDEN = ("<!-- ", "![")
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
    """Return a page without the marks that only the site needs.

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
    page = _CONTENTS.sub(lambda contents: _contents(contents[1], known[name], known), page)
    lines = (line for line in page.split("\n") if not line.startswith(_HIDDEN))
    return re.sub("\n{3,}", "\n\n", "\n".join(lines)).strip("\n") + "\n"


def _contents(entries: str, page: Path, known: Mapping[str, Path]) -> str:
    """Return the pages of a table of contents with their titles; nothing for a hidden one."""
    files = {str(page.parent / f"{entry}.md") for entry in entries.split()}
    rows = [f"- {name}: {title(path)}" for name, path in known.items() if str(path) in files]
    return "" if ":hidden:" in entries else "\n".join([*rows, ""])
