"""Files of Python packages: pages of indexes, and which file an installed package came from."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from toolkit.errors import CommandFailedError
from toolkit.images.lockfile.index import Index
from toolkit.images.lockfile.packages import (
    File,
    choose_file,
    find_origin,
    matches,
    parse_page,
)
from toolkit.images.recipe.names import normalize_name

PAGE = """<!DOCTYPE html><html><body>
<a href="../../files/numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl#sha256=aa">numpy</a>
<a href="https://elsewhere.example/torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl">torch</a>
<a href="horovod-0.28.1.tar.gz#md5=bb">horovod</a></body></html>"""


def test_pages_are_read_as_pip_reads_them() -> None:
    found = parse_page(PAGE, "https://index.example/simple/numpy/", is_json=False)
    assert (
        found[0].url
        == "https://index.example/files/numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"
    )
    assert found[0].sha256 == "aa"
    assert found[1].name == "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"
    assert found[2] == File(
        name="horovod-0.28.1.tar.gz", url="https://index.example/simple/numpy/horovod-0.28.1.tar.gz"
    )
    page = '{"files": [{"filename": "a-1.tar.gz", "url": "../a-1.tar.gz", "hashes": {"sha256": "cc"}}, {"filename": "b", "url": "/b"}]}'
    as_json = parse_page(page, "https://index.example/simple/a/", is_json=True)
    assert as_json[0] == File(
        name="a-1.tar.gz", url="https://index.example/simple/a-1.tar.gz", sha256="cc"
    )
    assert as_json[1].sha256 == ""


@pytest.mark.parametrize(
    ("file", "name", "version"),
    [
        ("scikit_learn-1.9.1-cp311-cp311-manylinux_2_28_x86_64.whl", "scikit-learn", "1.9.1"),
        ("torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl", "torch", "2.13.0+cpu"),
        ("PyYAML-6.0.3.tar.gz", "pyyaml", "6.0.3"),
        ("zope.interface-1.0-2-py3-none-any.whl", "zope-interface", "1.0"),
        ("a_b-1.0.zip", "A.B", "1.0"),
        ("pytz-2004d.tar.gz", "pytz", "2004d"),
        ("X__y-1.0-py3-none-any.whl", "x-y", "1.0"),
    ],
)
def test_a_file_is_of_a_package_and_a_version(file: str, name: str, version: str) -> None:
    assert matches(file, name, version)
    assert not matches(file, name, version + "1")
    assert not matches(file, name + "x", version)
    assert normalize_name(name) == normalize_name(name.upper())


def files(*names: str) -> list[File]:
    return [File(name=name, url=f"https://index.example/{name}") for name in names]


def test_an_installed_package_came_from_the_wheel_with_just_its_tags() -> None:
    there = files(
        *"n-1-cp311-cp311-linux_x86_64.whl n-1-cp312-cp312-linux_x86_64.whl".split(),
        *"n-1.tar.gz n-2-cp311-cp311-linux_x86_64.whl".split(),
    )
    assert find_origin("n", "1", ["cp312-cp312-linux_x86_64"], there) == there[1]
    assert find_origin("n", "1", ["cp39-cp39-linux_x86_64"], there) == there[2]  # compiled here
    assert find_origin("n", "3", ["cp311-cp311-linux_x86_64"], there) is None


def test_a_package_for_a_python_is_a_wheel_that_it_can_take() -> None:
    there = files(
        "n-1-cp312-cp312-manylinux_2_28_x86_64.whl",
        "n-1-cp311-cp311-manylinux_2_28_aarch64.whl",
        "n-1-cp311-cp311-manylinux_2_28_x86_64.whl",
    )
    assert choose_file("n", "1", "3.11.2", "x86_64", there) == there[2]
    assert choose_file("n", "1", "3.11.2", "aarch64", there) == there[1]
    assert choose_file("n", "1", "3.13.0", "x86_64", there) is None
    more = [*there, *files("n-1.tar.gz", "n-1-py3-none-any.whl")]
    assert choose_file("n", "1", "3.13.0", "x86_64", more[:-1]) == more[-2]
    assert choose_file("n", "1", "3.11.2", "x86_64", more) == more[-1]


def test_directories_and_indexes_on_disk_are_read_and_fetched_from(tmp_path: Path) -> None:
    wheels, index = tmp_path / "wheels", tmp_path / "simple"
    (index / "some-thing").mkdir(parents=True)
    (tmp_path / "files").mkdir()
    wheels.mkdir()
    (wheels / "some_thing-1-py3-none-any.whl").write_bytes(b"one")
    (tmp_path / "files" / "some_thing-2-py3-none-any.whl").write_bytes(b"two")
    (index / "some-thing" / "index.html").write_text(
        '<a href="../../files/some_thing-2-py3-none-any.whl">2</a>'
    )
    found = Index({"find-links": str(wheels), "index-url": index.as_uri()})
    names = [file.name for file in found.files("Some.Thing")]
    assert names == ["some_thing-1-py3-none-any.whl", "some_thing-2-py3-none-any.whl"]
    for file, data in zip(found.files("Some.Thing"), (b"one", b"two"), strict=True):
        digest = hashlib.sha256(data).hexdigest()
        assert found.digest(file) == digest
        assert found.fetch(file, tmp_path / "here") == digest
        assert (tmp_path / "here").read_bytes() == data
    assert (
        Index({"no-index": "true", "find-links": str(wheels)}).files("nothing")[0].name
        == "some_thing-1-py3-none-any.whl"
    )


def test_a_file_that_is_gone_is_said(tmp_path: Path) -> None:
    gone = File(name="a-1.tar.gz", url=(tmp_path / "a-1.tar.gz").as_uri())
    with pytest.raises(CommandFailedError, match=r"a-1\.tar\.gz cannot be fetched"):
        Index({}).fetch(gone, tmp_path / "here")
    assert list(tmp_path.iterdir()) == []


def test_further_indexes_are_asked_only_when_the_others_are_done() -> None:
    found = Index({"index-url": "file:///nowhere/simple"}, ["http://127.0.0.1:1/simple"])
    assert found.files("a") == []
    with pytest.raises(CommandFailedError, match="does not answer"):
        found.further("a")


def test_a_login_in_the_address_of_an_index_is_not_shown() -> None:
    with pytest.raises(CommandFailedError) as caught:
        Index({"index-url": "http://somebody:hunter22@127.0.0.1:1/simple"}).files("a")
    assert "hunter22" not in f"{caught.value} {caught.value.place} {caught.value.details}"


@pytest.mark.parametrize(
    "tag",
    [
        "cp311-cp311-musllinux_1_2_x86_64",
        "cp311-abi3-musllinux_1_1_x86_64",
        "py3-none-musllinux_1_2_x86_64",
        "cp311-cp311-macosx_11_0_arm64",
        "cp311-cp311-win_amd64",
        "py3-none-win32",
        "cp311-cp311-manylinux_2_28_aarch64",
        "cp311-cp311-linux_armv7l",
        "cp312-abi3-manylinux_2_17_x86_64",
        "cp312-cp312-manylinux_2_17_x86_64",
        "cp311-cp311d-linux_x86_64",
        "pp311-pypy311_pp73-manylinux_2_17_x86_64",
        "cp311-cp311-manylinux_2_37_x86_64",
        "py2-none-any",
        "cp27-none-any",
    ],
)
def test_a_wheel_that_pip_would_not_take_is_not_taken(tag: str) -> None:
    wheel, source = files(f"n-1-{tag}.whl", "n-1.tar.gz")
    assert choose_file("n", "1", "3.11.2", "x86_64", [wheel, source], (2, 36)) == source
    assert choose_file("n", "1", "3.11.2", "x86_64", [wheel], (2, 36)) is None


@pytest.mark.parametrize(
    "tag",
    [
        "cp311-cp311-manylinux_2_36_x86_64",
        "cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64",
        "cp311-cp311-manylinux2014_x86_64",
        "cp311-cp311-manylinux1_x86_64",
        "cp311-cp311-linux_x86_64",
        "cp38-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64",
        "cp311-none-manylinux_2_17_x86_64",
        "py3-none-manylinux_2_17_x86_64",
        "py2.py3-none-any",
        "py311-none-any",
        "cp311-none-any",
    ],
)
def test_a_wheel_that_pip_would_take_is_taken(tag: str) -> None:
    wheel, source = files(f"n-1-{tag}.whl", "n-1.tar.gz")
    assert choose_file("n", "1", "3.11.2", "x86_64", [source, wheel], (2, 36)) == wheel


def test_the_best_of_several_wheels_is_taken() -> None:
    worse, best, good = files(
        "n-1-py3-none-manylinux_2_17_x86_64.whl",
        "n-1-cp311-cp311-manylinux_2_28_x86_64.whl",
        "n-1-cp311-cp311-manylinux_2_17_x86_64.whl",
    )
    assert choose_file("n", "1", "3.11.2", "x86_64", [worse, good, best]) == best
    assert choose_file("n", "1", "3.11.2", "x86_64", [worse, good, best], (2, 17)) == good


@pytest.mark.parametrize("python", ["", "three", "3", "9" * 5000, "-1.2"])
def test_of_a_python_that_is_none_only_what_suits_every_one_is_taken(python: str) -> None:
    there = files("n-1-cp311-cp311-linux_x86_64.whl", "n-1.tar.gz")
    assert choose_file("n", "1", python, "x86_64", there) == there[1]
