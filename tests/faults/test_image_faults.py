"""Faults of builds: a kill at each step of what makes an image or a cache entry visible, and damage to what is kept."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tests.cluster.image_fixtures import Tiny
from tests.faults.steps import Killed, kill_at_each
from tests.faults.tally import Row


def _flip(path: Path, at: int) -> None:
    state = path.stat()
    with path.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)
        stream.seek(at)
        stream.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.mark.timeout(900)
def test_flipped_byte(tally: Row, tiny: Tiny) -> None:
    """A byte of a base, a layer or tables in the caches flips; length and time stay."""
    recipe = tiny.recipe(
        "cat /bin/* > /large",
        more='[[steps]]\nblock = "run"\nname = "second"\ncommands = ["echo 2 > /second"]\n',
    )
    assert tiny.run("build", recipe).returncode == 0
    whole = {path: hashlib.sha256(path.read_bytes()).digest() for path in _entries(tiny)}
    assert len(whole) >= 4
    for path in whole:
        size = path.stat().st_size
        # The head, the data, the tables at the end.
        for at in {0, 40, size // 3, size // 2, size - size // 50 - 1, size - 1}:
            _flip(path, at)
            (tiny.images / "tiny.sif").unlink()
            done = tiny.run("build", recipe)
            tally.trials += 1
            tally.wrong += done.returncode != 0
            now = {entry: hashlib.sha256(entry.read_bytes()).digest() for entry in _entries(tiny)}
            tally.outside += now != whole or tiny.inside("/bin/cat", "/second") != "2\n"
    assert tally.failures == 0


def _entries(tiny: Tiny) -> list[Path]:
    found = (tiny.images / ".cache").glob("*/*")
    return sorted(
        path for path in found if path.suffix != ".json" and not path.name.startswith(".")
    )


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
