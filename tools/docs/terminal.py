"""Draw a command and its real output as an SVG of a terminal: `python -m tools.docs picture`."""

from __future__ import annotations

import io
import subprocess

from rich.console import Console
from rich.text import Text

from tools.docs.tested import DOCS, ROOT

_COLUMNS = 96
_ROWS = 26
# rich's own format takes its font from another host; this one is the reader's.
_FORMAT = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def _shortened(lines: list[str]) -> list[str]:
    half = _ROWS // 2
    return lines if len(lines) <= _ROWS else [*lines[:half], "...", *lines[-half:]]


def draw() -> None:
    """Run the training of the first tutorial on the local cluster, and draw what it prints."""
    command = "toolkit run jobs/digits-ddp"
    done = subprocess.run(
        command.split(),
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=True,
    )
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {command}", style="bold"))
    for line in _shortened(done.stdout.rstrip("\n").split("\n")):
        console.print(Text(line), overflow="crop", no_wrap=True)
    path = DOCS / "images" / "first-run.svg"
    console.save_svg(str(path), title="toolkit run", code_format=_FORMAT, unique_id="terminal")
    print(path)
