"""Which layers a build takes from the cache, and which it makes."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.progress import Silent
from toolkit.images.builder.apptainer import layered
from toolkit.images.builder.apptainer.sandbox import Lower
from toolkit.images.builder.follow import Follower
from toolkit.images.builder.remote_base import BuildTask
from toolkit.images.host.host_config import HostConfig
from toolkit.images.host.workspace import workspace
from toolkit.images.recipe import library
from toolkit.images.recipe.lock import Lock
from toolkit.images.store.cache import LAYERS, Cache, CacheEntry, Note
from toolkit.model.image import BaseImage, Layer

LOCK = Lock(
    name="x",
    recipe_hash="ab" * 32,
    epoch=1700000000,
    base=BaseImage(reference="debian bookworm"),
    layers=(Layer(name="base", sha256="cd" * 32),),
)


def built(
    images: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, lock: Lock | None, base: str
) -> list[CacheEntry]:
    """Run the steps of a recipe on a base with this digest, which each layer holds."""

    def run_step(run: layered._LayeredBuild, *_: object) -> str:
        upper = f"u{len(run.used)}"
        (run.place.output / f"{upper}.sqfs").write_text(base)
        return upper

    monkeypatch.setattr(layered._LayeredBuild, "_run_step", run_step)
    monkeypatch.setattr(layered, "_lower", lambda entry: Lower(path=entry.path))
    with workspace(images) as place:
        follower = Follower("x", images / "log", Silent())
        task = BuildTask(library.load(recipe), None, lock, place, follower)
        run = layered._LayeredBuild(task, HostConfig())
        run.copy = lambda _: Future()
        note = Note(size=1, digest=base)
        run.used.append(CacheEntry(kind="bases", key="k", path="base", note=note, used=0.0))
        run.run_steps()
    return run.used[1:]


def test_what_compiles_on_a_base_with_compilers_does_it_in_its_own_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing comes from a build stage, which such a recipe does not have."""
    assert len(built(tmp_path, monkeypatch, "nccl-tests", None, "aa" * 32)) == 2


def test_what_a_lock_made_on_another_base_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = built(tmp_path, monkeypatch, "nccl-tests", LOCK, "aa" * 32)
    second = built(tmp_path, monkeypatch, "nccl-tests", LOCK, "bb" * 32)
    assert {entry.note.digest for entry in first} != {entry.note.digest for entry in second}
    assert built(tmp_path, monkeypatch, "nccl-tests", LOCK, "aa" * 32) == first
    assert len([entry for entry in Cache(tmp_path).entries() if entry.kind == LAYERS]) == 4
