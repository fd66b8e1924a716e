"""`toolkit bench scale` on the cluster: a training of known scaling, and one of the exercises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolkit.bench.scale.directory import read_study
from toolkit.bench.scale.report import series, table

pytestmark = pytest.mark.usefixtures("cluster")
JOBS = Path(__file__).parents[2] / "jobs"
PACED = Path(__file__).with_name("paced.py")
SLEEPS = ("--count-oversubscribed", "its ranks sleep")


def words(directory: Path, image: Path, *more: str) -> tuple[str, ...]:
    script = directory / "paced.py"
    script.write_bytes(PACED.read_bytes())
    chosen = (*"bench scale --launcher srun --time 5 --json --image".split(), str(image))
    return (*chosen, *more, str(script))


def test_a_killed_study_goes_on(toolkit, started, pytorch_image, shared_dir):
    options = (*"--nodes 1,2 --runs 1 --arguments".split(), "--hold 2")
    chosen = words(shared_dir, pytorch_image, *options)
    planned = toolkit(*chosen, "--dry-run", cwd=shared_dir)
    assert planned.returncode == 0, planned.stderr
    hours = [(row["ranks"], row["hours"]) for row in json.loads(planned.stdout)]
    assert hours == [(1, 0.08), (2, 0.17)]
    assert not (shared_dir / "scale").exists()
    # The first run is measured, and the job of the second one runs.
    samples = shared_dir / "scale/paced/samples"
    with started(*chosen, cwd=shared_dir) as study:
        for text in study.stderr:
            if text.startswith("running") and len(list(samples.glob("*.json"))) == 1:
                break
        study.kill()
    kept = json.loads((samples.parent / "report.json").read_text())["samples"]
    assert [sample["point"] for sample in kept] == ["weak-srun-1xjob"]
    with started(*chosen, cwd=shared_dir) as study:
        assert any(line.startswith("resumed") for line in study.stderr)
        (shared_dir / "goes-on").touch()
        printed, said = study.communicate(timeout=120)
    assert study.returncode == 0, said
    measured = json.loads(printed)["samples"]
    assert (len(measured), measured[0]) == (2, kept[0])
    runs = sorted(path.name for path in (shared_dir / "runs").iterdir())
    assert runs == ["scale-paced-0001", "scale-paced-0002"]
    # The last of 12 values is the result of the script, which may be the mean of the others.
    assert all(sample["values"] == 11 and sample["warm_up"] >= 2 for sample in measured)


def test_the_serial_fraction_is_found(toolkit, pytorch_image, shared_dir):
    """0.03 s of 0.3 s are serial: 10 %. The ranks sleep, so that two cores are enough for eight."""
    options = "--nodes 1,2 --ntasks-per-node 1,2,4 --strong --runs 1 --no-hook".split()
    work = ("--arguments", "--serial 0.03 --parallel 0.27 --steps 10 --warm-up 1")
    chosen = words(shared_dir, pytorch_image, *options, *work, *SLEEPS)
    done = toolkit(*chosen, cwd=shared_dir, timeout=240)
    assert done.returncode == 0, done.stderr
    study = read_study(shared_dir / "scale/paced")
    (entry,) = series(study)
    assert [row.size for row in entry.counting] == [1, 2, 2, 4, 4, 8]
    header, rows = table(study, entry)
    largest = float(rows[-1][header.index("serial")].rstrip("%"))
    assert abs(largest - 10) <= 3
    page = (shared_dir / "scale/paced/report.html").read_text()
    assert "its ranks sleep" in page


def test_the_ranks_of_pytorch_are_recorded_and_a_slow_one_is_named(
    toolkit, pytorch_image, shared_dir
):
    """The exercise on digits, whose rank 1 takes longer to load a batch: steps of its own work.

    What stops a rank from outside (signals, quotas) meets it in Gloo's threads as well, which looks
    like the network: how much of it depends on what else the machine does.
    """
    exercise = (JOBS / "digits-ddp/train.py").read_text()
    loads = "        x, y = x.to(device), y.to(device)\n"
    assert exercise.count(loads) == 1
    script = shared_dir / "train.py"
    script.write_text(exercise.replace(loads, f"{loads}        time.sleep(0.1 * rank)\n"))
    options = "bench scale --launcher torchrun --nodes 2 --ntasks-per-node 1 --time 10 --runs 1"
    work = ("--image", str(pytorch_image), "--arguments", "--epochs 2", str(script))
    done = toolkit(*options.split(), *work, cwd=shared_dir)
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
