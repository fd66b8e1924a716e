"""Paths that users name may be pipes, devices or huge files: no command waits, or reads without end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.samples import make_case
from toolkit import files
from toolkit.errors import ConfigError
from toolkit.images.recipe import library
from toolkit.images.recipe.importers import import_file
from toolkit.images.store.signatures import read_private
from toolkit.rules.files import _lock
from toolkit.runtimes.environments import _lines, _variables

ROOT = Path(files.__file__).parents[1]
RUN = "run --site generic --dry-run --image /x.sif"
COMMANDS = {
    "lint --fix F": 78,
    "image build ./F.toml": 78,
    "image build ./based.toml": 68,
    "image render ./extends.toml": 78,
    "image import --name new F": 78,
    "image sign ./F --key F": 68,
    "cluster up --shape F": 78,
    "bench scale --against F F.py": 78,
    f"{RUN} F.py": 66,
    f"{RUN} folder": 66,
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    for name in ("F", "F.py", "F.toml", "folder/job.toml", "folder/workshop.toml"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "extends.toml").write_text('extends = "F.toml"\n')
    base = f'[base]\nkind = "localimage"\npath = "{tmp_path / "F"}"\n'
    space = "[space]\nimage = 1\nbuild = 1\n"
    step = '[[steps]]\nblock = "run"\nname = "a"\ncommands = ["true"]\n'
    (tmp_path / "based.toml").write_text(f'summary = "x"\n{base}{space}{step}')
    return tmp_path


@pytest.mark.parametrize("line", COMMANDS)
def test_no_command_waits_for_a_pipe(line, place):
    done = subprocess.run(
        [sys.executable, "-m", "toolkit", *line.split()],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TOOLKIT_IMAGES": str(place / "images")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == COMMANDS[line], done.stderr


READERS: dict[str, Callable[[Path], object]] = {
    "read_text": files.read_text,
    "hash_file": files.hash_file,
    "a private key": read_private,
    "a Dockerfile": lambda path: import_file(path, path.with_name("x.files")),
    "a recipe": lambda path: library.load(str(path.with_suffix(".toml"))),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", READERS)
def test_a_reader_refuses_a_pipe(name, place):
    with pytest.raises((OSError, ConfigError), match="not a regular file"):
        READERS[name](place / "F")


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_a_file_that_may_be_missing_is_none(place, monkeypatch):
    for directory, file in (("x/conda-meta", "state"), ("recipes", "held.lock")):
        (place / directory).mkdir(parents=True)
        os.mkfifo(place / directory / file)
    monkeypatch.chdir(place)
    assert _lock(make_case(), "held") == ""
    assert _variables(place / "x") == {}
    assert _lines(place / "F") == []


def test_a_dockerfile_means_the_same_with_the_line_ends_of_windows(tmp_path):
    text = "FROM docker.io/library/debian:12\nRUN a && \\\n    b\n"
    (tmp_path / "Dockerfile").write_text(text)
    expected = import_file(tmp_path / "Dockerfile", tmp_path / "x.files")
    (tmp_path / "Dockerfile").write_bytes(text.replace("\n", "\r\n").encode())
    assert import_file(tmp_path / "Dockerfile", tmp_path / "x.files") == expected
