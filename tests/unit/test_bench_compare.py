"""Jobs side by side: what is taken of a run, how memory is measured, what the table says. Two of them run in tests/cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.samples import make_case
from toolkit.bench import compare
from toolkit.errors import UnknownRunError
from toolkit.model.base import to_json
from toolkit.model.run import Outcome
from toolkit.planning.plan import decide


def ended(directory: Path, *, kind: str = "ok", **results: object) -> Path:
    """The directory of a run as a job leaves it."""
    directory.mkdir(parents=True)
    (directory / "plan.json").write_text(to_json(decide(make_case())))
    outcome = Outcome(state="COMPLETED", exit_code=0, seconds=1.0, results=results, kind=kind)  # type: ignore[arg-type]
    (directory / "outcome.json").write_text(to_json(outcome))
    (directory / "memory").mkdir()
    for number, (script, host) in enumerate(
        (("/scratch/train.py", 400.5), ("train.py", 399.0), ("/opt/venv/bin/torchrun", 900.0))
    ):
        told = {"script": script, "host_mb": host, "gpu_mb": 12.0 * number}
        (directory / "memory" / f"nid001-{number}.json").write_text(json.dumps(told))
    return directory


def silent(subject: str, text: str) -> None:
    raise AssertionError(f"{subject} {text}")


def test_runs_that_have_ended_are_put_side_by_side(tmp_path):
    ended(tmp_path / "runs/a-0001", samples_per_second=100.0, accuracy=0.9)
    ended(tmp_path / "runs/b-0001", samples_per_second=250, accuracy=0.91, parameters_equal=True)
    ended(tmp_path / "runs/c-0001")
    rows = compare.run(
        ["runs/a-0001", "runs/b-0001", "runs/c-0001"], compare.settings({}, ()), 3, tmp_path, silent
    )
    assert [
        (one.job, one.samples_per_second, one.accuracy, one.parameters_equal) for one in rows
    ] == [("a-0001", 100.0, 0.9, None), ("b-0001", 250.0, 0.91, True), ("c-0001", None, None, None)]
    assert {(one.host_mb, one.gpu_mb) for one in rows} == {(400.5, 12.0)}, "ranks, not agents"
    header, cells = compare.table(rows)
    assert [row[header.index("speed")] for row in cells] == ["1.00", "2.50", "-"]
    assert [row[header.index("equal")] for row in cells] == ["-", "yes", "-"]


def test_a_run_that_failed_is_no_measurement(tmp_path):
    ended(tmp_path / "runs/a-0001", kind="failed")
    with pytest.raises(UnknownRunError):
        compare.run(["runs/a-0001"], compare.settings({}, ()), 1, tmp_path, silent)
