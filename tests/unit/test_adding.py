"""The pages on adding a launcher, a runtime and a rule: their code is taken from them, and works as they say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from toolkit.config import package_directory

ROOT = package_directory("..").resolve()
# A path alone on a line, and the block of code that follows it.
CODE = re.compile(r"^`([\w/.]+)`\n\n```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the package and its unit tests, in which all of the pages have been followed."""
    place = tmp_path_factory.mktemp("copy")
    for name in ("toolkit", "tests/unit"):
        shutil.copytree(ROOT / name, place / name)
    (place / "tests/__init__.py").touch()
    for name in ("recipes", "containers", "jobs"):
        (place / name).symlink_to(ROOT / name)
    for page in ("launcher", "runtime", "rule"):
        blocks = CODE.findall((ROOT / f"docs/contributing/adding-a-{page}.md").read_text())
        assert len(blocks) >= 2
        for name, language, text in blocks:
            file = place / name
            file.write_text(changed(file.read_text(), text) if language == "diff" else text)
    return place


def changed(text: str, diff: str) -> str:
    """Return a file with each hunk of a page, which must fit the file as it is today."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] != "+")
        assert text.count(before) == 1, before
        text = text.replace(before, "".join(line[1:] for line in lines if line[0] != "-"))
    return text


def run(place, *words: str, **variables: str) -> str:
    """Return what Python prints in the copy, where no program is on PATH."""
    environment = {"HOME": str(place / "home"), "PATH": "", "TOOLKIT_CLUSTER": "none"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=place,
        env={**environment, "PYTHONPATH": str(place), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (
            "--image pytorch_22.03 --nodes 2 --ntasks-per-node 2 --launcher toy",
            (
                "2 nodes x 2 ranks, toy in pytorch_22.03",
                "TOY_RANK=$SLURM_PROCID",
                "#SBATCH --ntasks-per-node=2\n",
            ),
        ),
        ("--runtime toy --nodes 2 --launcher none", ('exec nice -n 10 "$@"',)),
    ],
    ids=["launcher", "runtime"],
)
def test_the_launcher_and_the_runtime_of_the_pages_write_scripts(copy, options, lines):
    (copy / "train.py").write_text("print(1)\n")
    words = f"-m toolkit run --site neuron {options} --dry-run train.py"
    script = run(copy, *words.split())
    for line in lines:
        assert line in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_the_rule_of_the_page_is_found_by_its_test(copy):
    words = "-m pytest -q -p no:cacheprovider --noconftest -k looks_finds tests/unit/test_rules.py"
    assert "passed" in run(copy, *words.split(), **os.environ | {"PYTHONPATH": str(copy)})
