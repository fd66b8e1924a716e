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
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks import runner
from toolkit import shell
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
        CommandFailedError: the job failed, or took too long.
    """
    began = time.time()
    argv = [*prefix, "sbatch", "--wait", *words]
    shell.run(argv, cwd=result.parent, env=env, timeout=_PATIENCE)
    return float(result.read_text(encoding="utf-8")) - began


def main() -> int:
    """Measure and print; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=7, help="jobs of each side (default: 7)")
    runs = parser.parse_args().runs
    image = find("pytorch_cpu").path
    # A directory for byte code would be read by the Python of a container that is started by hand.
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    place = runner.CACHE / "launch"  # kept until the next call, with the logs of the jobs
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(SCRIPTS, place)
    rows = []
    with runner.cluster(place, "--nodes", "2") as prefix:
        for launcher in LAUNCHERS:
            words = {
                "ours": (str(_script(launcher, image, place)),),
                "peer": (f"{launcher}.sbatch", image, "first.py", "peer"),
            }
            ours, peer = (
                partial(seconds_to, place / name, prefix, words[name], env) for name in words
            )
            what = f"launch by {launcher}"
            rows.append(runner.compare(what, ours, ("by hand", peer), bar=BAR, runs=runs))
    return runner.report(rows)


if __name__ == "__main__":
    sys.exit(main())
