"""The pages on adding a launcher, a runtime and a rule: their code is taken from them, and works as they say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.config import package_directory

ROOT = package_directory("..").resolve()
PAGES = ("adding-a-launcher.md", "adding-a-runtime.md")


def code_of(page: str) -> dict[Path, str]:
    """Return the files of a page: each code block that follows a line with a path alone."""
    files: dict[Path, str] = {}
    lines = (ROOT / "docs/contributing" / page).read_text().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("`toolkit/") and line.endswith("`"):
            assert lines[number + 2].startswith("```"), f"{line} has no code"
            end = lines.index("```", number + 3)
            files[Path(line.strip("`"))] = "\n".join(lines[number + 3 : end]) + "\n"
    return files


def changed(text: str, page: str) -> str:
    """Return a file with the change that a page shows: lines before (-, blank) and after (+)."""
    before = rest = ""
    for line in page.splitlines():
        sign, content = line[0], f"{line[1:]}\n"
        if sign == "+":
            text = f"{before}{content}{rest}"
            before += content
            continue
        assert text.count(content) == 1, content
        before, _, rest = text.partition(content)
        before += content if sign == " " else ""
    return text


def copy_with(place: Path, *pages: str) -> Path:
    """Copy the package, its byte code too, and write the files of some pages into the copy."""
    shutil.copytree(ROOT / "toolkit", place / "toolkit")
    for name in ("recipes", "containers", "jobs"):
        (place / name).symlink_to(ROOT / name)
    for page in pages:
        for path, text in code_of(page).items():
            file = place / path
            file.write_text(changed(file.read_text(), text) if file.exists() else text)
    return place


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_with(tmp_path_factory.mktemp("package"), *PAGES)


def run(package: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command of a copy of the package, where no program is on PATH."""
    environment = {
        "HOME": str(package / "home"),
        "PATH": str(package / "nothing"),
        "PYTHONPATH": str(package),
        "TOOLKIT_CLUSTER": "none",
    }
    return subprocess.run(
        [sys.executable, "-m", "toolkit", *words],
        cwd=package,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def planned(package: Path, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    (package / "train.py").write_text(script)
    return run(package, "run", "--site", "neuron", *options, "--dry-run", "train.py")


IMAGE = ("--image", "pytorch_22.03", "--nodes", "2", "--ntasks-per-node", "2")


def test_the_launcher_of_the_page_writes_a_script(package):
    done = planned(package, "print(1)\n", *IMAGE, "--launcher", "toy")
    assert done.returncode == 0, done.stderr
    assert "2 nodes x 2 ranks, toy in pytorch_22.03" in done.stdout
    assert "TOY_RANK=$SLURM_PROCID" in done.stdout
    assert "#SBATCH --ntasks-per-node=2\n" in done.stdout
    checked = subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=False)
    assert checked.returncode == 0


def test_the_runtime_of_the_page_writes_a_script(package):
    done = planned(package, "print(1)\n", "--runtime", "toy", "--nodes", "2", "--launcher", "none")
    assert done.returncode == 0, done.stderr
    assert 'exec nice -n 10 "$@"' in done.stdout
    checked = subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=False)
    assert checked.returncode == 0


def test_the_rule_of_the_page_is_added_by_two_files_and_its_test(tmp_path):
    """Each hunk of the page fits the file that it names, as that is today."""
    page = (ROOT / "docs/contributing/adding-a-rule.md").read_text()
    shutil.copytree(ROOT / "toolkit", tmp_path / "toolkit")
    shutil.copytree(ROOT / "tests/unit", tmp_path / "tests/unit")
    (tmp_path / "tests/__init__.py").touch()
    changes = re.findall(r"^`([\w/.]+)`\n\n```diff\n(.*?)```", page, re.MULTILINE | re.DOTALL)
    assert len(changes) == 3
    for name, diff in changes:
        text = (tmp_path / name).read_text()
        for hunk in diff.split("@@\n"):
            lines = hunk.splitlines(keepends=True)
            before = "".join(line[1:] for line in lines if line[0] != "+")
            assert text.count(before) == 1, before
            text = text.replace(before, "".join(line[1:] for line in lines if line[0] != "-"))
        (tmp_path / name).write_text(text)
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "-k", "looks_finds")
    done = subprocess.run(
        [sys.executable, *words, "tests/unit/test_rules.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
