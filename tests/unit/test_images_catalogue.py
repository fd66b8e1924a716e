"""The catalogue of NGC releases: what is in it, what is not, and where each fact comes from."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.unit.samples import MANIFEST
from toolkit.errors import UnknownImageError
from toolkit.images.recipe import catalogue
from toolkit.images.recipe.catalogue import FACTS
from toolkit.model.image import Packages
from toolkit.units import compare


def test_a_release_as_it_is_written():
    found = catalogue.find("pytorch", "24.05")
    assert (found.name, found.reference) == ("pytorch:24.05", "nvcr.io/nvidia/pytorch:24.05-py3")
    names = "version python ubuntu cuda nccl openmpi hpcx driver"
    assert " ".join(str(found.value(name)) for name in names.split()) == (
        "2.4.0a0+07cecf4168 3.10 22.04 12.4.1 2.21.5 4.1.4+ 2.19 550.54"
    )
    assert found.facts["driver"].note.startswith("the driver shipped with that toolkit")


def test_unknown_is_not_none():
    """That something is known not to be there is a fact; that nobody knows it is none."""
    release = catalogue.find("pytorch", "22.03")
    assert (release.value("openmpi"), release.facts.get("openmpi")) == (None, None)
    assert (release.value("horovod"), release.facts["horovod"].value) == (None, "none")
    with pytest.raises(UnknownImageError) as caught:
        catalogue.find("pytorhc", "22.03")
    assert caught.value.close == "pytorch:22.03"


def test_every_fact_has_a_source_and_a_name_and_the_newest_release_is_first():
    for entry in catalogue._read_catalogue().releases:
        assert set(entry) <= {*FACTS, "framework", "release", "source"}
    releases = catalogue.list_releases()
    assert all(fact.source and fact.value for each in releases for fact in each.facts.values())
    names = [one.release for one in releases if one.framework == "pytorch"]
    assert names == sorted(names, reverse=True)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("pytorch:22.03", "pytorch:22.03"),
        ("pytorch:22.03-py3", "pytorch:22.03"),
        ("docker://nvcr.io/nvidia/tensorflow:22.03-tf2-py3", "tensorflow:22.03"),
        ("tensorflow:22.03-py3", None),
        ("mirror.example/nvidia/pytorch:22.03-py3", None),
    ],
)
def test_a_release_is_known_by_its_references(text, name):
    found = catalogue.find_by_name(text)
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("pip", "cuda"),
    [
        ({"nvidia-cuda-runtime": "13.0.96"}, "13.0"),
        ({"nvidia-cuda-runtime-cu12": "12.9.79"}, "12.9"),
        ({"nvidia-cuda-runtime-x": "1.0"}, ""),
        ({"nvidia-cuda-runtime": f"{'9' * 5000}.0"}, ""),  # more digits than Python converts
    ],
)
def test_the_cuda_that_packages_of_python_bring(pip, cuda):
    manifest = replace(MANIFEST, frameworks={"tensorflow": "2.21.0"}, packages=Packages(pip=pip))
    assert catalogue.find_cuda(manifest) == cuda


_DRIVERS = {"10.2.89": "440.33", "11.6.1": "450", "12.8.0": "525", "13.1": "580", "9.0": None}
_GPUS = {"V100 NVLink": "7.0", "NVIDIA A100-SXM4-80GB": "8.0", "a100_1g.5gb": "8.0", "x": None}


@pytest.mark.parametrize(
    ("find", "known"),
    [(catalogue.find_oldest_driver, _DRIVERS), (catalogue.find_capability, _GPUS)],
)
def test_the_oldest_driver_of_a_cuda_version_and_the_capability_of_a_gpu(find, known):
    found = {text: find(text) for text in known}
    assert {text: fact and fact[0] for text, fact in found.items()} == known


def test_versions_are_compared_as_far_as_they_are_said():
    rows = "12.8.1 12 0|12.8.1 12.8 0|12.8 12.8.1 -1|11.6.1 12 -1|550.54 525.60.13 1|3.9 3.10 -1"
    for version, other, result in (row.split() for row in rows.split("|")):
        assert compare(version, other) == int(result), version
