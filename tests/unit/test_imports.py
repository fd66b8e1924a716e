"""A job whose imports fail does not queue, and the message has the step that mends it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from msgspec.structs import replace

from tests.unit.samples import MANIFEST, make_case, read_script, write_files
from toolkit.config import package_directory
from toolkit.model.case import Import, Source
from toolkit.model.image import Manifest, Python
from toolkit.rules import judge
from toolkit.rules.image import find_package

HAS = ("torch", "os", "sys", "json")
PYTHON = Python(path="/opt/venv/bin/python3", version="3.11.2", modules=HAS)
IMAGE = replace(MANIFEST, pythons=(PYTHON,))
OWN = replace(IMAGE, name="mine", command="toolkit image build mine.toml")


def findings(
    read: Source, manifest: Manifest | None = IMAGE, **job: object
) -> list[tuple[bool, str]]:
    """Return the findings about imports: whether each stops the job, and its message."""
    judged = judge(make_case(dict(job), source=read, manifest=manifest))
    return [
        (not each.is_warning, "\n".join((each.summary, *each.details)))
        for each in sorted(judged, key=lambda each: each.is_warning)
        if each.place == "imports"
    ]


FINDINGS = [
    ("import torch, cv2\nimport yaml\n", IMAGE, {}, True, [
        "the image pytorch_cpu has no cv2 (train.py, line 1), yaml (train.py, line 2)",
        "toolkit image new pytorch_cpu-more --from pytorch_cpu --pip opencv-python-headless --pip PyYAML; "
        "toolkit image build pytorch_cpu-more.toml; then --image pytorch_cpu-more",
        'packages = ["opencv-python-headless", "PyYAML"]',
    ]),
    ("import einops", OWN, {}, True, ["add the step below to mine.toml, then toolkit image build mine.toml"]),
    ("import evaluate, opentelemetry.trace", IMAGE, {}, True, ["--pip evaluate", "--pip opentelemetry-sdk"]),
    ("import sklearn", IMAGE, {"runtime": "conda"}, True, ["/opt/venv/bin/python3 -m pip install scikit-learn"]),
    ("import mine_own", IMAGE, {}, True, ["if it is your own code: --env PYTHONPATH=DIRECTORY"]),
    ("import sys\nsys.path.append(f())\nimport gone", IMAGE, {}, False, ["gone", "only a run shows"]),
    ("def f():\n    import wandb\nif x:\n    import einops\n", IMAGE, {}, False, []),
    ("import json, torch, gone", MANIFEST, {}, False, ["not known whether the image pytorch_cpu has gone: its modules", "toolkit image verify pytorch_cpu"]),
    ("import json, torch, horovod", MANIFEST, {}, False, []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "manifest", "job", "stops", "words"), FINDINGS)
def test_a_finding_names_every_import_its_place_and_the_step_that_adds_it(
    text, manifest, job, stops, words, tmp_path
):
    read = read_script(write_files(tmp_path, {"train.py": text}))
    found = findings(read, manifest, **job)
    assert len(found) == bool(words)
    for is_stopping, message in found:
        assert is_stopping is stops
        assert all(word in message for word in words), message


PACKAGES = {
    **{"cv2": "opencv-python-headless", "PIL.Image": "pillow", "sklearn": "scikit-learn"},
    **{"einops": "einops", "a_b": "a-b", "utils": "", "json": "", "google": ""},
    **{"google.protobuf": "protobuf", "google.protobuf.text_format": "protobuf"},
    **{"imp": "", "cgi": "", "telnetlib": "", "distutils.core": "setuptools", "tomllib": "tomli"},
    **{"google.cloud.storage": "google-cloud-storage", "google.unheard_of": ""},
}


def test_the_package_of_a_module_is_named():
    """The package google of the index is another one."""
    for within, package in PACKAGES.items():
        name = within.partition(".")[0]
        assert find_package(Import(name, "train.py", 1, within=within)) == package


def test_a_python_lists_all_that_it_can_import(tmp_path):
    """Compare with what Python's own search finds, for every kind of package."""
    site = tmp_path / "site-packages"
    names = ("bare/inner/x.py", "whole/__init__.py", "one.py", "note.txt", "data.d/x")
    files = dict.fromkeys((*names, "fast.cpython-311-x86_64-linux-gnu.so"), "")
    files |= {"odd-1.0.dist-info/top_level.txt": "declared\n", "more.pth": str(tmp_path / "other")}
    write_files(site, files)
    write_files(tmp_path, {"other/linked.py": "", "beside.py": ""})
    program = (package_directory("runtimes") / "probe.py").read_text()
    start = f"import site; site.addsitedir({str(site)!r})\n"

    def said(*words: str) -> str:
        return subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, check=True, cwd=tmp_path
        ).stdout

    answer = said("-s", "-c", start + program).removeprefix("toolkit-modules: ")
    modules = set(json.loads(answer)["modules"])
    assert {*"bare whole one fast declared linked json sys pytest".split()} <= modules
    assert not {"beside", "note", "data", "more", "odd", "__pycache__"} & modules
    listed = said(
        "-c",
        "import pkgutil, sys; print(*(one.name for one in pkgutil.iter_modules(sys.path[1:])))",
    )
    assert {name for name in listed.split() if name.isidentifier()} <= modules
