"""Runs of a study that take turns in one allocation; real ones run in tests/cluster."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.golden_scripts import assert_golden
from tests.unit.run_fixtures import Slurm, put
from tests.unit.samples import make_case
from toolkit import scripts
from toolkit.bench.scale import allocation
from toolkit.bench.scale.parts import Part, PartTimes, part_state
from toolkit.errors import UsageError
from toolkit.model.case import Case
from toolkit.model.plan import Plan
from toolkit.model.run import FINAL_STATES, JobState
from toolkit.planning.plan import decide
from toolkit.runs import status
from toolkit.runs.run import Run

BEGAN = PartTimes(start=100, nodes="nid001")
OK = PartTimes(start=100, nodes="nid001", end=160)
FAILED = PartTimes(start=100, nodes="nid001", end=160, exit_code=137)


def job(state: str) -> JobState:
    return JobState(
        job_id=7, state=state, reason="Priority", nodes="nid[001-004]", start=90, end=200
    )


def on(directory: Path, nodes: int, **changes: object) -> Case:
    """A run with real paths, as other cases of these tests."""
    run, here = str(directory / "runs/scale-0001"), str(directory)
    return make_case({"nodes": nodes, **changes}, run=run, folder=here, cwd=here)


@pytest.mark.parametrize(
    ("times", "state", "expected"),
    [
        (None, "PENDING", "PENDING"),
        (None, "RUNNING", "PENDING"),
        (None, "COMPLETING", "PENDING"),
        (None, "FAILED", "CANCELLED"),  # an earlier run failed, and ended the allocation
        (None, "TIMEOUT", "TIMEOUT"),
        (None, "NODE_FAIL", "NODE_FAIL"),
        (BEGAN, "RUNNING", "RUNNING"),
        (BEGAN, "TIMEOUT", "TIMEOUT"),
        (BEGAN, "CANCELLED", "CANCELLED"),
        (BEGAN, "COMPLETED", "FAILED"),  # its end could not be written
        *((OK, state, "COMPLETED") for state in ("RUNNING", "TIMEOUT", "FAILED")),
        (FAILED, "FAILED", "FAILED"),
        (FAILED, "RUNNING", "RUNNING"),  # the job ends at once, and its state tells why
        (FAILED, "TIMEOUT", "TIMEOUT"),
        (FAILED, "NODE_FAIL", "NODE_FAIL"),
    ],
)
def test_the_state_of_a_part(times: PartTimes | None, state: str, expected: str) -> None:
    own = part_state(times, job(state))
    assert own.state == expected
    assert own.ended == (expected in FINAL_STATES)
    assert own.job_id == 7
    if times is not None:
        assert (own.nodes, own.start) == ("nid001", 100)
    if times is not None and times.end and expected in ("COMPLETED", "FAILED"):
        assert (own.end, own.exit_code) == (160, times.exit_code)


def test_all_runs_have_the_job_of_their_allocation(tmp_path: Path, slurm: Slurm) -> None:
    """It is found by the allocation's script, also where the client was killed before it knew."""
    sizes = (1, 4, 2)
    given = [(on(tmp_path, nodes, partition="cas_v100_4"), lambda own: own) for nodes in sizes]
    whole, written = allocation.write_allocation(given)
    assert [part.nodes for part in whole.plan.parts] == [1, 4, 2]
    assert [run.name for run in written] == ["scale-0001", "scale-0002", "scale-0003"]
    assert (whole.plan.nodes, dict(whole.plan.directives)["nodes"]) == (4, "4")
    first, second, third = (Part(run.directory) for run in written)
    assert (first.state(), first.times) == (None, None)
    slurm.add(whole.script, 9)
    rows = [row[1:3] for row in status.rows([*map(Run, (run.directory for run in written))])]
    assert rows == [(9, "RUNNING")] * 3
    put(first, "part.json", OK)
    put(second, "part.json", FAILED)
    (third.directory / "part.json").write_text('{"start": 100, "no')
    parts = [Part(run.directory) for run in written]
    assert [state and state.state for state in (part.state() for part in parts)] == [
        "COMPLETED",
        "RUNNING",
        "PENDING",
    ]
    slurm.set(silent=1)
    assert Part(first.directory).state() is not None, "Slurm is not asked"
    assert not any(run.has_ended for run in written)


def test_nothing_is_left_of_an_allocation_that_cannot_be_written(tmp_path: Path) -> None:
    given = [(on(tmp_path, 1), lambda own: own), (on(tmp_path, 2, gpus=2), lambda own: own)]
    with pytest.raises(UsageError, match="differ in --gres"):
        allocation.write_allocation(given)
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": "1-2", "launcher": "torchrun"}, "an elastic run"),
        ({"partition": "cas_v100_4"}, "--partition"),
        ({"slurm": {"constraint": "fast"}}, "--constraint"),
    ],
)
def test_runs_that_need_other_nodes_are_refused(changes: dict[str, object], message: str) -> None:
    other = decide(make_case(changes))
    with pytest.raises(UsageError, match=message):
        allocation.require_alike([decide(make_case()), other])


def whole(directory: str = "/home/user/project/runs") -> Plan:
    plans = [
        decide(make_case({"nodes": nodes, "ntasks_per_node": ranks, "launcher": "srun"}))
        for nodes, ranks in ((1, 1), (2, 2))
    ]
    own = [
        replace(entry, run_directory=f"{directory}/scale-{number:04d}")
        for number, entry in enumerate(plans, 1)
    ]
    return allocation.allocation_plan(own, f"{directory}/scale-allocation-0001")


def test_the_script_of_an_allocation() -> None:
    assert_golden("parts", scripts.script(whole()))


SCONTROL = """#!/bin/bash
case $2 in
hostnames) printf '%s\\n' nid001 nid002 ;;
hostlist) echo "<$3>" ;;
esac
"""
# What sbatch would set for a job of the run's own shape.
SHOWN = """\
echo "$SLURM_NNODES $SLURM_NTASKS $SLURM_NTASKS_PER_NODE $SLURM_TASKS_PER_NODE"
echo "$SLURM_CPUS_PER_TASK $SLURM_JOB_CPUS_PER_NODE $SLURM_JOB_NODELIST $SLURM_JOB_NUM_NODES"
"""


@pytest.mark.parametrize("name", ["runs", 'it\'s $(touch never) "two" words'])
def test_runs_take_turns_until_one_fails(tmp_path: Path, name: str) -> None:
    runs = tmp_path / name
    planned = whole(str(runs))
    bodies = (SHOWN, SHOWN + "exit 3\n", "touch never\n")
    given = replace(planned, parts=(*planned.parts, planned.parts[0]))
    third = replace(given.parts[2], run_directory=f"{runs}/scale-0003")
    given = replace(given, parts=(*given.parts[:2], third))
    for part, body in zip(given.parts, bodies, strict=True):
        directory = Path(part.run_directory)
        (directory / "logs").mkdir(parents=True)
        (directory / "job.sbatch").write_text(body)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/scontrol").write_text(SCONTROL)
    (tmp_path / "bin/scontrol").chmod(0o755)
    script = tmp_path / "job.sbatch"
    script.write_text(scripts.script(given))
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "SLURM_JOB_ID": "9"}
    env["SLURM_JOB_NODELIST"] = "nid[001-002]"
    done = subprocess.run(("bash", script), env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    times = []
    for number, nodes in ((1, "<nid001>"), (2, "<nid001,nid002>")):
        directory = runs / f"scale-{number:04d}"
        read = Part(directory).times
        assert read is not None
        assert read.nodes == nodes
        assert read.end >= read.start > 0
        times.append(read)
    assert [entry.exit_code for entry in times] == [0, 3]
    assert not (runs / "scale-0003/part.json").exists()
    first, second = (runs / f"scale-{number:04d}/logs/9.log" for number in (1, 2))
    assert first.read_text() == "1 1 1 1(x1)\n1 1(x1) <nid001> 1\n"
    assert second.read_text() == "2 4 2 2(x2)\n1 2(x2) <nid001,nid002> 2\n"


def test_a_step_of_a_part_begins_on_the_first_nodes() -> None:
    """Slurm would take the nodes that are free first, and the ranks meet on the first one."""
    for launcher, is_part in itertools.product(("torchrun", "srun", "none"), (True, False)):
        given = make_case({"launcher": launcher})._replace(is_part=is_part)
        text = scripts.script(decide(given))
        assert ('srun --nodelist="$SLURM_JOB_NODELIST"' in text) == is_part
