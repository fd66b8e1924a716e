"""The page about the commands of all pages: how many the tests run, and why others are not run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.docs.blocks import Block, blocks

ROOT = Path(__file__).parent.parent.parent
DOCS, README = ROOT / "docs", ROOT / "README.md"
_PAGE = """# Which commands of these pages are run

Tests type the commands of the tutorials and guides, and compare what is printed.

| Blocks of commands in README and these pages | Number |
|---|---:|
| run as they are | {run} |
| run as they are, by `make test-all` only, because they take long | {long} |
| overviews: other blocks and tests run each of their commands | {overview} |
| not run | {not-run} |

## Not run, and why

| Page | First command | Reason |
|---|---|---|
{rows}
"""


def shown_blocks() -> Iterator[tuple[str, Block]]:
    """Yield the blocks of commands of README, which is an overview, and of all pages."""
    for path in (README, *sorted(DOCS.rglob("*.md"))):
        for block in blocks(path.read_text(encoding="utf-8")):
            if block.language == "console":
                own = block._replace(marks={"overview": "README"}) if path == README else block
                yield str(path.relative_to(ROOT)), own


def count_marks(shown: Iterable[Block]) -> dict[str, int]:
    """Return how many blocks are run, and how many are not, by their mark."""
    kinds = ("not-run", "overview", "long")
    marks = [next((kind for kind in kinds if kind in block.marks), "run") for block in shown]
    return {kind: marks.count(kind) for kind in ("run", *kinds)}


def page() -> str:
    """Return the text of the page."""
    shown = list(shown_blocks())
    rows = (
        f"| {name.removeprefix('docs/')} | `{_first(block)}` | {block.marks['not-run']} |"
        for name, block in shown
        if "not-run" in block.marks
    )
    return _PAGE.format(**count_marks(block for _, block in shown), rows="\n".join(rows))


def _first(block: Block) -> str:
    return block.text.split("\n")[0].removeprefix("$ ").replace("|", "\\|")
