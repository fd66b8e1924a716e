"""The all-reduce benchmark's own logic: which job, what its output says, its chart. What it measures is measured on the cluster."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from tests.unit.samples import make_case
from toolkit.bench import allreduce
from toolkit.cli.bench import size
from toolkit.config import shipped
from toolkit.errors import PlanError
from toolkit.planning.plan import decide

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
        size(text)
