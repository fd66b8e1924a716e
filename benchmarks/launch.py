"""Measure the time from ``sbatch`` to the first all-reduce: our script and a handwritten one.

Both start the same ranks of the same script in the same image on the same nodes, in turns, one job
at a time. What is timed begins before sbatch is called and ends when the first rank has the sum, by
the node's clock; nodes and login node need the same time. Planning is not in it: `python -m
benchmarks.cli` measures that. ``throughput`` compares what the ranks then do, in the container and
without one.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from benchmarks import cluster, measure, peers, venv
from benchmarks.measure import environment, ourselves
from toolkit import __version__, shell
from toolkit.cli import console
from toolkit.cli.main import main
from toolkit.errors import CommandFailedError
from toolkit.images.store import store
from toolkit.shell import Progress

LAUNCHERS = ("srun", "torchrun")
LAUNCH_BAR, THROUGHPUT_BAR = 1.05, 0.99
SCRIPTS = Path(__file__).with_name("handwritten")
_PATIENCE = (
    180.0  # seconds until a job has done what is measured, on a machine that is busy otherwise
)


@dataclass(frozen=True)
class Setting:
    """The directory, the cluster and the image of one measurement.

    Attributes:
        place: a directory that all nodes see.
        prefix: the words before a command that bring it onto the cluster.
        image: path of the SIF.
        ours: environment of our own command, with a place for byte code.
        env: of Slurm's commands, and so of the jobs by hand, which inherit it.
    """

    place: Path
    prefix: tuple[str, ...]
    image: str
    ours: Mapping[str, str]
    env: Mapping[str, str]


def run(
    image: str,
    launchers: tuple[str, ...],
    runs: int,
    progress: Progress,
    *,
    throughput: bool = False,
) -> list[measure.Outcome]:
    """Measure the launchers ``runs`` times each; with ``throughput`` also the training.

    Raises:
        ImageMissingError: the image is not built.
        ToolkitError: something that is compared does not work; its log is in the details.
    """
    cache = peers.cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    image_file = store.find(image)
    host = venv.made(cache / "venvs", image_file, progress) if throughput else None
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=cache, prefix="launch-")))
        for script in SCRIPTS.iterdir():
            if script.is_file():
                shutil.copy(script, place)
        prefix = stack.enter_context(cluster.running(progress, cwd=place))
        ours = environment(os.environ, cache / "byte-code") | {"TOOLKIT_CLUSTER": cluster.NAME}
        # A directory for byte code, given to a container by hand, would be read by its Python in
        # place of what is in the image.
        env = {name: value for name, value in ours.items() if not name.startswith("PYTHON")}
        setting = Setting(place, prefix, image_file.path, ours, env)
        measured = [_launch(setting, name, runs, progress) for name in launchers]
        return measured + ([_throughput(setting, host, runs, progress)] if host else [])


def _side(setting: Setting, name: str, words: tuple[str, ...], script: str, result: str) -> Path:
    """Write the script of `toolkit run` for one side, and the directory that a run would have."""
    directory = setting.place / "runs" / f"{name}-0001"
    argv = [
        *ourselves(),
        "run",
        "--dry-run",
        "--image",
        setting.image,
        "--job-name",
        name,
        *words,
        script,
        result,
    ]
    text = shell.run(argv, cwd=setting.place, env=setting.ours, timeout=60).stdout
    (directory / "logs").mkdir(parents=True)
    (directory / "job.sbatch").write_text(text, encoding="utf-8")
    return directory / "job.sbatch"


def _launch(setting: Setting, launcher: str, runs: int, progress: Progress) -> measure.Outcome:
    words = (
        "--nodes",
        "2",
        "--ntasks-per-node",
        "1",
        "--cpus-per-task",
        "1",
        "--time",
        "10",
        "--launcher",
        launcher,
    )
    mine = _side(setting, f"first-{launcher}", words, "first.py", "ours.stamp")
    by_hand = (f"{launcher}.sbatch", setting.image, "first.py", "peer.stamp")
    comparison = measure.Comparison(
        what=f"launch by {launcher}",
        ours=measure.Side(
            name=f"toolkit {__version__}",
            argv=(str(mine),),
            shown=f"sbatch job.sbatch  # --launcher {launcher}",
        ),
        peer=measure.Side(
            name="by hand", argv=by_hand, shown=f"sbatch {launcher}.sbatch IMAGE first.py"
        ),
        bar=LAUNCH_BAR,
    )
    progress.begin(comparison.what, f"{runs} jobs and {runs} by hand")
    pairs = measure.alternate(
        partial(seconds_to, setting, (str(mine),), "ours.stamp", _epoch),
        partial(seconds_to, setting, by_hand, "peer.stamp", _epoch),
        runs=runs,
    )
    progress.end()
    return measure.of_medians(measure.judge(comparison, pairs))


def _throughput(setting: Setting, host: Path, runs: int, progress: Progress) -> measure.Outcome:
    """Measure the seconds for one sample, so that less is better, as in the other measurements.

    The bar is the reciprocal of that of samples per second.
    """
    words = (
        "--nodes",
        "1",
        "--ntasks-per-node",
        "2",
        "--cpus-per-task",
        "1",
        "--time",
        "10",
        "--launcher",
        "torchrun",
    )
    mine = _side(setting, "throughput", words, "throughput.py", "ours.result")
    on_host = ("host.sbatch", str(host / "bin/torchrun"), "throughput.py", "peer.result")
    comparison = measure.Comparison(
        what="training",
        ours=measure.Side(
            name="in the container",
            argv=(str(mine),),
            shown="sbatch job.sbatch  # --launcher torchrun",
        ),
        peer=measure.Side(
            name="on the host",
            argv=on_host,
            shown="sbatch host.sbatch VENV/bin/torchrun throughput.py",
        ),
        bar=1 / THROUGHPUT_BAR,
    )
    progress.begin(comparison.what, f"{runs} jobs in the container and {runs} on the host")
    pairs = measure.alternate(
        partial(seconds_to, setting, (str(mine),), "ours.result", _per_sample),
        partial(seconds_to, setting, on_host, "peer.result", _per_sample),
        runs=runs,
    )
    progress.end()
    return measure.of_medians(measure.judge(comparison, pairs))


def _epoch(text: str, began: float) -> float:
    """From the moment before sbatch to the one that the first rank wrote down."""
    return float(text) - began


def _per_sample(text: str, began: float) -> float:
    del began
    return 1 / float(json.loads(text)["samples_per_second"])


def seconds_to(
    setting: Setting, words: tuple[str, ...], result: str, read: Callable[[str, float], float]
) -> float:
    """Submit a script, wait until its job has ended, and read the ``result`` that it wrote.

    Raises:
        CommandFailedError: the job ended without it, or took too long.
    """
    path = setting.place / result
    path.unlink(missing_ok=True)
    began = time.time()
    submitted = shell.run(
        [*setting.prefix, "sbatch", "--parsable", *words],
        cwd=setting.place,
        env=setting.env,
        timeout=60,
    )
    job = submitted.stdout.strip().split(";")[0]
    waiting = time.monotonic() + _PATIENCE
    while _queued(setting, job):
        if time.monotonic() > waiting:
            shell.run([*setting.prefix, "scancel", job], env=setting.env, check=False)
            raise CommandFailedError(
                f"job {job} took longer than {_PATIENCE:g} s",
                place=words[0],
                details=list(_log(setting, job)),
            )
        time.sleep(0.3)
    if not path.is_file():
        raise CommandFailedError(
            f"job {job} ended without a result", place=words[0], details=list(_log(setting, job))
        )
    return read(path.read_text(encoding="utf-8"), began)


def _queued(setting: Setting, job: str) -> bool:
    """Return whether a job has not ended.

    The nodes must be free again before the next job is timed.
    """
    output = shell.run(
        [*setting.prefix, "squeue", "--noheader", f"--jobs={job}", "--format=%T"],
        env=setting.env,
        check=False,
    )
    return bool(output.stdout.strip())


def _log(setting: Setting, job: str) -> Iterator[str]:
    for path in (
        *setting.place.glob(f"*-{job}.log"),
        *setting.place.glob(f"runs/*/logs/{job}*.log"),
    ):
        yield from path.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]


@click.command("launch")
@click.option(
    "--image",
    metavar="NAME|PATH",
    default="pytorch_cpu",
    show_default=True,
    help="The image of both sides.",
)
@click.option(
    "--launcher",
    type=click.Choice(LAUNCHERS),
    multiple=True,
    help="Only this one; may be given again.",
)
@click.option(
    "--throughput",
    is_flag=True,
    help="Also training by 2 ranks, in the container and in a venv with the same packages (700 MB, "
    "once).",
)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=7,
    show_default=True,
    help="Jobs of each side, in turns.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    image: str, launcher: tuple[str, ...], throughput: bool, runs: int, as_json: bool
) -> int:
    """Measure the time from `sbatch` to the end of the first all-reduce, 2 nodes x 1 rank.

    Our script and a handwritten one run in the same image.

    \b
      srun      ours by --launcher srun      and  srun apptainer exec ... python3
      torchrun  ours by --launcher torchrun  and  srun apptainer exec ... torchrun

    \b
    Examples:
      python -m benchmarks.launch
      python -m benchmarks.launch --launcher srun --runs 15 --json
      python -m benchmarks.launch --throughput

    The scripts by hand are in benchmarks/handwritten. A local cluster is brought up and taken down
    again. The exit code is 1 if a bar is missed.
    """
    with console.Steps() as steps:
        outcomes = run(image, launcher or LAUNCHERS, runs, steps, throughput=throughput)
    if as_json:
        import msgspec

        console.out_json(msgspec.to_builtins(outcomes))
    else:
        show(outcomes)
    return 0 if all(outcome.held for outcome in outcomes) else 1


def show(outcomes: list[measure.Outcome]) -> None:
    """Print a line for each comparison.

    Launches are shown in seconds, trainings in samples per second, both with the ratio that has a
    bar.
    """
    console.out(
        console.table(
            ("what", "ours", "peer", "ratio (pairs)", "bar", ""),
            [_row(outcome) for outcome in outcomes],
        )
    )
    runs = outcomes[0].runs
    console.out(
        f"Medians (smallest-largest) of {runs} jobs of each side, in turns after a warm-up; the "
        "ratio is that of the medians."
    )


def _row(outcome: measure.Outcome) -> tuple[str, ...]:
    trained = outcome.what == "training"
    shown = _samples if trained else _seconds
    ratio, bar = outcome.ratio, outcome.bar
    return (
        outcome.what,
        f"{outcome.ours_name}: {shown(outcome.ours)}" if trained else shown(outcome.ours),
        f"{outcome.peer_name}: {shown(outcome.peer)}",
        f"{1 / ratio.median:.3f} ({1 / ratio.largest:.3f}-{1 / ratio.smallest:.3f})"
        if trained
        else f"{ratio.median:.3f} ({ratio.smallest:.3f}-{ratio.largest:.3f})",
        f"at least {1 / bar:.2f}" if trained else f"at most {bar:.2f}",
        "held" if outcome.held else "missed",
    )


def _seconds(times: measure.Times) -> str:
    return f"{times.median:.2f} s ({times.smallest:.2f}-{times.largest:.2f})"


def _samples(times: measure.Times) -> str:
    return f"{1 / times.median:.1f} samples/s ({1 / times.largest:.1f}-{1 / times.smallest:.1f})"


if __name__ == "__main__":
    main(command, "python -m benchmarks.launch")
