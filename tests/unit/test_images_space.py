"""Room: what quota programs say, and what people are warned of."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.images.host.space import Room, left, read_room, warnings

QUOTA = """\
Disk quotas for user me (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
server:/home  51200  61440  71680       0    1200       0       0       0
"""
LUSTRE = "     /scratch  104857600*  104857600 209715200       -   20000       0       0       -\n"


@pytest.mark.parametrize(
    ("said", "bytes_left"),
    [
        (QUOTA, 10 * 1024 * 1024),
        (LUSTRE, 0),
        ("", None),
        ("Disk quotas for user me (uid 1): none", None),
        ("/x 5 0 0", None),
    ],
)
def test_what_a_quota_leaves(said: str, bytes_left: int | None) -> None:
    assert left(said) == bytes_left


def test_the_smaller_of_both_counts() -> None:
    assert Room(directory="/x", free=10, quota=5).available == 5
    assert Room(directory="/x", free=10).available == 10


def test_what_people_are_warned_of() -> None:
    assert "in memory" in warnings(Room(directory="/tmp", free=10**12, memory=True), 1)[0]
    assert "quota" in warnings(Room(directory="/home", free=10**12, quota=10**9), 10**9)[0]
    assert warnings(Room(directory="/home", free=10**12, quota=10**12), 10**9) == ()


def test_this_machine_is_looked_at(tmp_path: Path) -> None:
    assert read_room(tmp_path).free > 0
    assert read_room(Path("/dev/shm")).memory
