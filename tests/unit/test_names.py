"""Names from elsewhere become paths only where they are one plain name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch
from urllib.parse import urlsplit

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.readers import READERS, with_manifest
from tests.unit.samples import MANIFEST
from tests.unit.test_cli import said
from toolkit.errors import MalformedInputError
from toolkit.images.lockfile.apply import format_preferences
from toolkit.images.lockfile.index import Index
from toolkit.images.recipe.lock import Lock, Pinned, format_lock, parse_lock
from toolkit.images.recipe.names import is_file_name, is_image_name
from toolkit.images.store import store
from toolkit.model.base import BadDataError, to_json, toml_value
from toolkit.model.image import BaseImage

HOSTILE = (
    *("../x", "../../../../../../tmp/toolkit-escaped", "/tmp/toolkit-escaped", "a/../../x"),
    *("..", ".", "", ".bashrc", "-rf", "a\0b", "a\nb", "a\n", "a b", "..\\x", "a.", "é", "／etc"),
    *("a\u202egpj", "a\x1b[2Jb", "a" * 300, "~root", "$(id)", "*"),
)
DIGEST = hashlib.sha256(b"wheel").hexdigest()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_none_of_an_image_or_a_file(name):
    assert not is_image_name(name)
    assert not is_file_name(name)


@given(st.text(max_size=200))
def test_a_name_that_is_taken_is_one_part_of_a_path(name):
    if is_image_name(name):
        path = Path("/images") / f"{name}.sif"
        assert path.parent == Path("/images")
        assert path.name == f"{name}.sif"
        assert len(f"..{name}.note.json.12345678".encode()) < 256
        assert name.isprintable()
        assert name.isascii()


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store in a directory of which everything else is watched."""
    place, victim = tmp_path / "a/b/images", tmp_path / "a/x.sif"
    place.mkdir(parents=True)
    victim.write_text("the user's own")
    monkeypatch.setenv("TOOLKIT_IMAGES", str(place))
    monkeypatch.setenv("HOME", str(victim.parent))
    monkeypatch.chdir(victim.parent)
    yield place
    assert victim.read_text() == "the user's own"
    assert {path.name for path in victim.parent.iterdir()} == {"b", "x.sif"}
    assert list(place.parent.iterdir()) == [place]
    assert not Path("/tmp/toolkit-escaped.sif").exists()


def pull(manifest: str, tmp_path: Path, *words: str) -> tuple[int, str]:
    """Pull the only image of a registry, with a manifest, and return the exit code and output.

    Apptainer is a stand-in that copies the image.
    """
    image, program = tmp_path / "image.sif", tmp_path / "apptainer"
    image.write_bytes(with_manifest(READERS["sif"].seeds[0], manifest.encode()))
    program.write_text(
        f'#!/bin/sh\n[ "$1" = pull ] && for word; do case $word in *.sif) cp {image} "$word"; esac; done'
    )
    program.chmod(0o755)
    with patch.dict(os.environ, PATH=f"{tmp_path}:/usr/bin:/bin"):
        code, out, error = said("image", "pull", "oras://127.0.0.1:1/a/b:1", *words)
    return code, out + error


def manifest(name: str) -> str:
    return to_json(msgspec.structs.replace(MANIFEST, name=name))


def test_an_image_is_pulled_by_its_manifest(images, tmp_path):
    assert pull(manifest("x"), tmp_path)[0] == 0
    assert {path.name for path in images.iterdir()} == {".x.lock", ".x.note.json", "x.sif"}
    known = store.find("x").manifest
    assert known
    assert (known.name, known.origin) == ("x", "oras://127.0.0.1:1/a/b:1")
    assert known.packages == MANIFEST.packages


@pytest.mark.parametrize(
    ("text", "words", "code"),
    [
        *((manifest(name), ["--force"], 95) for name in HOSTILE),
        # Nor by an accident of the user.
        *((manifest("x"), [f"--name={name}"], 64) for name in HOSTILE if "\0" not in name),
    ],
)
def test_a_registry_cannot_choose_a_path(images, tmp_path, text, words, code):
    ended, output = pull(text, tmp_path, *words)
    assert ended == code, output
    assert "cannot be the name of an image" in output
    assert list(images.iterdir()) == []


@pytest.mark.parametrize("text", ["[]", "{}", '{"x": "y"}', "null", "[" * 5000])
def test_an_image_with_a_manifest_of_another_kind_is_a_foreign_one(images, tmp_path, text):
    assert pull(text, tmp_path)[0] == 0
    assert {path.name for path in images.iterdir()} == {".b.lock", ".b.note.json", "b.sif"}
    known = store.find("b").manifest
    assert known
    assert (known.name, known.recipe_hash) == ("b", "")


def lock(digits: str = DIGEST, **more: dict[str, str]) -> Lock:
    pinned = (Pinned(name="a", version="1", sha256=(digits,)),)
    base = BaseImage(reference="debian")
    return Lock(name="x", recipe_hash="0", epoch=1, base=base, pip=pinned, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_lock_cannot_choose_a_path(name):
    built = msgspec.structs.replace(lock(), pip_build=lock(name).pip)
    for text in (format_lock(lock(name)), format_lock(built)):
        with pytest.raises(BadDataError):
            parse_lock(text, Lock)


@pytest.mark.parametrize("text", ["1\nPin-Priority: -1", "1\n\nPackage: sudo", "", "1 2", "$(id)"])
def test_a_lock_cannot_add_lines_to_what_apt_reads(text):
    for packages in ({"apt": {"libc6": text}}, {"apt": {text: "1"}}, {"apt_build": {text: "1"}}):
        with pytest.raises(MalformedInputError):
            format_preferences(lock(**packages))


@pytest.mark.parametrize(
    "url",
    [
        *(f"https://index.site/{name}" for name in HOSTILE),
        *("https://index.site/%2e%2e%2fx", "https://index.site/a%2f..%2fb", "ftp://site/a-1.zip"),
        *("file:///etc/a-1.tar.gz", "file:///mirror/../etc/a-1.tar.gz", "a-1.tar.gz"),
    ],
)
def test_an_index_cannot_name_paths_or_files_of_this_machine(url):
    index = Index(settings={"index-url": "https://index.site/", "find-links": "/mirror/wheels"})
    good = "file:///mirror/wheels/b-1.zip"
    lines = (
        f'[[packages]]\nname = "a"\n'
        f'sdist = {{ url = {toml_value(one)}, hashes = {{ sha256 = "{DIGEST}" }} }}\n'
        for one in (url, good)
    )
    files = tuple(index._parse("".join(lines)))
    assert all(is_file_name(file.name) for file in files)
    assert [file.url for file in files if urlsplit(file.url).scheme != "https"] == [good]


@pytest.mark.parametrize("name", [name for name in HOSTILE if "\0" not in name])
@pytest.mark.parametrize("verb", ["new", "import"])
def test_a_recipe_is_written_where_it_should_be(images, monkeypatch, verb, name):
    monkeypatch.chdir(images)
    Path("Dockerfile").write_text("FROM debian:bookworm\nRUN true\n")
    words = (
        ["--from", "pytorch_cpu", "--", name] if verb == "new" else [f"--name={name}", "Dockerfile"]
    )
    code, _, _ = said("image", verb, *words)
    if name:  # without one it is that of the file
        assert code == 64
        assert [path.name for path in images.iterdir()] == ["Dockerfile"]
