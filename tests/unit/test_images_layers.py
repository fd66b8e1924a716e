"""Keys of builds in layers, what is kept under them, and which layers a build takes and makes."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.faults.steps import kill_at_each
from tests.progress import Silent
from toolkit.errors import BusyError
from toolkit.images.builder.apptainer import layered
from toolkit.images.builder.apptainer.sandbox import Lower
from toolkit.images.builder.follow import Follower
from toolkit.images.builder.remote_base import BuildTask
from toolkit.images.host.host_config import HostConfig
from toolkit.images.host.workspace import workspace
from toolkit.images.recipe import library
from toolkit.images.recipe.bases import LocalImage
from toolkit.images.recipe.lock import Lock
from toolkit.images.recipe.plan import Plan, Step, with_keys
from toolkit.images.store.cache import LAYERS, WHEELS, Cache, CacheEntry, Note
from toolkit.model.image import BaseImage, Layer


def keys(
    common: str = "a b", final: str = "take last", prelude: str = "umask 022", state: str = ""
) -> dict[str, str]:
    """The keys of a plan whose build stage has one step, whose product `take` takes."""

    def steps(names: str) -> tuple[Step, ...]:
        return tuple(
            Step(name=name, lines=(f"echo {name}",), products=name == "take")
            for name in names.split()
        )

    plan = Plan(
        name="x",
        base=LocalImage(path="/base"),
        prelude=(prelude,),
        common=steps(common),
        build=steps("compile"),
        final=steps(final),
    )
    made = with_keys(plan, state)
    return {step.name: step.key for step in (*made.steps, *made.build)}


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ({}, ""),
        ({"final": "take other"}, "other"),
        ({"common": "a x"}, "x compile take last"),
        ({"state": "another base"}, "a b compile take last"),
        ({"prelude": "umask 077"}, "a b compile take last"),
    ],
)
def test_a_key_changes_with_the_step_and_all_before_it(change, changed):
    before = keys()
    found = {name for name, key in keys(**change).items() if before.get(name) != key}
    assert found == {*changed.split()}


@pytest.fixture
def cache(tmp_path):
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
    Path(one.path).write_text("another length")
    assert cache.find(LAYERS, "k") is None


@pytest.mark.parametrize("damage", ["", '{"size": "x"}', "\0\xff"])
def test_a_note_that_is_broken_counts_as_none(cache, damage):
    path = Path(cache.keep(LAYERS, "k", made(cache)).path)
    path.with_name("k.json").write_bytes(damage.encode("latin-1"))
    assert cache.find(LAYERS, "k") is None
    assert cache.entries() == ()


def test_clearing_removes_entries_and_what_killed_builds_left(cache):
    kept = Path(cache.keep(LAYERS, "k", made(cache)).path)
    kept.with_name("left.sqfs").write_text("half")
    (kept.parent / "half").mkdir()
    with cache.used(), cache.used(), pytest.raises(BusyError, match="a build is using"):
        cache.clear()
    assert cache.find(LAYERS, "k")
    cache.clear()
    assert list(kept.parent.iterdir()) == []


KEEP = """\
from pathlib import Path
from toolkit.images.store.cache import Cache
Cache(Path(place)).keep({kind!r}, "key", Path(place) / "new", replace={anew})
"""


def write(path: Path, kind: str) -> Path:
    """Write a directory of two files, or a file, that holds its own name."""
    if kind == WHEELS:
        path.mkdir()
        (path / "a.whl").write_text(path.name)
    (path / "b.whl" if kind == WHEELS else path).write_text(path.name * 1000)
    return path


def texts(path: Path) -> list[str]:
    return [each.read_text() for each in (sorted(path.iterdir()) if path.is_dir() else [path])]


@pytest.mark.parametrize(
    ("kind", "with_old", "anew"),
    [(LAYERS, False, False), (LAYERS, True, True), (WHEELS, True, False), (WHEELS, True, True)],
)
def test_a_killed_keep_leaves_a_whole_entry_or_none(kind, with_old, anew, tmp_path):
    whole = {name: texts(write(tmp_path / name, kind)) for name in ("old", "new", "next")}

    def prepare(place: Path) -> None:
        if with_old:
            Cache(place).keep(kind, "key", write(place / "old", kind))
        write(place / "new", kind)

    for killed in kill_at_each(prepare, KEEP.format(kind=kind, anew=anew), tmp_path):
        found = Cache(killed.place).find(kind, "key")
        left = texts(Path(found.path)) if found else None
        assert killed.unsynced == ()
        assert left in (None, whole["old"], whole["new"]), killed
        if killed.ended:
            assert left == whole["new" if anew or not with_old else "old"]
        # The next build keeps it, whatever was left.
        again = Cache(killed.place).keep(
            kind, "key", write(killed.place / "next", kind), replace=True
        )
        assert texts(Path(again.path)) == whole["next"]


LOCK = Lock(
    name="x",
    recipe_hash="ab" * 32,
    epoch=1700000000,
    base=BaseImage(reference="debian bookworm"),
    layers=(Layer(name="base", sha256="cd" * 32),),
)


@pytest.fixture
def built(tmp_path, monkeypatch):
    """Build ``nccl-tests`` on a base with a digest, which each layer holds; return its layers."""

    def run_step(run: layered._LayeredBuild, *_: object) -> str:
        upper = f"u{len(run.used)}"
        (run.place.output / f"{upper}.sqfs").write_text(run.used[0].note.digest)
        return upper

    def build(lock: Lock | None, base: str) -> list[CacheEntry]:
        with workspace(tmp_path) as place:
            follower = Follower("x", tmp_path / "log", Silent())
            task = BuildTask(library.load("nccl-tests"), None, lock, place, follower)
            run = layered._LayeredBuild(task, HostConfig())
            run.copy = lambda _: Future()
            note = Note(size=1, digest=base)
            run.used.append(CacheEntry(kind="bases", key="k", path="base", note=note, used=0.0))
            run.run_steps()
        return run.used[1:]

    monkeypatch.setattr(layered._LayeredBuild, "_run_step", run_step)
    monkeypatch.setattr(layered, "_lower", lambda entry: Lower(path=entry.path))
    return build


def test_what_compiles_on_a_base_with_compilers_does_it_in_its_own_step(built):
    """Nothing comes from a build stage, which such a recipe does not have."""
    assert len(built(None, "aa" * 32)) == 2


def test_what_a_lock_made_on_another_base_is_not_taken(built, tmp_path):
    first, second = built(LOCK, "aa" * 32), built(LOCK, "bb" * 32)
    assert {entry.note.digest for entry in first} != {entry.note.digest for entry in second}
    assert built(LOCK, "aa" * 32) == first
    assert len([entry for entry in Cache(tmp_path).entries() if entry.kind == LAYERS]) == 4
