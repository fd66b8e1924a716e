"""What an image says of its contents, the bill of materials that is made of it, and how two images are compared."""

from __future__ import annotations

import json
import subprocess

import pytest
from msgspec.structs import replace

from toolkit.images.store import sbom
from toolkit.images.store.contents import SCRIPT, parse
from toolkit.images.store.diff import compare_files, compare_values, parse_listing, variables
from toolkit.model.image import BaseImage, Manifest

_VENV = '{"path": "/opt/venv/bin/%s", "prefix": "/opt/venv", "version": "3.11.2", "modules": ["json", "torch"]}'
SAID = f"""\
welcome to this shell
toolkit-contents: apt installed\tlibc6\t2.36-9\tamd64\tglibc\t2.36-9
toolkit-contents: apt installed\tlibc6\t2.36-9\ti386\tglibc\t2.36-9
toolkit-contents: apt installed\tmawk\t1:1.3.4~1\tamd64\tmawk\t1:1.3.4~1
toolkit-contents: apt config-files\tgone\t1\tamd64\tgone\t1
toolkit-contents: system Debian GNU/Linux 12 (bookworm)
toolkit-contents: python 3.11.2
toolkit-contents: pip {{"name": "numpy", "version": "2.4.6", "license": "BSD-3-Clause"}}
toolkit-contents: pip {{"name": "Odd_One", "version": "1", "license": "née <x>"}}
toolkit-contents: pip {{"name": "numpy", "version": "1.0", "license": ""}}
toolkit-contents: horovod {{"pytorch": "2.13.0+cpu"}}
toolkit-modules: {_VENV % "python3"}
toolkit-modules: {{"path": "/usr/bin/python3", "prefix": "/usr", "version": "3.11.2", "modules": ["json"]}}
toolkit-modules: {_VENV % "python"}
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


def contents():
    found = parse(SAID.splitlines())
    assert found
    return found


def test_every_package_is_found_by_its_name_and_version():
    """Of two packages of one name, the first on Python's path is the one that it imports."""
    found = contents()
    apt = {"libc6:amd64": "2.36-9", "libc6:i386": "2.36-9", "mawk": "1:1.3.4~1"}
    assert (found.packages.apt, found.packages.pip) == (apt, {"numpy": "2.4.6", "Odd_One": "1"})
    assert found.horovod == {"pytorch": "2.13.0+cpu"}
    assert (found.system, found.python) == ("Debian GNU/Linux 12 (bookworm)", "3.11.2")
    pythons = [("/opt/venv/bin/python3", ("json", "torch")), ("/usr/bin/python3", ("json",))]
    assert [(one.path, one.modules) for one in found.pythons] == pythons


@pytest.mark.parametrize(
    "line",
    [
        "toolkit-modules: nonsense",
        'toolkit-modules: {"path": 1}',
        "toolkit-modules: " + "[" * 100000,
    ],
)
def test_what_no_script_of_ours_said_is_refused(line):
    with pytest.raises(ValueError):  # noqa: PT011
        parse([line, *SAID.splitlines()])


@pytest.mark.parametrize(("path", "has_python"), [("/usr/bin:/bin", True), ("/nowhere", False)])
def test_the_script_runs_in_any_shell(path, has_python, tmp_path):
    words = ["/bin/sh", "-c", SCRIPT]
    for name, version in (("nvidia-cuda-runtime-cu12", "Version: 12.9.79\n"), ("half", "")):
        (tmp_path / f"{name}-1.dist-info").mkdir()
        (tmp_path / f"{name}-1.dist-info/METADATA").write_text(f"Name: {name}\n{version}")
    env = {"PATH": path, "PYTHONPATH": str(tmp_path), "TWO": "1\n2=3"}
    said = subprocess.run(words, capture_output=True, text=True, check=True, env=env)
    found = parse(said.stdout.splitlines())
    assert found is not None
    if has_python:
        assert "half" not in found.packages.pip, "it has no version"
        assert (found.variables["TWO"], found.cuda) == ("1\n2=3", "12.9.79")
    else:
        assert (found.debian, found.pip, found.variables) == ((), (), {})


def test_the_bill_of_materials_keeps_to_the_schema():
    # It takes two seconds, and each worker imports each file.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    document = sbom.cyclonedx(MANIFEST, contents())
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(document) is None
    data = json.loads(document)
    image = data["metadata"]["component"]
    assert image["name"] == "pytorch_cpu"
    assert {
        "pkg:deb/debian/mawk@1:1.3.4~1?arch=amd64",
        "pkg:pypi/numpy@2.4.6",
        "pkg:pypi/odd-one@1",
    } == {one["purl"] for one in data["components"] if "libc6" not in one.get("purl", "libc6")}
    properties = {one["name"]: one["value"] for one in image["properties"]}
    assert properties["toolkit:horovod:pytorch"] == "2.13.0+cpu"
    assert properties["toolkit:base"] == "debian bookworm"
    assert sbom.cyclonedx(MANIFEST, contents()) == document, "the same image, the same bytes"
    other = replace(MANIFEST, built="2026-11-21T06:00:00+00:00")
    assert sbom.cyclonedx(other, contents()) != document


LISTING = """\
Parallel unsquashfs: Using 2 processors
drwxr-xr-x root/root                76 2026-11-21 04:51 squashfs-root
-rwxr-xr-x root/root               630 2026-11-21 04:51 squashfs-root/same
-rw-r--r-- root/root                 5 2026-11-21 04:51 squashfs-root/with space -> not a link
lrwxrwxrwx root/root                27 2026-11-21 04:51 squashfs-root/link -> usr/lib/a -> b
crw-rw-rw- root/root           1,   3 2026-11-21 04:51 squashfs-root/dev/null
-rwsr-xr-x root/shadow              10 2026-11-21 04:51 squashfs-root/gone
"""
FACTS = {
    "/": "drwxr-xr-x root/root",
    "/same": "-rwxr-xr-x root/root 630",
    "/with space -> not a link": "-rw-r--r-- root/root 5",
    "/link": "lrwxrwxrwx root/root 27 -> usr/lib/a -> b",
    "/dev/null": "crw-rw-rw- root/root 1,   3",
    "/gone": "-rwsr-xr-x root/shadow 10",
}


def test_a_listing_is_read_with_links_devices_and_odd_names():
    assert {path: entry.facts for path, entry in parse_listing(LISTING).items()} == FACTS


def test_contents_decide_of_files_whose_sizes_are_the_same_and_times_of_none():
    later = LISTING.replace("usr/lib/a -> b", "usr/lib/c").replace("/gone", "/new")
    before, after = parse_listing(LISTING), parse_listing(later.replace("11-21", "11-22"))
    changes = compare_files(before, after, lambda path: "other" if path == "/same" else "")
    assert [(one.name, one.before, one.after) for one in changes] == [
        ("/gone", FACTS["/gone"], ""),
        ("/link", FACTS["/link"], "lrwxrwxrwx root/root 27 -> usr/lib/c"),
        ("/new", "", FACTS["/gone"]),
        ("/same", FACTS["/same"], "other"),
    ]


def test_names_and_variables_are_compared():
    scripts = ["#!/bin/sh\nexport PATH=/a:$PATH\nexport B=1\n", "export B=2\nif x; then\n  C='3'\n"]
    before = variables(scripts)
    assert before == {"PATH": "/a:$PATH", "B": "2", "C": "'3'"}
    changes = compare_values("environment", {**before, "gone": "1"}, {**before, "B": "4", "x": "1"})
    found = [(one.name, one.before, one.after) for one in changes]
    assert found == [("B", "2", "4"), ("gone", "1", ""), ("x", "", "1")]
