"""One benchmark from its beginning to its end: peers installed, cluster up, everything measured, cluster down."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from toolkit.bench import cluster, comparisons, measure, peers
from toolkit.progress import Progress


def ourselves() -> tuple[str, ...]:
    """The command as users call it: the one that belongs to this Python."""
    beside = Path(sys.executable).with_name("toolkit")
    found = str(beside) if beside.is_file() else shutil.which("toolkit")
    return (found,) if found else (sys.executable, "-m", "toolkit")


def environment(given: Mapping[str, str], byte_code: Path) -> dict[str, str]:
    """What both sides run in: no settings of Python's, and a place for byte code, which the warm-up fills.

    Without it an editable checkout, or a shell with PYTHONDONTWRITEBYTECODE, would compile our code
    in every run and the peer's in none.
    """
    kept = {
        name: value for name, value in given.items() if not name.startswith(("PYTHON", "TOOLKIT_"))
    }
    images = {
        name: given[name] for name in ("TOOLKIT_IMAGES", "TOOLKIT_CLUSTER_DIR") if name in given
    }
    return {**kept, **images, "PYTHONPYCACHEPREFIX": str(byte_code)}


def run(names: Sequence[str], runs: int, progress: Progress) -> list[measure.Outcome]:
    """Measure the comparisons ``names``, ``runs`` times each.

    Raises:
        ToolkitError: a command that is compared failed, or could not be installed; nothing is judged then.
    """
    cache = peers.cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    peers.install(progress)
    with ExitStack() as stack:
        here = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=cache, prefix="run-")))
        comparisons.prepare(here)
        prefix: tuple[str, ...] = ()
        if comparisons.NEED_CLUSTER.intersection(names):
            prefix = stack.enter_context(cluster.running(progress, cwd=here))
            stack.enter_context(cluster.busy(prefix))
        setting = comparisons.Setting(ourselves(), prefix, comparisons.image(here))
        return [_measure(name, setting, runs, progress, here) for name in names]


def _measure(
    name: str, setting: comparisons.Setting, runs: int, progress: Progress, cwd: Path
) -> measure.Outcome:
    comparison = comparisons.COMPARISONS[name](setting)
    progress.begin(name, f"{runs} runs and {runs} of {comparison.peer.name}")
    try:
        outcome = measure.measure(
            comparison,
            runs=runs,
            cwd=cwd,
            env=environment(os.environ, peers.cache_directory() / "byte-code"),
        )
    except BaseException:
        progress.end("stopped")
        raise
    progress.end()
    return outcome
