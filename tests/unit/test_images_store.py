"""The store: only whole images are found, whatever a crash has left, and what is not found says what is near."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.errors import ImageMissingError, UnknownImageError
from toolkit.images.sif import header as sif
from toolkit.images.store import store, usage
from toolkit.images.store.cache import Cache
from toolkit.model.base import to_json
from toolkit.model.image import Manifest

ID, OTHER = "0123456789abcdef" * 2, "f" * 32


def fake_sif(path: Path, sif_id: str = ID, *, size: int = 4096, cut: int = 0) -> Path:
    """A file with the head of a SIF."""
    head = bytearray(sif.HEADER_SIZE)
    head[32:42] = b"SIF_MAGIC\0"
    head[48:64] = bytes.fromhex(sif_id)
    struct.pack_into("<qq", head, 112, 1024, size - 1024)
    path.write_bytes(bytes(head) + b"\0" * (size - len(head) - cut))
    return path


def manifest(name: str, sif_id: str = ID, size: int = 4096) -> Manifest:
    return Manifest(
        name=name,
        sif_id=sif_id,
        size=size,
        recipe_hash="r",
        built="2026-01-01T00:00:00+00:00",
        mpi=("pmix",),
    )


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "images"
    directory.mkdir()
    monkeypatch.setenv("TOOLKIT_IMAGES", str(directory))
    monkeypatch.chdir(tmp_path)
    return directory


def put(
    images: Path, name: str = "pytorch_cpu", sif_id: str = ID, manifest_id: str | None = None
) -> None:
    fake_sif(images / f"{name}.sif", sif_id)
    (images / f"{name}.json").write_text(to_json(manifest(name, manifest_id or sif_id)))


def test_the_directory_is_told_or_in_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLKIT_IMAGES", raising=False)
    assert store.images_directory() == Path.home() / ".local/share/toolkit/images"
    monkeypatch.setenv("TOOLKIT_IMAGES", "relative")
    assert store.images_directory().is_absolute()


@pytest.mark.parametrize("name", ["pytorch_cpu", "pytorch_cpu.sif", "images/pytorch_cpu.sif"])
def test_an_image_is_found_by_name_and_by_path(images: Path, name: str) -> None:
    put(images)
    found = store.find(name)
    assert (found.name, found.path) == ("pytorch_cpu", str(images / "pytorch_cpu.sif"))
    assert found.manifest == manifest("pytorch_cpu")


def test_names_may_hold_colons_and_blanks(images: Path, tmp_path: Path) -> None:
    del images
    fake_sif(tmp_path / "pytorch:25.12-py3.sif")
    fake_sif(tmp_path / "my image.sif")
    for name in ("pytorch:25.12-py3.sif", "./pytorch:25.12-py3.sif", "my image.sif"):
        found = store.find(name)
        assert found.path == str(tmp_path / name.removeprefix("./"))
        assert found.manifest is None


def test_directories_of_the_site_come_after_ones_own(images: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    put(images, "a")
    fake_sif(site / "a.sif", OTHER)
    fake_sif(site / "b.sif", OTHER)
    missing = tmp_path / "missing"
    assert store.find("a", (missing, site)).path == str(images / "a.sif")
    assert store.find("b", (missing, site)) == store.StoredImage(name="b", path=str(site / "b.sif"))


def test_a_recipe_that_is_not_built(images: Path) -> None:
    del images
    with pytest.raises(ImageMissingError) as caught:
        store.find("pytorch_cpu")
    assert caught.value.next_step == "toolkit image build pytorch_cpu"


def test_an_unknown_image_names_the_nearest_of_all(images: Path, tmp_path: Path) -> None:
    put(images, "mine_2024")
    fake_sif(tmp_path / "theirs_2023.sif")
    for name, close in (
        ("pytorch_cpuu", "pytorch_cpu"),
        ("mine_2025", "mine_2024"),
        ("theirs_2024", "theirs_2023"),
    ):
        with pytest.raises(UnknownImageError) as caught:
            store.find(name, (tmp_path,))
        assert caught.value.close == close
        assert caught.value.next_step == "toolkit image list"


@pytest.mark.parametrize(
    "name",
    ["missing/x.sif", "/missing.sif", "../x", "", ".", "/", "x" * 300, "a\0b", "~nobody-at-all/x"],
)
def test_a_path_where_nothing_is(images: Path, name: str) -> None:
    del images
    with pytest.raises((UnknownImageError, ImageMissingError)):
        store.find(name)


def test_a_file_that_is_no_image(tmp_path: Path, images: Path) -> None:
    del images
    (tmp_path / "script.sif").write_text("#!/bin/sh\n")
    (tmp_path / "long.sif").write_bytes(b"\0" * 5000)
    for name in ("script.sif", "long.sif"):
        with pytest.raises(ImageMissingError, match="not an image"):
            store.find(name)


def test_an_image_that_is_cut_off(images: Path) -> None:
    put(images)
    fake_sif(images / "pytorch_cpu.sif", cut=1)
    with pytest.raises(ImageMissingError, match="cut off"):
        store.find("pytorch_cpu")


@pytest.mark.parametrize(
    "case", ["no manifest", "another's manifest", "another size", "half a manifest"]
)
def test_a_file_without_its_manifest_is_not_whole(images: Path, case: str) -> None:
    put(images)
    path = images / "pytorch_cpu.json"
    if case == "no manifest":
        path.unlink()
    elif case == "another's manifest":
        path.write_text(to_json(manifest("pytorch_cpu", OTHER)))
    elif case == "another size":
        path.write_text(to_json(manifest("pytorch_cpu", size=4095)))
    else:
        path.write_text(path.read_text()[:50])
    with pytest.raises(ImageMissingError, match="not whole") as caught:
        store.find("pytorch_cpu")
    assert caught.value.next_step == "toolkit image build pytorch_cpu"


def test_publishing_replaces_the_file_and_the_manifest(images: Path, tmp_path: Path) -> None:
    put(images, "x", OTHER)
    built = fake_sif(tmp_path / "built.sif")
    path = store.publish(built, manifest("x"), images)
    assert store.find("x").manifest == manifest("x")
    assert sorted(file.name for file in images.iterdir()) == ["x.json", "x.sif"]
    assert path == images / "x.sif"
    assert not built.exists()


def test_a_name_that_begins_like_another_keeps_its_manifests(images: Path, tmp_path: Path) -> None:
    """`x` and `x.y` are different images: publishing the first leaves what is announced of the second."""
    announced = images / f".x.y.{ID}.json"
    announced.write_text(to_json(manifest("x.y")))
    store.publish(fake_sif(tmp_path / "built.sif", OTHER), manifest("x", OTHER), images)
    assert announced.exists()


def test_settling_gives_a_manifest_its_name_and_clears_what_was_half_written(images: Path) -> None:
    """As a build leaves it that was killed between making its image visible and its last words."""
    put(images, "x", ID, manifest_id=OTHER)
    (images / f".x.{ID}.json").write_text(to_json(manifest("x")))
    mine, others = (images / name for name in (".x.cdx.json.abcd_123", ".x.y.json.abcd_123"))
    mine.touch()
    others.touch()
    store.settle(images / "x.sif")
    assert (images / "x.json").read_text() == to_json(manifest("x"))
    assert sorted(path.name for path in images.glob(".*")) == [others.name]


@pytest.mark.parametrize(
    ("image", "is_offered"),
    [("python:3.11", True), ("dockr://python:3.11", False), ("pytorch_cp", False)],
)
def test_the_way_to_a_registry_is_shown_for_what_may_be_there(image: str, is_offered: bool) -> None:
    with pytest.raises(UnknownImageError) as caught:
        store.find(image)
    assert (f"docker://{image}" in (caught.value.next_step or "")) == is_offered


RUN, LONG = Path("/runs/x-0001"), Path("/" + "a" * 300)


def link_directory(directory: Path, own: Path) -> None:
    directory.rename(directory.with_name("away"))
    (own / "x").mkdir(exist_ok=True)
    directory.symlink_to(own)


# What another user can put where the notes on an image's use are, or where the next one will be.
PLANTED: dict[str, Callable[[Path, Path], object]] = {
    "a link for the next note": lambda notes, own: (notes / usage._name(RUN)).symlink_to(own / "a"),
    "a link for the last use": lambda notes, own: (notes / "ended").symlink_to(own / "a"),
    "a link to nothing": lambda notes, own: (notes / "ended").symlink_to(own / "new"),
    "a link for the notes": link_directory,
    "a link for all notes": lambda notes, own: link_directory(notes.parent, own),
    "a pipe": lambda notes, _: os.mkfifo(notes / "a"),
    "a directory": lambda notes, _: (notes / "a").mkdir(),
    "a long path": lambda notes, _: (notes / "a").write_text(f"{LONG}\0007\0local"),
    "no path": lambda notes, _: (notes / "a").write_text("a\0007\0local"),
    "no number": lambda notes, _: (notes / "a").write_text("/a\000-7\0local"),
    "no cluster": lambda notes, _: (notes / "a").write_text("/a\0007\000../../evil"),
    "no text": lambda notes, _: (notes / "a").write_bytes(b"/\xff"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_notes_on_the_use_of_an_image_lead_nowhere_else(planted: str, tmp_path: Path) -> None:
    image, own = tmp_path / "images/x.sif", tmp_path / "own"
    own.mkdir()
    (own / "a").write_text("thesis")
    (tmp_path / "images/.used/x").mkdir(parents=True)
    image.touch()
    PLANTED[planted](tmp_path / "images/.used/x", own)
    before = {path: path.stat().st_mtime_ns for path in own.rglob("*")}

    def holds(use: usage.Use) -> bool:
        assert (use.job_id, use.cluster) == (7, "local")
        return (use.run / "plan.json").is_file()

    usage.note(image, usage.Use(RUN, 7, "local"))
    assert usage.last_used(image) > 0
    assert set(usage.unfinished(image)) <= {RUN, LONG}
    assert set(usage.unfinished(image, holds)) <= {LONG}
    usage.release(image, RUN)
    usage.forget(image)
    assert {path: path.stat().st_mtime_ns for path in own.rglob("*")} == before
    assert (own / "a").read_text() == "thesis"


def test_a_pipe_in_the_cache_is_no_entry(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    note = cache._note("layers", "a" * 64)
    note.parent.mkdir(parents=True)
    os.mkfifo(note)
    assert cache.find("layers", "a" * 64) is None
