"""Keys and tasks of builds in layers, what is kept of them, and what an image says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from toolkit.errors import BusyError
from toolkit.images.recipe.bases import LocalImage
from toolkit.images.recipe.plan import Plan, Step, with_keys
from toolkit.images.store.cache import LAYERS, Cache


def stages(
    common: Sequence[str] = ("a", "b"),
    build: Sequence[str] = ("compile",),
    final: Sequence[str] = ("take", "last"),
    prelude: str = "umask 022",
) -> Plan:
    def steps(names: Sequence[str]) -> tuple[Step, ...]:
        return tuple(
            Step(name=name, detail="", lines=(f"echo {name}",), products=name == "take")
            for name in names
        )

    return Plan(
        name="x",
        base=LocalImage(path="/base"),
        prelude=(prelude,),
        common=steps(common),
        build=steps(build),
        final=steps(final),
    )


def keys(made: Plan) -> dict[str, str]:
    return {link.name: link.key for link in (*made.steps, *made.build)}


def changed(before: Plan, after: Plan) -> set[str]:
    return {name for name, key in keys(after).items() if keys(before).get(name) != key}


def test_a_key_changes_with_the_step_and_all_before_it():
    before = with_keys(stages())
    assert changed(before, with_keys(stages())) == set()
    assert changed(before, with_keys(stages(final=("take", "other")))) == {"other"}
    assert changed(before, with_keys(stages(common=("a", "x")))) == {
        "x",
        "compile",
        "take",
        "last",
    }
    assert changed(before, with_keys(stages(), state="another base")) == {
        "a",
        "b",
        "compile",
        "take",
        "last",
    }
    assert changed(before, with_keys(stages(prelude="umask 077"))) == {
        "a",
        "b",
        "compile",
        "take",
        "last",
    }


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def made(cache: Cache, text: str = "contents") -> Path:
    path = cache.directory.parent / "made"
    path.write_text(text)
    return path


def test_what_is_kept_is_found(cache):
    one = cache.keep(LAYERS, "k", made(cache), about="pip", facts={"a": "b"})
    assert cache.find(LAYERS, "k") == one
    assert Path(one.path).read_text() == "contents"
    assert (one.note.size, one.note.about, one.note.facts) == (8, "pip", {"a": "b"})
    assert cache.entries() == (one,)
    assert cache.find(LAYERS, "other") is None


def test_one_of_another_length_counts_as_none(cache):
    path = Path(cache.keep(LAYERS, "k", made(cache)).path)
    path.write_text("CONTENTS and more")
    assert cache.find(LAYERS, "k") is None


@pytest.mark.parametrize("damage", ["", "{", '{"size": "x"}', "\0\xff"])
def test_a_note_that_is_broken_counts_as_none(cache, damage):
    path = Path(cache.keep(LAYERS, "k", made(cache)).path)
    path.with_name("k.json").write_bytes(damage.encode("latin-1"))
    assert cache.find(LAYERS, "k") is None
    assert cache.entries() == ()


def test_clearing_removes_entries_and_what_killed_builds_left(cache):
    kept = Path(cache.keep(LAYERS, "k", made(cache)).path)
    kept.with_name("left.sqfs").write_text("half")
    assert cache.find(LAYERS, "left") is None
    (kept.parent / "half").mkdir()
    with cache.used(), cache.used(), pytest.raises(BusyError, match="a build is using"):
        cache.clear()
    assert cache.find(LAYERS, "k")
    cache.clear()
    assert list(kept.parent.iterdir()) == []
