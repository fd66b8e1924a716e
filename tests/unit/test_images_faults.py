"""What is kept of builds, when the process that writes it is killed at any step: the old or the new, never a half."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.steps import kill_at_each
from toolkit.images.store.cache import LAYERS, WHEELS, Cache


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
