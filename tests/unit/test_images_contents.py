"""What an image says of its contents, and the bill of materials that is made of it."""

from __future__ import annotations

import json
import subprocess

import msgspec
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from toolkit.images.store import sbom
from toolkit.images.store.contents import SCRIPT, Contents, DebianPackage, PythonPackage, parse
from toolkit.model.base import from_json, to_json
from toolkit.model.image import BaseImage, Manifest

SAID = """\
welcome to this shell
toolkit-contents: apt installed\tlibc6\t2.36-9\tamd64\tglibc\t2.36-9
toolkit-contents: apt installed\tlibc6\t2.36-9\ti386\tglibc\t2.36-9
toolkit-contents: apt installed\tmawk\t1.3.4-1\tamd64\tmawk\t1.3.4-1
toolkit-contents: apt config-files\tgone\t1\tamd64\tgone\t1
toolkit-contents: system Debian GNU/Linux 12 (bookworm)
toolkit-contents: python {"version": "3.11.2", "packages": [{"name": "numpy", "version": "2.4.6", "license": "BSD-3-Clause", \
"tags": ["cp311-cp311-manylinux_2_28_x86_64"]}, {"name": "Odd_One", "version": "1", "license": "as is", "tags": []}, \
{"name": "numpy", "version": "1.0", "license": "", "tags": []}], "horovod": {"pytorch": "2.13.0+cpu"}}
toolkit-contents: end
"""
MANIFEST = Manifest(
    name="pytorch_cpu",
    sif_id="0" * 32,
    size=1,
    recipe_hash="ab" * 32,
    built="2026-11-21T05:00:00+00:00",
    base=BaseImage(reference="debian bookworm"),
    horovod={"pytorch": "2.13.0+cpu"},
)


def contents() -> Contents:
    found = parse(SAID)
    assert found
    return found


def test_every_package_is_found_by_its_name_and_version() -> None:
    found = contents()
    assert found.packages.apt == {
        "libc6:amd64": "2.36-9",
        "libc6:i386": "2.36-9",
        "mawk": "1.3.4-1",
    }
    assert found.packages.pip == {
        "numpy": "2.4.6",
        "Odd_One": "1",
    }  # the first on Python's path is the one that it imports
    assert found.horovod == {"pytorch": "2.13.0+cpu"}
    assert (found.system, found.python) == ("Debian GNU/Linux 12 (bookworm)", "3.11.2")


def test_every_python_is_listed_once_with_its_modules() -> None:
    told = (
        'toolkit-modules: {"path": "/opt/venv/bin/python3", "prefix": "/opt/venv", "version": "3.11.2", "modules": ["json", "torch"]}',
        'toolkit-modules: {"path": "/opt/venv/bin/python", "prefix": "/opt/venv", "version": "3.11.2", "modules": ["json", "torch"]}',
        'toolkit-modules: {"path": "/usr/bin/python3", "prefix": "/usr", "version": "3.11.2", "modules": ["json"]}',
    )
    found = parse("\n".join((*told, SAID)))
    assert found
    assert [(one.path, one.modules) for one in found.pythons] == [
        ("/opt/venv/bin/python3", ("json", "torch")),
        ("/usr/bin/python3", ("json",)),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "toolkit-modules: nonsense",
        'toolkit-modules: {"path": 1}',
        "toolkit-modules: " + "[" * 100000,
    ],
)
def test_modules_that_no_program_of_ours_lists_are_refused(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse(f"{line}\n{SAID}")


def test_an_image_that_stops_in_the_middle_says_nothing() -> None:
    assert parse(SAID.replace("toolkit-contents: end\n", "")) is None
    assert parse("") is None


def test_what_no_script_of_ours_said_is_refused() -> None:
    with pytest.raises(ValueError, match=r"."):
        parse("toolkit-contents: python {]\ntoolkit-contents: end\n")


def test_the_script_runs_in_any_shell() -> None:
    said = subprocess.run(
        ["/bin/sh", "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    found = parse(said.stdout)
    assert found is not None
    none = subprocess.run(
        ["/bin/sh", "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/nowhere"},
    )
    bare = parse(none.stdout)
    assert bare is not None
    assert (bare.debian, bare.pip) == ((), ())


def test_the_bill_of_materials_keeps_to_the_schema() -> None:
    document = sbom.cyclonedx(MANIFEST, contents())
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(document) is None
    data = json.loads(document)
    assert data["metadata"]["component"]["name"] == "pytorch_cpu"
    urls = {one.get("purl") for one in data["components"]}
    assert {
        "pkg:deb/debian/mawk@1.3.4-1?arch=amd64",
        "pkg:pypi/numpy@2.4.6",
        "pkg:pypi/odd-one@1",
    } <= urls
    assert "pkg:pypi/numpy@1.0" not in urls
    properties = {one["name"]: one["value"] for one in data["metadata"]["component"]["properties"]}
    assert properties["toolkit:horovod:pytorch"] == "2.13.0+cpu"
    assert properties["toolkit:base"] == "debian bookworm"


def test_the_bill_of_materials_is_the_same_for_the_same_image_only() -> None:
    document = sbom.cyclonedx(MANIFEST, contents())
    assert sbom.cyclonedx(MANIFEST, contents()) == document
    other = msgspec.structs.replace(MANIFEST, built="2026-11-21T06:00:00+00:00")
    assert sbom.cyclonedx(other, contents()) != document


def test_any_license_text_is_carried() -> None:
    odd = Contents(
        debian=(
            DebianPackage(
                name="a", version="1:2~3+b", architecture="all", source="a", source_version="1:2~3"
            ),
        ),
        pip=tuple(
            PythonPackage(name=f"p{n}", version="1", license=text)
            for n, text in enumerate(("MIT", "MIT OR GPL-2.0", "née <x>", ""))
        ),
    )
    document = sbom.cyclonedx(MANIFEST, odd)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(document) is None
    found = {one["name"]: one.get("licenses") for one in json.loads(document)["components"]}
    assert found["p0"] == [{"expression": "MIT"}]
    assert found["p1"] == [{"expression": "MIT OR GPL-2.0"}]
    assert found["p2"] == [{"license": {"name": "née <x>"}}]
    assert found["p3"] is None


def test_manifests_of_before_are_read() -> None:
    old = '{"name": "a", "sif_id": "0", "size": 1, "recipe_hash": "b", "built": "2026-01-01T00:00:00+00:00"}'
    manifest = from_json(old, Manifest)
    assert (manifest.packages.apt, manifest.base, manifest.locked, manifest.signatures) == (
        {},
        None,
        "",
        (),
    )
    assert from_json(to_json(MANIFEST), Manifest) == MANIFEST
