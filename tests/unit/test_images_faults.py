"""Images and what is kept of builds, when the process that writes them is killed at any step: the old or the new, never a half."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.steps import kill_at_each
from tests.unit.test_images_store import ID, OTHER, fake_sif, manifest
from toolkit.images.store import store
from toolkit.images.store.cache import LAYERS, WHEELS, Cache

PUBLISH = f"""\
from pathlib import Path
from tests.unit.test_images_store import manifest
from toolkit.images.store import store
store.publish(Path(place) / "work/built.sif", Path(place) / "images", "x", manifest("x", {OTHER!r}))
"""


def _store(place: Path, *, with_old: bool) -> None:
    (place / "images").mkdir()
    (place / "work").mkdir()
    fake_sif(place / "work/built.sif", OTHER, inside=manifest("x"))
    if with_old:
        fake_sif(place / "images/x.sif", ID, inside=manifest("x"))


def _published(images: Path) -> str:
    """Return the id of the image that a reader finds; it must be whole and have its manifest."""
    path = images / "x.sif"
    if not path.exists():
        return ""
    header = store.whole_header(path)
    found = store.manifest_of(path)
    assert found is not None
    assert found == manifest("x", header.sif_id)
    return header.sif_id


@pytest.mark.parametrize("with_old", [True, False])
def test_a_killed_publish_leaves_the_old_image_or_the_new_one(with_old, tmp_path):
    seen: list[str] = []
    for killed in kill_at_each(lambda place: _store(place, with_old=with_old), PUBLISH, tmp_path):
        images = killed.place / "images"
        seen.append(_published(images))
        assert seen[-1] in ((ID, OTHER) if with_old else ("", OTHER)), killed
        assert killed.unsynced == ()
        assert not killed.ended or seen[-1] == OTHER
        if seen[-1]:
            # What the next build finds to tidy up goes, and nothing else.
            store.settle(images / "x.sif")
            left = {path.name for path in images.iterdir()}
            assert left in ({"x.sif"}, {".x.note.json", "x.sif"}), killed
            assert _published(images) == seen[-1]
    assert len(seen) >= 10
    assert {"", ID, OTHER} & set(seen) == ({ID, OTHER} if with_old else {"", OTHER})


def _keep(kind: str, *, anew: bool) -> str:
    made = "made" if kind == WHEELS else "made.sqfs"
    return f"""\
from pathlib import Path
from toolkit.images.store.cache import Cache
Cache(Path(place)).keep({kind!r}, "key", Path(place) / {made!r}, about="step", replace={anew})
"""


def _made(place: Path, kind: str, text: str) -> Path:
    if kind == WHEELS:
        (place / "made").mkdir()
        (place / "made/a.whl").write_text(text)
        (place / "made/b.whl").write_text(text * 2)
        return place / "made"
    (place / "made.sqfs").write_text(text * 1000)
    return place / "made.sqfs"


def _texts(path: Path) -> list[str]:
    return [one.read_text() for one in (sorted(path.iterdir()) if path.is_dir() else [path])]


@pytest.mark.parametrize("kind", [LAYERS, WHEELS])
@pytest.mark.parametrize(("with_old", "anew"), [(False, False), (True, False), (True, True)])
def test_a_killed_keep_leaves_a_whole_entry_or_none(kind, with_old, anew, tmp_path):
    whole = {text: [text, text * 2] if kind == WHEELS else [text * 1000] for text in ("old", "new")}

    def prepare(place: Path) -> None:
        if with_old:
            Cache(place).keep(kind, "key", _made(place, kind, "old"), about="step")
        _made(place, kind, "new")

    for killed in kill_at_each(prepare, _keep(kind, anew=anew), tmp_path):
        cache = Cache(killed.place)
        found = cache.find(kind, "key")
        assert killed.unsynced == ()
        assert found is not None or not killed.ended, killed
        if found:
            assert _texts(Path(found.path)) in whole.values(), killed
        if killed.ended:
            assert found is not None
            assert _texts(Path(found.path)) == whole["new" if anew or not with_old else "old"]
        # The next build keeps it, whatever was left.
        again = cache.keep(kind, "key", _made_again(killed.place, kind), about="step", replace=True)
        assert _texts(Path(again.path)) == whole["new"]


def _made_again(place: Path, kind: str) -> Path:
    target = place / "again"
    target.mkdir()
    return _made(target, kind, "new")
