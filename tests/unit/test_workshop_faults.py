"""Workshops against hostile users, interrupted rehearsals and mistakes of participants."""

from __future__ import annotations

import json
import os
import pwd
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.test_workshops import END, X, entry, joined, listed, packed_workshop
from toolkit.cli.workshop import command
from toolkit.errors import (
    CommandFailedError,
    ForbiddenError,
    MalformedInputError,
    ScriptMissingError,
    SlurmUnreachableError,
    UsageError,
)
from toolkit.model.base import to_json
from toolkit.workshops import archive, join, results
from toolkit.workshops.model import CONTENTS
from toolkit.workshops.rehearsal import accounts, rehearse

OWN = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed_workshop(tmp_path_factory.mktemp("packed"))


@pytest.fixture
def drop(tmp_path: Path) -> Path:
    directory = tmp_path / "results"
    results.open_directory(directory)
    return directory


def test_another_workshop_is_not_removed(packed: Path, tmp_path: Path) -> None:
    archive.unpack(packed, tmp_path / "shared")
    with pytest.raises(UsageError, match="is the workshop first, not second"):
        results.remove_unpacked(tmp_path / "shared", "second")
    (tmp_path / "shared" / "link").symlink_to(tmp_path)  # to a directory
    with pytest.raises(UsageError, match="not unpacked there"):
        results.remove_unpacked(tmp_path / "shared", "first")
    assert (tmp_path / "shared" / CONTENTS).is_file()


def test_a_directory_in_the_place_of_results_can_be_reset(drop: Path) -> None:
    (drop / "minji.json" / "inner").mkdir(parents=True)
    results.remove_one(drop, "minji")
    assert not (drop / "minji.json").exists()


def test_a_state_of_many_characters_does_not_count(drop: Path) -> None:
    data = {"name": OWN, "workshop": "first", "exercises": {"01-ddp": {"state": "x" * 41}}}
    (drop / f"{OWN}.json").write_text(json.dumps(data))
    counted, unread = results.read_all(drop, "first")
    assert counted == []
    assert "at most 40" in unread[0].why


def test_a_directory_of_another_user_keeps_the_results_open(
    drop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (drop / "minji.json").write_text("{}")
    (drop / "full").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # as if it were another's
        with pytest.raises(ForbiddenError, match="1 directory of other users") as caught:
            results.close_directory(drop)
    assert f"{drop}/full of {OWN}" in str(caught.value.place)
    assert not (drop / "minji.json").exists()
    results.close_directory(drop)
    assert not drop.exists()


def test_a_marker_that_is_a_link_opens_no_directory(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("own")
    (tmp_path / "drop").mkdir()
    (tmp_path / "drop" / ".toolkit-workshop").symlink_to(tmp_path / "own")
    with pytest.raises(UsageError, match="not a directory of results that you opened"):
        results.close_directory(tmp_path / "drop")
