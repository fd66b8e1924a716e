"""Measuring two commands side by side, and judging their ratio.

Only ``seconds`` runs a command; the rest is pure.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from toolkit import shell
from toolkit.model.base import Model


class Side(Model, frozen=True, kw_only=True):
    """One of two commands that do the same work.

    Attributes:
        name: who it is, with its version.
        argv: the command, as it is timed: the whole process, from its start to its end.
        shown: the command as people would write it.
    """

    name: str
    argv: tuple[str, ...]
    shown: str


class Comparison(Model, frozen=True, kw_only=True):
    """Two commands to compare, and the largest share of the peer's time that we may take."""

    what: str
    ours: Side
    peer: Side
    bar: float


class Times(Model, frozen=True, kw_only=True):
    """Seconds of one side over all runs; of ratios, no seconds."""

    median: float
    smallest: float
    largest: float


class Outcome(Model, frozen=True, kw_only=True):
    """A measured comparison.

    ``ratio`` is that of each pair of adjacent runs, so that a slow minute of the machine weighs on
    both.
    """

    what: str
    ours: Times
    ours_name: str
    ours_command: str
    peer: Times
    peer_name: str
    peer_command: str
    ratio: Times
    bar: float
    held: bool
    runs: int


def times(values: Sequence[float]) -> Times:
    """Return the median, the smallest and the largest of some values."""
    return Times(median=statistics.median(values), smallest=min(values), largest=max(values))


def seconds(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float = 120
) -> float:
    """Wall time of a whole process.

    Raises:
        CommandFailedError: it failed; a benchmark of something that does not work is worth nothing.
    """
    started = time.perf_counter()
    shell.run(argv, cwd=cwd, env=env, timeout=timeout)
    return time.perf_counter() - started


def alternate(
    ours: Callable[[], float], peer: Callable[[], float], *, runs: int, warm_ups: int = 1
) -> list[tuple[float, float]]:
    """Take turns, ours first; what the first turns cost (caches, byte code) is thrown away."""
    pairs = [(ours(), peer()) for _ in range(warm_ups + runs)]
    return pairs[warm_ups:]


def judge(comparison: Comparison, pairs: Sequence[tuple[float, float]]) -> Outcome:
    """Return the outcome of the measured pairs: the median ratio decides."""
    ratio = times([ours / peer for ours, peer in pairs])
    return Outcome(
        what=comparison.what,
        ours=times([ours for ours, _ in pairs]),
        ours_name=comparison.ours.name,
        ours_command=comparison.ours.shown,
        peer=times([peer for _, peer in pairs]),
        peer_name=comparison.peer.name,
        peer_command=comparison.peer.shown,
        ratio=ratio,
        bar=comparison.bar,
        held=ratio.median <= comparison.bar,
        runs=len(pairs),
    )


def of_medians(outcome: Outcome) -> Outcome:
    """Judge an outcome by the ratio of both medians; smallest and largest stay those of the pairs.

    For what starts on machines that are busy by themselves: one pair in which the other side waited
    for something says little.
    """
    ratio = outcome.ours.median / outcome.peer.median
    return msgspec.structs.replace(
        outcome,
        ratio=Times(median=ratio, smallest=outcome.ratio.smallest, largest=outcome.ratio.largest),
        held=ratio <= outcome.bar,
    )


def measure(comparison: Comparison, *, runs: int, cwd: Path, env: Mapping[str, str]) -> Outcome:
    """Run both sides in turns and judge them."""
    pairs = alternate(
        lambda: seconds(comparison.ours.argv, cwd=cwd, env=env),
        lambda: seconds(comparison.peer.argv, cwd=cwd, env=env),
        runs=runs,
    )
    return judge(comparison, pairs)


def ourselves() -> tuple[str, ...]:
    """Return the command as users call it: the one that belongs to this Python."""
    beside = Path(sys.executable).with_name("toolkit")
    program = str(beside) if beside.is_file() else shutil.which("toolkit")
    return (program,) if program else (sys.executable, "-m", "toolkit")


def environment(given: Mapping[str, str], byte_code: Path) -> dict[str, str]:
    """Return the environment of both sides: no settings of Python, and a byte-code cache.

    The warm-up fills the cache.

    Without it an editable checkout, or a shell with PYTHONDONTWRITEBYTECODE, would compile our code
    in every run and the peer's in none.
    """
    clean = {
        name: value for name, value in given.items() if not name.startswith(("PYTHON", "TOOLKIT_"))
    }
    images = {
        name: given[name] for name in ("TOOLKIT_IMAGES", "TOOLKIT_CLUSTER_DIR") if name in given
    }
    return {**clean, **images, "PYTHONPYCACHEPREFIX": str(byte_code)}
