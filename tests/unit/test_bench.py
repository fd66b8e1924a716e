"""What the small benchmarks make of runs: all-reduce, jobs side by side, copies of an image."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
import pytest

from tests.unit.samples import make_case
from toolkit.api.run import CompletedRun
from toolkit.bench import allreduce, compare
from toolkit.bench.stage import Row, verdict
from toolkit.cli.bench import SIZE
from toolkit.config import shipped
from toolkit.errors import PlanError
from toolkit.model.base import to_json
from toolkit.model.run import Outcome
from toolkit.planning.plan import decide
from toolkit.runs.run import Run

GOLDEN = Path(__file__).parents[1] / "golden" / "bench"
SIZES = (1024, 1 << 28, 4)


def test_the_table_of_nccl_tests_is_read_in_an_invented_run_of_the_real_form():
    rows = allreduce.nccl_tests((GOLDEN / "nccl-tests-2.17.txt").read_text().splitlines(), 2)
    assert [one.bytes for one in rows] == [1024, 1048576, 268435456]
    assert [one.wrong for one in rows] == [0, 0, 5], "out of place and in place"
    assert rows[2].bus_gb_per_s == pytest.approx(15.42, abs=0.01)
    found = allreduce.measured("nccl-tests", "2 nodes x 1 GPU", 2, {}, ["nothing"], "run-0001")
    assert found is None, "a job without a table has not measured"


@pytest.mark.parametrize("backend", allreduce.BACKENDS)
def test_each_backend_has_a_launcher_and_a_script(backend):
    entry = allreduce.BACKENDS[backend]
    layer = allreduce.settings(backend, {"nodes": 2}, SIZES)
    assert layer.values["launcher"] == entry.launcher
    assert layer.values["nodes"] == 2
    assert "268435456" in layer.values["arguments"]
    assert os.access(
        shipped("jobs") / allreduce.JOB / (entry.script or "train.py"),
        os.X_OK if entry.script else os.R_OK,
    )


@pytest.mark.parametrize(
    ("backend", "gpus", "refused"),
    [("nccl", 0, True), ("nccl-tests", 0, True), ("nccl", 2, False), ("gloo", 0, False)],
)
def test_nccl_without_gpus_is_refused(backend, gpus, refused):
    given = allreduce.refusing(backend)(make_case({"gpus": gpus}))
    if refused:
        with pytest.raises(PlanError) as caught:
            decide(given)
        assert caught.value.findings[0].next_step == "--gpus N, or --backend gloo"
    else:
        assert decide(given).gpus_per_node == gpus


@pytest.mark.parametrize("text", ["0", "1.5M", "K", "1T"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(click.BadParameter):
        SIZE(text)


def ended(directory: Path, **results: object) -> Path:
    """The directory of a run as a job leaves it."""
    directory.mkdir(parents=True)
    (directory / "plan.json").write_text(to_json(decide(make_case())))
    outcome = Outcome(state="COMPLETED", exit_code=0, seconds=1.0, results=results, kind="ok")
    (directory / "outcome.json").write_text(to_json(outcome))
    (directory / "memory").mkdir()
    for number, (script, host) in enumerate(
        (("/scratch/train.py", 400.5), ("train.py", 399.0), ("/opt/venv/bin/torchrun", 900.0))
    ):
        told = {"script": script, "host_mb": host, "gpu_mb": 12.0 * number}
        (directory / "memory" / f"nid001-{number}.json").write_text(json.dumps(told))
    return directory


def test_runs_are_put_side_by_side(tmp_path):
    results: dict[str, dict[str, Any]] = {
        "a": {"samples_per_second": 100.0, "accuracy": 0.9},
        "b": {"samples_per_second": 250, "accuracy": 0.91},
        "c": {},
    }
    rows = []
    for name, own in results.items():
        run = Run(ended(tmp_path / f"runs/{name}-0001", **own))
        assert run.outcome is not None
        rows.append(compare.row(name, [CompletedRun(run, run.outcome)]))
    assert [(one.job, one.samples_per_second, one.accuracy) for one in rows] == [
        ("a", 100.0, 0.9),
        ("b", 250.0, 0.91),
        ("c", None, None),
    ]
    assert {(one.host_mb, one.gpu_mb) for one in rows} == {(400.5, 12.0)}, "ranks, not agents"
    header, cells = compare.table(rows)
    assert [row[header.index("speed")] for row in cells] == ["1.00", "2.50", "-"]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (((1, 9, 9, 9), (2, 9, 12, 9)), "the shared file is as fast here"),
        (((1, 9, 12, 9), (8, 30, 40, 10)), "a copy pays from 8 nodes on, for jobs that find it"),
        (((1, 9, 9, 8), (64, 90, 40, 9)), "from 1 node on, for jobs that find it; from 64 nodes on also for"),
    ],
)  # fmt: skip
def test_from_how_many_nodes_on_a_copy_pays(rows: tuple[tuple[int, ...], ...], says: str) -> None:
    names = ("nodes", "shared", "copied", "staged")
    assert says in verdict([Row(**dict(zip(names, row, strict=True))) for row in rows])
