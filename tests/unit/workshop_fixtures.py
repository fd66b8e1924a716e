"""A workshop that the tests write, pack and join, and a directory of its results."""

from __future__ import annotations

import contextlib
import os
import pwd
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.progress import Silent
from toolkit.workshops import archive, join, pack, results

OWN = pwd.getpwuid(os.geteuid()).pw_name

TEXT = """\
title = {en = "First steps", ko = "첫걸음"}
language = ["en", "ko"]
site = "neuron-2022"
partition = "cas_v100_4"
comment = "pytorch"
people = 4
[[exercises]]
name = "01-ddp"
folder = "jobs/digits-ddp"
[[exercises]]
name = "02-own"
folder = "own"
text = {ko = "own.ko.md"}
"""


def write_folder(made: Path, options: str = "") -> Path:
    (made / "own").mkdir(parents=True)
    (made / "own" / "job.toml").write_text('summary = "own"\nlauncher = "none"\n')
    (made / "own" / "train.py").write_text("print('{}')\n")
    (made / "own" / "README.md").write_text("# Own\n\nRun `jobs/own` **now**: <script>\n")
    (made / "own.ko.md").write_text("# 나의 실습\n")
    (made / "workshop.toml").write_text(options + TEXT)
    return made


def packed_workshop(place: Path, options: str = "") -> Path:
    return packs(write_folder(place / "first", options), place / "first.tar")


def joined(
    source: Path | str,
    directory: Path,
    *,
    share: bool | None = False,
    verify: archive.Verify | None = None,
) -> join.Membership:
    return join.join(str(source), directory, share=share, verify=verify, progress=Silent())


def packs(folder: Path, target: Path, **options: Any) -> Path:
    """Pack a workshop's folder; return the file."""
    pack.pack(folder, target, Silent(), **options)
    return target


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """As on a disk that becomes full: no file can be longer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workshop with a shipped exercise and one of its own, packed without images."""
    return packed_workshop(tmp_path_factory.mktemp("packed"))


@pytest.fixture
def drop(tmp_path: Path) -> Path:
    directory = tmp_path / "results"
    results.open_directory(directory)
    return directory
