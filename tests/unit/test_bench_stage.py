"""`toolkit bench stage`: from how many nodes on a copy pays."""

from __future__ import annotations

import pytest

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
