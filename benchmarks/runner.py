"""Measure commands in turns with a peer's, hold the ratio to a bar, and print a table."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from toolkit import shell
from toolkit.localcluster.access import access

TOOLKIT = (sys.executable, "-m", "toolkit")
CLUSTER = "bench"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toolkit" / "bench"
# Pinned, so that a bar means the same next year. torchx plans and renders without torch.
PEERS = ("torchx==0.7.0", "hpccm==26.5.0", "submitit==1.5.4")


class Row(NamedTuple):
    """One figure: of us, of a peer if there is one, and the bar.

    Attributes:
        ours: as people read it: ``0.2 s``.
        peer: as people read it, with the ratio; empty without a peer.
        bar: the largest value that is good; empty where nothing is judged.
        held: the bar is held.
    """

    what: str
    ours: str
    peer: str = ""
    bar: str = ""
    held: bool = True


def compare(
    what: str,
    ours: Callable[[], float],
    peer: tuple[str, Callable[[], float]],
    *,
    bar: float,
    runs: int,
) -> Row:
    """Time both sides in turns, and judge the median of the ratios of adjacent runs.

    A slow minute of the machine weighs on both of a pair. What the first turn costs (caches, byte
    code) is thrown away.
    """
    name, theirs = peer
    print(f"{what}: {runs} runs and {runs} of {name}", file=sys.stderr, flush=True)
    pairs = [(ours(), theirs()) for _ in range(1 + runs)][1:]
    own, other = (_shown(values) for values in zip(*pairs, strict=True))
    ratios = [mine / its for mine, its in pairs]
    ratio = statistics.median(ratios)
    text = f"{name}: {other}, ratio {ratio:.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    return Row(what, own, text, f"{bar:g}", ratio <= bar)


def _shown(values: Sequence[float]) -> str:
    digits = 3 if max(values) < 10 else 1
    return (
        f"{statistics.median(values):.{digits}f} s "
        f"({min(values):.{digits}f}-{max(values):.{digits}f})"
    )


def seconds(argv: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float = 120) -> float:
    """Return the wall time of a whole process.

    Raises:
        CommandFailedError: it failed: a time of what does not work is worth nothing.
    """
    began = time.perf_counter()
    shell.run(argv, cwd=cwd, env=env, timeout=timeout)
    return time.perf_counter() - began


def environment(**more: str) -> dict[str, str]:
    """Return the environment of both sides: no settings of Python, and a cache of byte code.

    Without the cache an editable checkout, or a shell with PYTHONDONTWRITEBYTECODE, would compile
    our code in every run and the peer's in none.
    """
    settings = ("TOOLKIT_IMAGES", "TOOLKIT_CLUSTER_DIR")
    clean = {
        name: value
        for name, value in os.environ.items()
        if name in settings or not name.startswith(("PYTHON", "TOOLKIT_"))
    }
    return {**clean, "PYTHONPYCACHEPREFIX": str(CACHE / "byte-code"), **more}


@cache
def peers() -> Path:
    """Return the programs of the peers, in an environment of their own."""
    directory = CACHE / "peers"
    subprocess.run((sys.executable, "-m", "venv", directory), check=True)
    subprocess.run((directory / "bin/pip", "install", "--quiet", *PEERS), check=True)
    return directory / "bin"


@contextmanager
def cluster(cwd: Path, *shape: str) -> Iterator[tuple[str, ...]]:
    """Keep a local cluster up in this context; yield the words that run a command on it in cwd."""
    os.environ["TOOLKIT_CLUSTER"] = CLUSTER
    subprocess.run((*TOOLKIT, "cluster", "up", *shape), check=True)
    try:
        yield access(CLUSTER, str(cwd)).prefix
    finally:
        subprocess.run((*TOOLKIT, "cluster", "down"), check=False)


def report(rows: Sequence[Row]) -> int:
    """Print the rows; return 1 if a bar is missed."""
    header = ("", "TOOLKIT", "PEER", "BAR", "")
    verdict = {True: "held", False: "MISSED"}
    cells = [header, *((*row[:4], verdict[row.held] if row.bar else "") for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        print("  ".join(padded).rstrip())
    return 0 if all(row.held for row in rows) else 1
