"""Images that are named by their place in a registry: their names here, and which of them are kept."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.unit.samples import MANIFEST
from tests.unit.test_images_store import fake_sif
from toolkit.errors import ImageMissingError, UsageError
from toolkit.images.recipe.names import LONGEST, is_image_name
from toolkit.images.registry import foreign
from toolkit.images.store import store

DIGEST = "sha256:" + "ab" * 32
LONG = f"docker://ghcr.io/{'very/' * 40}"


@pytest.mark.parametrize(
    ("image", "name", "origin"),
    [
        ("docker://python:3.11", "python_3.11", "docker://docker.io/library/python:3.11"),
        ("oras://localhost:5000/a/b:1", "localhost_5000_a_b_1", "oras://localhost:5000/a/b:1"),
        (
            f"docker://busybox@{DIGEST}",
            f"busybox_{DIGEST.replace(':', '_')}",
            f"docker://docker.io/library/busybox@{DIGEST}",
        ),
    ],
)
def test_an_image_is_kept_under_the_name_of_its_reference(image, name, origin):
    assert foreign.locate(image).name == f"{name}.sif"
    assert foreign.complete_reference(image) == origin
    assert is_image_name(name)


def test_a_long_reference_gets_a_name_of_its_own_that_a_file_can_have():
    names = {foreign.locate(f"{LONG}{last}:1").stem for last in ("one", "two")}
    assert len(names) == 2
    assert all(is_image_name(name) and len(name) <= LONGEST for name in names)


def test_only_the_image_of_this_very_reference_is_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLKIT_IMAGES", str(tmp_path))
    image, path = "docker://python:3.11", tmp_path / "python_3.11.sif"
    assert foreign.find_stored(image) is None
    fake_sif(path)
    with pytest.raises(UsageError, match="another image has that name"):
        foreign.find_stored(image)
    fake_sif(path, inside=replace(MANIFEST, origin=foreign.complete_reference(image)))
    assert foreign.find_stored(image) == store.find("python_3.11")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ImageMissingError):
        foreign.find_stored(image)
