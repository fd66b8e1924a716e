"""Options that a user hands to sbatch, and typed GPUs, with the sbatch and the controller of a real Slurm."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
SHAPE = ("--nodes", "2", "--cpus-per-node", "4", "--gpus-per-node", "2", "--gpu-type", "a100")


@pytest.fixture(scope="module")
def typed(toolkit: Any, toolkit_env: dict[str, str]) -> Iterator[Run]:
    """A call of the tool for a cluster whose GPUs are of a type."""
    env = {**toolkit_env, "TOOLKIT_CLUSTER": "typed"}
    done = toolkit("cluster", "up", *SHAPE, env=env)
    assert done.returncode == 0, done.stderr
    yield lambda *arguments, **more: toolkit(*arguments, **{"env": env, **more})
    done = toolkit("cluster", "down", env=env)
    assert done.returncode == 0, done.stderr


def submitted(typed: Run, directory: Path, *options: str) -> str:
    """Submit a job that waits, and return what the controller says of it."""
    words = ("run", "--detach", "--json", "--runtime", "none", "--launcher", "none")
    done = typed(*words, *options, "--", "sleep", "1", cwd=directory)
    assert done.returncode == 0, done.stderr
    job_id = json.loads(done.stdout)["job_id"]
    shown = typed("cluster", "exec", "--", "scontrol", "show", "job", str(job_id)).stdout
    assert typed("cancel", str(job_id), cwd=directory).returncode == 0
    return str(shown)


def test_sbatch_takes_what_is_handed_to_it(typed, shared_dir):
    (shared_dir / "toolkit.toml").write_text('[slurm]\nnice = 3\nwckey = "mine"\n')
    given = ("--slurm", "nice=5", "--slurm", "begin=now+1hour", "--slurm", "mail-user=me@site")
    shown = submitted(
        typed, shared_dir, *given, "--slurm", "mail-type=FAIL", "--slurm", "contiguous"
    )
    assert "Nice=5" in shown, "the command line goes before toolkit.toml"
    assert "Reason=BeginTime" in shown
    assert "MailUser=me@site" in shown
    assert "Contiguous=1" in shown
    script = (shared_dir / "runs" / "sleep-0001" / "job.sbatch").read_text()
    assert "#SBATCH --wckey=mine\n" in script


def test_gpus_of_a_type_are_given_by_slurm(typed, shared_dir):
    shown = submitted(typed, shared_dir, "--gpus", "A100:2", "--nodes", "2")
    assert "TresPerNode=gres:gpu:a100:2" in shown
    words = ("run", "--dry-run", "--runtime", "none", "--launcher", "none")
    done = typed(*words, "--gpus", "a10:1", "--", "hostname", cwd=shared_dir)
    assert done.returncode == 64
    assert "close: a100" in done.stderr
