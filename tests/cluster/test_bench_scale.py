"""`toolkit bench scale` on the cluster: a training of known scaling, and one of the exercises."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolkit.bench.scale import analysis, fits
from toolkit.bench.scale.directory import read_study

pytestmark = pytest.mark.usefixtures("cluster")
JOBS = Path(__file__).parents[2] / "jobs"
DDP = Path(__file__).with_name("ddp.py")
PACED = Path(__file__).with_name("paced.py")
SLEEPS = ("--count-oversubscribed", "its ranks sleep")


def words(directory: Path, image: Path, *more: str) -> tuple[str, ...]:
    script = directory / "paced.py"
    script.write_bytes(PACED.read_bytes())
    chosen = (*"bench scale --launcher srun --time 5 --json --image".split(), str(image))
    return (*chosen, *more, str(script))


def report(directory: Path, name: str = "paced") -> dict[str, Any]:
    read: dict[str, Any] = json.loads((directory / "scale" / name / "report.json").read_text())
    return read


def started(
    chosen: tuple[str, ...],
    directory: Path,
    env: dict[str, str],
    *,
    stdout: int = subprocess.DEVNULL,
) -> subprocess.Popen[str]:
    """A study under way, whose messages can be read."""
    return subprocess.Popen(
        (sys.executable, "-m", "toolkit", *chosen),
        cwd=directory,
        env=env,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def stop_at(
    line: str,
    number: signal.Signals,
    chosen: tuple[str, ...],
    directory: Path,
    env: dict[str, str],
    *,
    measured: int,
) -> tuple[int, str]:
    """Send a study a signal when it has so many measurements and prints a line that begins so."""
    samples = directory / "scale/paced/samples"
    with started(chosen, directory, env) as study:
        assert study.stderr is not None
        for text in study.stderr:
            if text.startswith(line) and len(list(samples.glob("*.json"))) == measured:
                break
        study.send_signal(number)
        rest = study.stderr.read()
    return study.returncode, rest


def test_a_killed_study_goes_on(
    toolkit: Any, toolkit_env: dict[str, str], pytorch_image: Path, shared_dir: Path
) -> None:
    options = (*"--nodes 1,2 --runs 1 --arguments".split(), "--hold 2")
    chosen = words(shared_dir, pytorch_image, *options)
    planned = toolkit(*chosen, "--dry-run", cwd=shared_dir)
    assert planned.returncode == 0, planned.stderr
    assert [(row["ranks"], row["hours"]) for row in json.loads(planned.stdout)] == [
        (1, 0.08),
        (2, 0.17),
    ]
    assert not (shared_dir / "scale").exists()
    # The first run is measured, and the job of the second one runs.
    stop_at("running", signal.SIGKILL, chosen, shared_dir, toolkit_env, measured=1)
    kept = report(shared_dir)["samples"]
    assert [sample["point"] for sample in kept] == ["weak-srun-1xjob"]
    with started(chosen, shared_dir, toolkit_env, stdout=subprocess.PIPE) as study:
        assert study.stderr is not None
        assert any(line.startswith("resumed") for line in study.stderr)
        (shared_dir / "goes-on").touch()
        printed, said = study.communicate(timeout=120)
    assert study.returncode == 0, said
    samples = json.loads(printed)["samples"]
    assert samples[0] == kept[0]
    assert len(samples) == 2
    assert sorted(path.name for path in (shared_dir / "runs").iterdir()) == [
        "scale-paced-0001",
        "scale-paced-0002",
    ]
    # The last of 12 values is the result of the script, which may be the mean of the others.
    assert all(sample["values"] == 11 and sample["warm_up"] >= 2 for sample in samples)
    one, both = (sample["cores"] for sample in samples)
    assert one == both > 0, "the nodes of a local cluster are one machine"


def test_a_study_in_one_allocation_goes_on(
    toolkit: Any, toolkit_env: dict[str, str], pytorch_image: Path, shared_dir: Path
) -> None:
    """Its client is killed and the allocation lives on; then Ctrl-C ends both; then it is completed."""
    options = "--nodes 1,2,3 --runs 2 --one-allocation --no-hook".split()
    work = ("--arguments", "--serial 0.05 --parallel 0 --steps 30 --warm-up 0 --hold 4")
    chosen = words(shared_dir, pytorch_image, *options, *work)
    stop_at("running", signal.SIGKILL, chosen, shared_dir, toolkit_env, measured=0)
    code, said = stop_at("running", signal.SIGINT, chosen, shared_dir, toolkit_env, measured=3)
    assert code == 130, said
    assert "cancelled" in said
    assert "kept       3 runs in scale/paced" in said
    kept = report(shared_dir)["samples"]
    (shared_dir / "goes-on").touch()
    done = toolkit(*chosen, cwd=shared_dir)
    assert done.returncode == 0, done.stderr
    assert "3 runs take turns on 3 nodes" in done.stderr
    samples = json.loads(done.stdout)["samples"]
    assert [sample for sample in samples if sample in kept] == kept
    assert [(sample["nodes"], sample["nodelist"]) for sample in samples] == [
        *[(1, "nid001")] * 2,
        *[(2, "nid[001-002]")] * 2,
        *[(3, "nid[001-003]")] * 2,
    ]
    first, second = sorted({sample["job_id"] for sample in samples})
    assert [sample["job_id"] for sample in samples].count(first) == 3
    states: dict[int, list[str]] = {first: [], second: []}
    for row in json.loads(toolkit("ps", "--json", cwd=shared_dir).stdout):
        states[row["job_id"]].append(row["state"])
    assert states[first].count("COMPLETED") == 3
    assert set(states[first]) == {"COMPLETED", "CANCELLED"}
    assert states[second] == ["COMPLETED"] * 4  # with that of the allocation
    # Nothing is left of the runs whose turn never came.
    runs = [path for path in (shared_dir / "runs").iterdir() if "allocation" not in path.name]
    assert all((run / "part.json").is_file() for run in runs)


def test_a_changed_script_and_another_metric_are_measured(toolkit: Any, shared_dir: Path) -> None:
    """A run that had ended without the metric is neither measured for ever nor taken for another script's."""
    script = shared_dir / "rate.py"
    script.write_text("print('rate 5')")
    options = "bench scale --launcher none --runtime none --nodes 1 --runs 1 --no-hook --json"
    chosen = (*options.split(), str(script))
    done = toolkit(*chosen, cwd=shared_dir)
    assert done.returncode == 95, done.stderr
    script.write_text("print('samples_per_second 7')")
    done = toolkit(*chosen, "--one-allocation", cwd=shared_dir)
    assert done.returncode == 0, done.stderr
    (sample,) = json.loads(done.stdout)["samples"]
    assert (sample["name"], sample["value"]) == ("scale-rate-0002", 7)
    other = (*chosen[:-1], "--directory", "other", "--metric", "rate", str(script))
    assert toolkit(*other, cwd=shared_dir).returncode == 95
    script.write_text("print('rate 5')")
    assert toolkit(*other, cwd=shared_dir).returncode == 0


@pytest.mark.long
def test_the_time_limit_of_an_allocation_loses_no_run(toolkit: Any, shared_dir: Path) -> None:
    """A minute is the shortest limit, which Slurm checks now and then: four runs of 26 seconds exceed it.

    At the limit srun may fail before Slurm stops the allocation's shell: then the exit code is 1.
    """
    script = shared_dir / "sleep.py"
    script.write_text("import time; time.sleep(26); print('samples_per_second 4')")
    options = "bench scale --launcher none --runtime none --nodes 1,2 --runs 2 --time 1 --no-hook"
    chosen = (*options.split(), "--one-allocation", "--json", str(script))
    done = toolkit(*chosen, cwd=shared_dir, timeout=240)
    assert done.returncode in (1, 124), done.stderr
    kept = report(shared_dir, "sleep")["samples"]
    assert 1 <= len(kept) <= 3
    done = toolkit(*chosen, cwd=shared_dir, timeout=240)
    if done.returncode:
        done = toolkit(*chosen, cwd=shared_dir, timeout=240)
    assert done.returncode == 0, done.stderr
    samples = json.loads(done.stdout)["samples"]
    assert [sample for sample in samples if sample in kept] == kept
    assert [(sample["nodes"], sample["number"]) for sample in samples] == [
        *[(1, 1), (1, 2)],
        *[(2, 1), (2, 2)],
    ]


def throttle(rank: int, script: Path, study: subprocess.Popen[str], quota: Path) -> None:
    """Give a rank a part of a core while it trains."""
    throttled: set[int] = set()
    while study.poll() is None:
        processes = Path("/proc").glob("[0-9]*") if is_training(script.parent) else ()
        for pid in [int(path.name) for path in processes if is_rank(path, rank, script)]:
            with contextlib.suppress(ProcessLookupError):
                (quota / "cgroup.procs").write_text(str(pid))
                throttled.add(pid)
        time.sleep(0.1)
    assert throttled


def is_training(directory: Path) -> bool:
    """Whether a rank has recorded its first step, or would record none: only imports come before."""
    runs = [run for run in (directory / "runs").glob("*") if not (run / "outcome.json").exists()]
    records = [run / "scale" for run in runs if (run / "scale").is_dir()]
    return not records or any(True for path in records for _ in path.glob("*.jsonl"))


def is_rank(process: Path, rank: int, script: Path) -> bool:
    """Whether a process is this rank of a script in its directory."""
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
        environment = (process / "environ").read_bytes().split(b"\0")
        cwd = (process / "cwd").readlink()
    except OSError:
        return False
    is_script = b"python" in words[0] and any(
        word.endswith(script.name.encode()) for word in words[1:3]
    )
    return is_script and cwd == script.parent and f"RANK={rank}".encode() in environment


@contextlib.contextmanager
def part_of_a_core() -> Iterator[Path]:
    """A control group with a twentieth of a core for the processes in it, in either version of cgroups."""
    groups = Path("/sys/fs/cgroup")
    is_second = (groups / "cgroup.controllers").is_file()
    own = (groups if is_second else groups / "cpu") / f"toolkit-test-{os.getpid()}"
    own.mkdir()
    try:
        if is_second:
            (own / "cpu.max").write_text("5000 100000")
        else:
            (own / "cpu.cfs_quota_us").write_text("5000")
        yield own
    finally:
        own.rmdir()


def two_ranks(
    source: Path, directory: Path, image: Path, *more: str
) -> tuple[Path, tuple[str, ...]]:
    """A script with DistributedDataParallel on two nodes with one rank each."""
    script = directory / source.name
    script.write_bytes(source.read_bytes())
    options = "bench scale --launcher torchrun --nodes 2 --ntasks-per-node 1 --time 10 --image"
    return script, (*options.split(), str(image), *more, str(script))


def test_the_serial_fraction_is_found(toolkit: Any, pytorch_image: Path, shared_dir: Path) -> None:
    """0.03 s of 0.3 s are serial: 10 %. The ranks sleep, so that two cores are enough for eight."""
    options = "--nodes 1,2 --ntasks-per-node 1,2,4 --strong --runs 1 --no-hook".split()
    work = ("--arguments", "--serial 0.03 --parallel 0.27 --steps 10 --warm-up 1")
    chosen = words(shared_dir, pytorch_image, *options, *work, *SLEEPS)
    done = toolkit(*chosen, cwd=shared_dir, timeout=240)
    assert done.returncode == 0, done.stderr
    study = read_study(shared_dir / "scale/paced")
    (entry,) = analysis.series(study)
    assert [row.size for row in entry.counting] == [1, 2, 2, 4, 4, 8]
    law = fits.fit(entry)
    assert law is not None
    assert law.law == "Amdahl"
    assert abs(law.serial - 0.1) <= 0.02
    page = (shared_dir / "scale/paced/report.html").read_text()
    assert "A prediction, not a measurement" in page
    assert "its ranks sleep" in page


def test_a_slowed_node_is_the_straggler(
    toolkit: Any, pytorch_image: Path, shared_dir: Path
) -> None:
    work = ("--arguments", "--serial 0.1 --parallel 0 --steps 20 --warm-up 0 --slow 1")
    options = "--nodes 3 --runs 1 --no-hook".split()
    done = toolkit(*words(shared_dir, pytorch_image, *options, *work), cwd=shared_dir)
    assert done.returncode == 0, done.stderr
    (sample,) = report(shared_dir)["samples"]
    assert sample["straggler"]["ranks"] == [1]
    assert sample["straggler"]["hosts"] == ["nid002"]
    csv = (shared_dir / "scale/paced/report.csv").read_text()
    assert csv.splitlines()[1].endswith(",1,nid002")


def test_the_ranks_of_pytorch_are_recorded_and_a_slow_one_is_named(
    toolkit: Any, pytorch_image: Path, shared_dir: Path
) -> None:
    """The exercise on digits, whose rank 1 takes longer to load a batch: steps of its own work.

    What stops a rank from outside (signals, quotas) meets it in Gloo's threads as well, which looks
    like the network: how much of it depends on what else the machine does.
    """
    work = ("--runs", "1", "--arguments", "--epochs 2")
    script, chosen = two_ranks(JOBS / "digits-ddp/train.py", shared_dir, pytorch_image, *work)
    loads = "        x, y = x.to(device), y.to(device)\n"
    exercise = script.read_text()
    assert exercise.count(loads) == 1
    script.write_text(exercise.replace(loads, f"{loads}        time.sleep(0.1 * rank)\n"))
    done = toolkit(*chosen, cwd=shared_dir)
    assert done.returncode == 0, done.stderr
    (sample,) = read_study(shared_dir / "scale/train").samples
    steps = 2 * 45  # 1,437 images by 2 ranks of 16
    assert [(times.rank, times.host) for times in sample.ranks] == [(0, "nid001"), (1, "nid002")]
    assert all(steps / 2 <= times.steps <= steps for times in sample.ranks)
    assert all(0 < times.busy_seconds < times.step_seconds for times in sample.ranks)
    assert sample.straggler is not None
    assert (sample.straggler.ranks, sample.straggler.hosts) == ((1,), ("nid002",))
    assert sample.communication.bytes == 4 * ((64 + 1) * 128 + (128 + 1) * 10)
    assert sample.communication.backend == "gloo"
    assert sample.communication.seconds > 0
    assert sample.start_seconds > 0


@pytest.mark.long
def test_a_throttled_node_is_the_straggler_of_most_runs(
    toolkit_env: dict[str, str], pytorch_image: Path, shared_dir: Path
) -> None:
    """Its own work must be most of a step: what slows down Gloo's threads looks like the network."""
    work = (*"--runs 3 --one-allocation --arguments".split(), "--steps 12")
    script, chosen = two_ranks(DDP, shared_dir, pytorch_image, *work)
    with part_of_a_core() as quota, started(chosen, shared_dir, toolkit_env) as study:
        throttle(0, script, study, quota)
        assert study.stderr is not None
        said = study.stderr.read()
    assert study.returncode == 0, said
    found = read_study(shared_dir / "scale/ddp")
    (entry,) = analysis.series(found)
    (remark,) = [text for text in analysis.remarks(entry, found) if "straggler" in text]
    assert "straggler rank 0 on nid001" in remark
