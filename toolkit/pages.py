"""The pages of the documentation that come with the toolkit, as Markdown, by their topics."""

from __future__ import annotations

import re
from pathlib import Path

from toolkit.errors import UsageError
from toolkit.resources import shipped

# Parts of the site whose names a topic leaves out; the pages of a part without a name come first.
_PARTS = ("tutorials", "how-to", "explanation")
# Lines that begin so are marks of the tests and pictures.
_HIDDEN = ("<!-- ", "![")
_CONTENTS = re.compile(r"^```\{toctree\}\n[^`]*```\n", re.MULTILINE)


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

    Raises:
        UsageError: no page has this topic.
    """
    known = topics()
    name = topic.strip("/").removesuffix(".md")
    if name not in known:
        raise UsageError(
            f"no page is called {topic!r}",
            place="TOPIC",
            choices=known,
            value=name,
            next_step="toolkit docs",
        )
    page = known[name].read_text(encoding="utf-8")
    lines = _CONTENTS.sub("", page).rstrip("\n").split("\n")
    return "\n".join(line for line in lines if not line.startswith(_HIDDEN)) + "\n"
