"""What happens to a training after its first minute: the last rank saves, and a run is repeated."""

from __future__ import annotations

import difflib
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.ranks import wait_for

pytestmark = pytest.mark.usefixtures("cluster")

# A rank works for longer than srun waits by default, and than the site's WaitTime.
SAVING = """\
import os, pathlib, sys, time
rank = next(int(os.environ[name]) for name in ("RANK", "HOROVOD_RANK", "SLURM_PROCID") if name in os.environ)
if rank == 0:
    time.sleep(65)
    pathlib.Path(f"checkpoint-{sys.argv[1]}").write_text("whole")
"""
FAILING = """\
import os, sys, time
if os.environ["SLURM_PROCID"] == "1":
    sys.exit(3)
time.sleep(300)
"""


# The others have ended, and rank 0 goes on until it is told not to.
EVALUATING = """\
import os, pathlib, time
if int(os.environ["SLURM_PROCID"]) == 0:
    print("evaluates", flush=True)
    while not pathlib.Path("go").exists():
        time.sleep(0.1)
"""


def test_a_rank_goes_on_when_the_others_ended_long_ago_and_the_job_says_so(
    toolkit, pytorch_image, shared_dir
):
    """It takes more than a minute, since srun's limit was a minute; jobs of four launchers take it together."""
    (shared_dir / "evaluate.py").write_text(EVALUATING)
    (shared_dir / "save.py").write_text(SAVING)
    image = ("--image", str(pytorch_image))
    shape = "--nodes 2 --ntasks-per-node 2 --nodelist nid[001-002] --launcher srun --time 5"
    words = ("run", "--detach", *image, *shape.split(), "evaluate.py")
    assert toolkit(*words, cwd=shared_dir).returncode == 0
    saving = ("horovod", "horovod-gloo", "none")
    for launcher in saving:
        script = ("python3", "save.py") if launcher == "none" else ("save.py",)
        shape = "--nodes 2 --ntasks-per-node 2 --cpus-per-task 1 --launcher"
        done = toolkit(
            *("run", "--detach", *image, *shape.split(), launcher, "--job-name", launcher),
            *("--", *script, launcher),
            cwd=shared_dir,
        )
        assert done.returncode == 0, done.stderr
    told = re.compile(r"ranks 1-3 ended \d min ago; rank 0 is still running")

    def message() -> str:
        rows = json.loads(toolkit("ps", "--json", cwd=shared_dir).stdout)
        return str(next(row["message"] for row in rows if row["run"] == "evaluate-0001"))

    with ThreadPoolExecutor() as pool:
        following = pool.submit(toolkit, "logs", "-f", "evaluate-0001", cwd=shared_dir, timeout=240)
        try:
            wait_for(lambda: told.fullmatch(message()), "ps to tell it", seconds=150, says=message)
            explained = toolkit("explain", "evaluate-0001", cwd=shared_dir).stdout
            assert re.search(f"{told.pattern}: toolkit stacks evaluate-0001", explained), explained
            time.sleep(25)  # follow looks less often
        finally:
            (shared_dir / "go").touch()
        done = following.result()
    assert done.returncode == 0, done.stderr
    assert len(re.findall(f"waiting +{told.pattern}: toolkit stacks", done.stderr)) == 1
    assert message() == ""
    outcome = json.loads((shared_dir / "runs/evaluate-0001/outcome.json").read_text())
    assert outcome["ranks"] == {
        "nid001": [0, 1],
        "nid002": [2, 3],
    }  # also those that printed nothing
    for launcher in saving:
        done = toolkit("logs", "-f", f"{launcher}-0001", cwd=shared_dir)
        assert done.returncode == 0, (launcher, done.stdout, done.stderr)
        assert (shared_dir / f"checkpoint-{launcher}").read_text() == "whole"


def test_a_rank_that_fails_ends_the_others_at_once(launch, pytorch_image, shared_dir):
    (shared_dir / "fail.py").write_text(FAILING)
    done = launch(pytorch_image, "--launcher srun --ntasks-per-node 2 fail.py")
    assert done.returncode == 3, done.stdout + done.stderr


def planned_lines(shared_dir: Path, name: str) -> list[str]:
    """Return a run's script without what names the run itself."""
    text = (shared_dir / "runs" / name / "job.sbatch").read_text()
    return text.replace(name, "NAME").splitlines()


def test_a_run_that_is_repeated_stays_the_same(toolkit, shared_dir, toolkit_env):
    """Four times, each a repetition of the one before, while the settings change around it."""
    (shared_dir / "data").mkdir()
    settings = shared_dir / "toolkit.toml"
    settings.write_text(
        'runtime = "none"\nlauncher = "none"\narguments = ["--epochs", "3"]\nbind = ["data"]\n'
        'time = "0:10:00"\nenv = { STEP = "one" }\n'
    )
    done = toolkit(*"run --launcher none --cpus-per-task 2 -- echo".split(), cwd=shared_dir)
    assert done.returncode == 0, done.stderr
    first = planned_lines(shared_dir, "echo-0001")
    env = toolkit_env
    for number in range(1, 5):
        if number == 3:
            settings.write_text(
                'arguments = ["--epochs", "4"]\ntime = "0:20:00"\nenv = { STEP = "two" }\n'
            )
            env = {**toolkit_env, "TOOLKIT_CPUS_PER_TASK": "1", "TOOLKIT_NODES": "2"}
        done = toolkit("run", f"runs/echo-{number:04}", cwd=shared_dir, env=env)
        assert done.returncode == 0, done.stderr
        again = planned_lines(shared_dir, f"echo-{number + 1:04}")
        assert again == first, "\n".join(difflib.unified_diff(first, again, lineterm=""))
        assert ("not taken" in done.stderr) == (number >= 3), done.stderr
    assert "time (toolkit.toml)" in done.stderr
    assert "nodes (environment)" in done.stderr
    assert "cpus_per_task" not in done.stderr, "an option was given for it"
    changed = toolkit(
        *"run --time 0:20:00 --dry-run --json runs/echo-0003".split(), cwd=shared_dir, env=env
    )
    assert "--time=0:20:00" in json.loads(changed.stdout)["script"], changed.stderr
