"""Faults of builds: a kill at each step of what makes an image or a cache entry visible, and damage to what is kept."""

from __future__ import annotations

from pathlib import Path

from tests.faults.steps import Killed, kill_at_each


def test_killed_process_names_its_point(tmp_path: Path) -> None:
    """The helper itself: it kills at every call, and tells of files that got their name too early."""
    action = "import os\nopen(place + '/a', 'w').write('x')\nos.replace(place + '/a', place + '/b')\nos.unlink(place + '/b')"
    runs: list[Killed] = list(kill_at_each(Path.exists, action, tmp_path))
    assert [run.point for run in runs] == [
        "before replace",
        "before unlink",
        "",
        "after replace",
        "after unlink",
        "",
    ]
    assert [sorted(path.name for path in run.place.iterdir()) for run in runs] == [
        ["a"],
        ["b"],
        [],
        ["b"],
        [],
        [],
    ]
    assert [len(run.unsynced) for run in runs] == [0, 1, 1, 1, 1, 1]
