"""`toolkit bench stage`: the jobs that it runs, and from how many nodes on a copy pays."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolkit.bench import stage
from toolkit.bench.stage import Row, verdict


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


def test_each_number_of_nodes_is_measured_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, bool]] = []

    def run(target: str, layer: Any, *_: object) -> Any:
        values = layer.values
        assert (target, values["image"], values["ntasks_per_node"]) == ("python3", "x", 1)
        seen.append((values["nodes"], values["stage_image"]))
        return SimpleNamespace(outcome=SimpleNamespace(kind="ok", seconds=float(len(seen))))

    monkeypatch.setattr("toolkit.bench.jobs.run", run)
    rows = stage.run({"image": "x"}, (1, 4), Path(), lambda *_: None)
    assert seen == [(1, False), (1, True), (1, True), (4, False), (4, True), (4, True)]
    assert rows[1] == Row(nodes=4, shared=4, copied=5, staged=6)
