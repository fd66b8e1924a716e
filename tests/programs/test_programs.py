"""Programs of public repositories, as `toolkit run` starts them: each runs, is refused, or fails and is explained.

The checkouts are in the directory PROGRAMS, each called owner+name. What is run is a copy.
"""

from __future__ import annotations

import os
import shlex
import shutil
import struct
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.image_fixtures import real_image
from toolkit.files import read_toml
from toolkit.model.base import Model


class Program(Model, frozen=True):
    """A row of the table.

    Attributes:
        folder: the repository's owner/name, a colon, and the directory in it.
        run: words after `toolkit run`; ``{here}`` is the directory.
        image: in which it runs.
        before: a command of the shell in the image that makes its data.
        launcher: that starts it, unless it is refused.
        prints: what a log has, ``times`` times if that is not 0.
        refused: what the refusal says.
        explained: what `toolkit explain` says of its failure.
    """

    folder: str
    run: str
    image: str = "programs_cpu"
    before: str = ""
    launcher: str = ""
    prints: str = ""
    times: int = 0
    refused: str = ""
    explained: str = ""

    @property
    def name(self) -> str:
        """The name of the test: the directory and the words that are no options."""
        words = [word for word in self.run.split() if word[0] != "-" and not word.isdigit()]
        return "-".join((self.folder.rstrip(":"), *words[:3]))[:70]


class Table(Model, frozen=True):
    """Repositories with the commits that were tried, and their programs."""

    commits: dict[str, str]
    programs: tuple[Program, ...]


_HERE = Path(__file__).parent
_TABLE = read_toml(_HERE / "programs.toml", Table, named=True)
_CHECKOUTS = Path(os.environ.get("PROGRAMS", "")).expanduser().resolve()


def _picture(number: int) -> bytes:
    """Return a PNG of 64 x 64 pixels in one color."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    rows = (b"\0" + bytes((number * 9 % 256, 90, 200)) * 64) * 64
    signature = b"\x89PNG\r\n\x1a\n"
    return b"".join(
        (
            signature,
            chunk(b"IHDR", header),
            chunk(b"IDAT", zlib.compress(rows)),
            chunk(b"IEND", b""),
        )
    )


@pytest.fixture(scope="module")
def small_cluster(toolkit: Any) -> Iterator[None]:
    """Two nodes without GPUs."""
    shape = "--nodes 2 --cpus-per-node 8 --mem-per-node 16G".split()
    done = toolkit("cluster", "up", *shape)
    assert done.returncode == 0, done.stderr
    yield
    done = toolkit("cluster", "down")
    assert done.returncode == 0, done.stderr


def copy_of(program: Program, directory: Path) -> Path:
    """Copy a program's folder, and put pictures of two kinds and a text in it."""
    project, _, below = program.folder.partition(":")
    checkout = _CHECKOUTS / project.replace("/", "+")
    if not (checkout / below).is_dir():
        commit = _TABLE.commits[project]
        pytest.fail(
            f"no directory {checkout / below}: git clone https://github.com/{project} {checkout}"
            f" && git -C {checkout} checkout {commit}"
        )
    ignored = shutil.ignore_patterns(".git", "runs")
    copy = Path(shutil.copytree(checkout / below, directory / "program", ignore=ignored))
    for number in range(16):
        kind = ("cats", "dogs")[number % 2]
        picture = copy / "pictures" / ("train", "val")[number // 8] / kind / f"{number}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_bytes(_picture(number))
    (copy / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 500)
    return copy


def _image(name: str) -> Path:
    recipe = _HERE / f"{name}.toml"
    return real_image(str(recipe) if recipe.exists() else name)


@pytest.mark.usefixtures("small_cluster")
@pytest.mark.parametrize("program", _TABLE.programs, ids=[each.name for each in _TABLE.programs])
def test_a_program_runs_or_is_refused_or_explained(program, toolkit, shared_dir):
    here, image = copy_of(program, shared_dir), _image(program.image)
    if program.before:
        command = ("apptainer", "exec", "--bind", here, "--pwd", here, image, "sh", "-ec")
        subprocess.run((*command, program.before), check=True, capture_output=True, text=True)
    words = shlex.split(program.run.replace("{here}", str(here)))
    done = toolkit("run", "--image", image, "--time", "6", *words, cwd=here, timeout=500)
    text = done.stdout + done.stderr
    if program.refused:
        assert done.returncode != 0, text
        assert program.refused in " ".join(done.stderr.split()), text
        assert not (here / "runs").exists(), text
        return
    explained = toolkit("explain", cwd=here)
    text += f"--- explain\n{explained.stdout}{explained.stderr}"
    assert f" {program.launcher} (" in done.stderr, text
    assert (done.returncode != 0) == bool(program.explained), text
    assert program.explained in " ".join(explained.stdout.split()), text
    files = sorted((here / "runs").glob("*/logs/**/*.log"))
    logs = "".join(file.read_text(errors="replace") for file in files)
    assert program.prints in logs, text
    assert program.times in (0, logs.count(program.prints)), text
