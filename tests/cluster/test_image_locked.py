"""A small image of real Debian and real Python packages: built, locked, and built twice by its lock on what might be two machines."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from toolkit.errors import BuildError
from toolkit.files import read_toml
from toolkit.images import library, store
from toolkit.images.builders import locking
from toolkit.model.image import Manifest
from toolkit.model.lock import Lock

RECIPE = """\
summary = "Debian, a package of it, and one of Python"
[base]
kind = "debootstrap"
release = "bookworm"
[[steps]]
block = "apt"
packages = ["less"]
[[steps]]
block = "python"
[[steps]]
block = "pip"
packages = ["cloudpickle"]
imports = ["cloudpickle"]
[space]
image = 200
build = 1000
"""


class Machines:
    """Stores that share nothing but a recipe and its lock."""

    def __init__(self, place: Path) -> None:
        self.place, self.recipe = place, place / "small.toml"
        self.recipe.write_text(RECIPE)

    def images(self, machine: str) -> Path:
        return self.place / machine

    def run(self, machine: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "TOOLKIT_IMAGES": str(self.images(machine)), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "toolkit", "image", *map(str, arguments)]
        return subprocess.run(command, env=environment, cwd=self.place, capture_output=True, text=True, check=False, timeout=580)

    def manifest(self, machine: str) -> Manifest:
        return msgspec.json.decode((self.images(machine) / "small.json").read_bytes(), type=Manifest)

    def digest(self, machine: str) -> str:
        return hashlib.sha256((self.images(machine) / "small.sif").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    """An image that was built from what there is, and its lock."""
    with tempfile.TemporaryDirectory(prefix="toolkit-test-", dir="/var/tmp") as name:
        made = Machines(Path(name))
        built = made.run("first", "build", made.recipe)
        assert built.returncode == 0, built.stderr
        locked = made.run("first", "lock", made.recipe)
        assert locked.returncode == 0, locked.stderr
        yield made


def test_the_manifest_says_what_is_in_the_image_and_where_it_comes_from(machines: Machines) -> None:
    manifest = machines.manifest("first")
    assert manifest.base is not None
    assert manifest.base.reference == "debian bookworm"
    assert {"libc6", "less", "python3", "mawk"} <= set(manifest.packages.apt)
    assert {"cloudpickle", "pip"} <= set(manifest.packages.pip)
    assert manifest.system.startswith("Debian GNU/Linux 12")
    assert manifest.command == f"toolkit image build {machines.recipe}"
    assert {"toolkit", "apptainer", "debootstrap", "squashfs-tools"} <= set(manifest.tools)
    assert manifest.locked == ""


def test_a_bill_of_materials_lies_beside_the_image(machines: Machines) -> None:
    document = (machines.images("first") / "small.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(document) is None
    names = {one["name"] for one in json.loads(document)["components"]}
    assert {"libc6", "less", "cloudpickle"} <= names
    printed = machines.run("first", "sbom", "small")
    assert (printed.returncode, printed.stdout) == (0, document)


def test_a_lock_names_every_package_and_every_file(machines: Machines) -> None:
    lock = read_toml(machines.place / "small.lock", Lock)
    manifest = machines.manifest("first")
    assert lock.apt == manifest.packages.apt
    assert {one.name: one.version for one in lock.pip} == manifest.packages.pip
    pickle = next(one for one in lock.pip if one.name == "cloudpickle")
    assert pickle.file.endswith("-py3-none-any.whl")
    assert len(pickle.sha256) == 64


def test_two_locked_builds_are_the_same_to_the_last_byte(machines: Machines) -> None:
    with ThreadPoolExecutor(2) as both:
        for built in both.map(lambda machine: machines.run(machine, "build", machines.recipe, "--locked"), ("second", "third")):
            assert built.returncode == 0, built.stderr
    second, third = machines.manifest("second"), machines.manifest("third")
    assert second.locked
    assert second.partition == third.partition != ""
    assert machines.digest("second") == machines.digest("third")
    assert second.packages == machines.manifest("first").packages
    compared = machines.run("second", "diff", machines.images("second") / "small.sif", machines.images("third") / "small.sif")
    assert compared.returncode == 0, compared.stdout
    assert "identical contents" in compared.stdout
    again = machines.run("second", "build", machines.recipe, "--locked", "--json")
    assert json.loads(again.stdout)["kept"] is True
    # Beside the open build there is another time of building, and whatever came with it; no other package.
    opened = machines.run("second", "diff", machines.images("first") / "small.sif", machines.images("second") / "small.sif", "--json")
    assert opened.returncode == 1
    changes = json.loads(opened.stdout)["changes"]
    assert "org.label-schema.build-date" in [one["name"] for one in changes if one["kind"] == "labels"]
    assert [one for one in changes if one["kind"] in ("packages", "environment")] == []


def test_a_lock_of_another_recipe_is_refused(machines: Machines) -> None:
    other = machines.place / "small" / "small.toml"
    other.parent.mkdir()
    other.write_text(RECIPE.replace('"less"', '"less", "file"'))
    refused = machines.run("second", "build", other, "--lock-file", machines.place / "small.lock")
    assert refused.returncode == 78
    assert "apt has changed" in refused.stderr


def test_a_version_that_the_mirror_no_longer_has_is_named(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image's own apt asks the real mirror, as it does in a locked build after each update."""
    monkeypatch.setenv("TOOLKIT_IMAGES", str(machines.images("first")))
    lock = read_toml(machines.place / "small.lock", Lock)
    gone = msgspec.structs.replace(lock, apt={**lock.apt, "less": "1:0.1-1"})
    image = store.find(str(machines.images("first") / "small.sif"))
    with pytest.raises(BuildError, match="no longer has 1 package") as caught:
        locking.build_packages(image, library.load(str(machines.recipe)), gone)
    assert caught.value.place == "less"
    assert caught.value.details[0].startswith("less 1:0.1-1 (there is ")
