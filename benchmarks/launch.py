"""Measure from ``sbatch`` to the first all-reduce, beside a script by hand: `make bench-launch`.

Both start the same ranks of the same script in the same image on the same two nodes, in turns, one
job at a time. What is timed begins before sbatch is called and ends when the first rank has the
sum. Planning is not in it: `make bench-cli` measures that.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks import runner
from toolkit import shell
from toolkit.errors import CommandFailedError
from toolkit.images.store.store import find

LAUNCHERS = ("srun", "torchrun")
BAR = 1.05
SCRIPTS = Path(__file__).with_name("handwritten")
_PATIENCE = 180.0  # seconds for one job, on a machine that is busy otherwise
_SHAPE = ("--nodes", "2", "--ntasks-per-node", "1", "--cpus-per-task", "1", "--time", "10")


def _script(launcher: str, image: str, place: Path) -> Path:
    """Write the script of `toolkit run`, and the directory that its run would have."""
    name = f"first-{launcher}"
    directory = place / "runs" / f"{name}-0001"
    words = ("run", "--dry-run", "--image", image, "--job-name", name, "--launcher", launcher)
    argv = [*runner.TOOLKIT, *words, *_SHAPE, "first.py", "ours"]
    env = {**os.environ, "TOOLKIT_CLUSTER": runner.CLUSTER}
    text = shell.run(argv, cwd=place, env=env, timeout=60).stdout
    (directory / "logs").mkdir(parents=True)
    (directory / "job.sbatch").write_text(text, encoding="utf-8")
    return directory / "job.sbatch"


def seconds_to(
    result: Path, prefix: Sequence[str], words: Sequence[str], env: Mapping[str, str]
) -> float:
    """Submit a script, wait until its job has ended, and return the seconds to what it wrote.

    Raises:
        CommandFailedError: the job ended without a result, or took too long.
    """
    result.unlink(missing_ok=True)
    began, until = time.time(), time.monotonic() + _PATIENCE
    run = partial(shell.run, cwd=result.parent, env=env, timeout=60, check=False)
    job = shell.run([*prefix, "sbatch", "--parsable", *words], cwd=result.parent, env=env)
    number = job.stdout.strip().split(";")[0]
    # The nodes must be free again before the next job is timed.
    while run([*prefix, "squeue", "--noheader", f"--jobs={number}", "--format=%T"]).stdout.strip():
        if time.monotonic() > until:
            run([*prefix, "scancel", number])
            raise CommandFailedError(f"job {number} took longer than {_PATIENCE:g} s")
        time.sleep(0.3)
    if not result.is_file():
        logs = sorted(result.parent.glob(f"**/*{number}*.log"))
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()[-8:]]
        raise CommandFailedError(f"job {number} ended without a result", details=lines)
    return float(result.read_text(encoding="utf-8")) - began


def main() -> int:
    """Measure and print; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--image", default="pytorch_cpu", help="(default: pytorch_cpu)")
    parser.add_argument("--launcher", action="append", choices=LAUNCHERS, help="this one only")
    parser.add_argument("--runs", type=int, default=7, help="jobs of each side (default: 7)")
    given = parser.parse_args()
    image = find(given.image).path
    runner.CACHE.mkdir(parents=True, exist_ok=True)
    # A directory for byte code would be read by the Python of a container that is started by hand.
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    with tempfile.TemporaryDirectory(dir=runner.CACHE, prefix="launch-") as directory:
        place = Path(directory) / "work"
        shutil.copytree(SCRIPTS, place)
        rows = []
        with runner.cluster(place, "--nodes", "2") as prefix:
            for launcher in given.launcher or LAUNCHERS:
                mine = (str(_script(launcher, image, place)),)
                by_hand = (f"{launcher}.sbatch", image, "first.py", "peer")
                ours, peer = (
                    partial(seconds_to, place / name, prefix, words, env)
                    for name, words in (("ours", mine), ("peer", by_hand))
                )
                rows.append(
                    runner.compare(
                        f"launch by {launcher}", ours, ("by hand", peer), bar=BAR, runs=given.runs
                    )
                )
        return runner.report(rows)


if __name__ == "__main__":
    sys.exit(main())
