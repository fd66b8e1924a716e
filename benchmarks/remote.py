"""Benchmark of `toolkit --on LOGIN ps` beside ssh over the same connection.

``python -m benchmarks.remote LOGIN`` in a tree that was sent. Both run the login node's toolkit in
the same directory; they take turns, so that load meets both.
"""

from __future__ import annotations

import os
import statistics
import sys
from functools import partial
from pathlib import Path

from benchmarks import runner
from toolkit import git
from toolkit.cli.remote import HOME, enter
from toolkit.remote import _COMMAND, connect, control_path

ROUNDS = 15


def main(login: str) -> None:
    """Print the medians of both, and the median of their differences."""
    connect(login, print)
    there = f"{enter(login, git.top(Path.cwd()), Path.cwd())}; {HOME}/toolkit ps"
    alone = ["ssh", *_COMMAND, "-S", str(control_path(login)), "--", login, there]
    ours = [*runner.TOOLKIT, "--on", login, "ps"]
    seconds = partial(runner.seconds, cwd=Path.cwd(), env=os.environ)
    pairs = [(seconds(alone), seconds(ours)) for _ in range(ROUNDS)]
    added = statistics.median(second - first for first, second in pairs)
    first, second = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"ssh alone {first:.2f} s, toolkit --on {second:.2f} s, added {added:.2f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
