"""Faults of builds: a kill at each step of what makes an image or a cache entry visible, and damage to what is kept."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tests.cluster.image_fixtures import Tiny
from tests.faults.steps import Killed, kill_at_each
from tests.faults.tally import Row
from tests.unit.test_images_store import ID, OTHER, fake_sif, manifest
from toolkit.errors import ToolkitError
from toolkit.images.store import store
from toolkit.images.store.cache import KINDS, WHEELS, Cache
from toolkit.model.base import to_json

_PUBLISH = f"""\
from pathlib import Path
from tests.unit.test_images_store import manifest
from toolkit.images.store import store
store.publish(Path(place) / "work/built.sif", manifest("x", {OTHER!r}), Path(place) / "images")
"""
_KEEP = """\
from pathlib import Path
from toolkit.images.store.cache import Cache
Cache(Path(place)).keep({kind!r}, "key", Path(place) / "made", about="step", replace=True)
"""


def _is_half(images: Path) -> bool:
    """Return whether a reader finds an image that is not whole, or has no manifest of its own."""
    path = images / "x.sif"
    try:
        return path.exists() and store.manifest_of(path, store.whole_header(path)) is None
    except ToolkitError:
        return True


def _leftovers(images: Path) -> list[str]:
    """Return what is left after the next build has tidied up."""
    store.settle(images / "x.sif")
    return sorted({path.name for path in images.iterdir()} - {"x.sif", "x.json"})


@pytest.mark.parametrize("with_old", [True, False])
def test_publish(with_old: bool, tally: Row, tmp_path: Path) -> None:
    """The builder is killed before or after each step of publishing an image."""

    def prepare(place: Path) -> None:
        for directory in ("images", "work"):
            (place / directory).mkdir()
        fake_sif(place / "work/built.sif", OTHER)
        if with_old:
            fake_sif(place / "images/x.sif", ID)
            (place / "images/x.json").write_text(to_json(manifest("x", ID)))

    for killed in kill_at_each(prepare, _PUBLISH, tmp_path):
        images = killed.place / "images"
        there = (images / "x.sif").exists()
        tally.trials += 1
        tally.outside += (
            _is_half(images) or bool(killed.unsynced) or (there and bool(_leftovers(images)))
        )
        tally.wrong += (with_old or killed.ended) and not there
    assert tally.failures == 0


@pytest.mark.parametrize("kind", KINDS)
def test_keep(kind: str, tally: Row, tmp_path: Path) -> None:
    """The builder is killed before or after each step of keeping a base, a layer, tables or a wheel."""

    def made(place: Path, text: str) -> Path:
        if kind == WHEELS:
            (place / "made").mkdir()
            (place / "made/x.whl").write_text(text)
        else:
            (place / "made").write_text(text)
        return place / "made"

    def prepare(place: Path) -> None:
        Cache(place).keep(kind, "key", made(place, "old"), about="step")
        made(place, "new")

    for killed in kill_at_each(prepare, _KEEP.format(kind=kind), tmp_path):
        cache = Cache(killed.place)
        found = cache.find(kind, "key")
        tally.trials += 1
        tally.outside += found is not None and not cache.is_undamaged(found)
        tally.outside += bool(killed.unsynced)
        tally.wrong += killed.ended and (found is None or _text(Path(found.path)) != "new")
    assert tally.failures == 0


def _text(path: Path) -> str:
    return (path / "x.whl" if path.is_dir() else path).read_text()


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
