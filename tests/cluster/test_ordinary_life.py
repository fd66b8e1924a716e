"""What happens to a training after its first minute: the last rank saves, and a run is repeated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.ranks import outcome

pytestmark = pytest.mark.usefixtures("cluster")

# Rank 0 saves for longer than WaitTime after the others have ended.
SAVING = """\
import os, pathlib, sys, time
rank = next(int(os.environ[name]) for name in ("RANK", "HOROVOD_RANK", "SLURM_PROCID") if name in os.environ)
pathlib.Path(f"ended-{sys.argv[1]}-{rank}").touch()
if rank == 0:
    while len(list(pathlib.Path().glob(f"ended-{sys.argv[1]}-*"))) < 4:
        time.sleep(0.1)
    time.sleep(8)
    pathlib.Path(f"checkpoint-{sys.argv[1]}").write_text("whole")
"""


@pytest.fixture
def impatient(toolkit_env: dict[str, str]) -> Iterator[None]:
    """The cluster at a site whose srun ends a step two seconds after its first task."""
    config = Path(toolkit_env["TOOLKIT_CLUSTER_DIR"], "test/etc/slurm.conf")
    text = config.read_text()
    config.write_text(f"{text}WaitTime=2\n")
    yield
    config.write_text(text)


@pytest.mark.usefixtures("impatient")
def test_a_rank_goes_on_when_the_others_ended_long_ago(toolkit, launch, pytorch_image, shared_dir):
    """What ps, explain and logs -f say of it is in tests/unit/test_stacks.py."""
    (shared_dir / "save.py").write_text(SAVING)
    launchers = ("srun", "horovod", "horovod-gloo", "none")
    shape = "--detach --nodes 2 --nodelist nid[001-002] --ntasks-per-node 2 --cpus-per-task 1"
    for launcher in launchers:
        script = "python3 save.py" if launcher == "none" else "save.py"
        named = f"{shape} --launcher {launcher} --job-name {launcher} -- {script} {launcher}"
        done = launch(pytorch_image, named)
        assert done.returncode == 0, done.stderr
    for launcher in launchers:
        done = toolkit("logs", "-f", f"{launcher}-0001", cwd=shared_dir)
        assert done.returncode == 0, (launcher, done.stdout, done.stderr)
        assert (shared_dir / f"checkpoint-{launcher}").read_text() == "whole"
    # Also those that printed nothing.
    assert outcome(shared_dir, "srun-0001")["ranks"] == {"nid001": [0, 1], "nid002": [2, 3]}


def test_a_run_that_is_repeated_stays_the_same(toolkit, shared_dir, toolkit_env):
    """Also a repetition of a repetition, while the settings change around it."""
    (shared_dir / "data").mkdir()
    settings = shared_dir / "toolkit.toml"
    settings.write_text(
        'runtime = "none"\nlauncher = "none"\narguments = ["--epochs", "3"]\nbind = ["data"]\n'
        'time = "0:10:00"\nenv = { STEP = "one" }\n'
    )

    def script_of(number: int, words: str, env: dict[str, str]) -> str:
        done = toolkit("run", *words.split(), cwd=shared_dir, env=env)
        assert done.returncode == 0, done.stderr
        name = f"echo-{number:04}"
        return (shared_dir / f"runs/{name}/job.sbatch").read_text().replace(name, "NAME")

    first = script_of(1, "--cpus-per-task 2 -- echo", toolkit_env)
    settings.write_text('arguments = ["--epochs", "4"]\nenv = { STEP = "two" }\n')
    env = {**toolkit_env, "TOOLKIT_CPUS_PER_TASK": "1", "TOOLKIT_NODES": "2"}
    assert script_of(2, "runs/echo-0001", env) == first
    assert script_of(3, "runs/echo-0002", env) == first
    words = "run --time 0:20:00 --dry-run --json runs/echo-0003"
    changed = toolkit(*words.split(), cwd=shared_dir, env=env)
    assert "--time=0:20:00" in json.loads(changed.stdout)["script"], changed.stderr
