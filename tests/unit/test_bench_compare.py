"""Jobs side by side: what is taken of a run, how memory is measured, what the table says. Two of them run in tests/cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.unit.samples import make_case
from toolkit.api.run import CompletedRun
from toolkit.bench import compare
from toolkit.model.base import to_json
from toolkit.model.run import Outcome
from toolkit.planning.plan import decide
from toolkit.runs.run import Run


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
