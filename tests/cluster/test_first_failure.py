"""The first failing rank and its own words: scripts that fail on one rank, by several launchers, each in its own way.

`make bench-failures` draws hundreds of such runs at random; these are one of each kind of evidence.
"""

from __future__ import annotations

import json

import pytest

from benchmarks.failing import KINDS, Case, script

pytestmark = pytest.mark.usefixtures("cluster")

CASES = [
    Case(1, "torchrun", "key-error", 3, "loop", "wait", "functions", 5),
    Case(2, "srun", "argparse", 2, "before-rendezvous", "wait", "class", 5),
    Case(4, "horovod", "exit", 2, "loop", "compute", "class", 5),
    Case(6, "mpi", "segfault", 3, "loop", "wait", "functions", 5),
    Case(7, "none", "killed", 1, "loop", "finish", "class", 5),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.launcher}-{case.kind}")
def test_the_rank_that_failed_first_is_named_with_its_own_words(
    case, pytorch_image, toolkit, launch, shared_dir
):
    (shared_dir / "study.py").write_text(script(case))
    shape = ("--nodes", "2", "--ntasks-per-node", "2", "--nodelist", "nid[001-002]", "--time", "3")
    done = launch(pytorch_image, "--launcher", case.launcher, *shape, "study.py", timeout=240)
    outcome = json.loads((shared_dir / "runs/study-0001/outcome.json").read_text())
    said = json.loads(toolkit("explain", "--json", cwd=shared_dir).stdout)
    assert done.returncode == outcome["exit_code"] != 0
    host = f"nid{case.rank // 2 + 1:03}"  # two ranks on each
    assert (outcome["failure"]["rank"], outcome["failure"]["host"]) == (case.rank, host)
    assert KINDS[case.kind].expected in f"{said['first']} {said['match']['cause']}"
    assert said["match"].get("rank", case.rank) == case.rank
