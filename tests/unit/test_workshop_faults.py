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


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "..", ".", "", "a/b", ".ssh"])
def test_an_archive_cannot_choose_where_it_is_joined(
    packed: Path, tmp_path: Path, name: str
) -> None:
    contents = json.loads(to_json(archive.read_contents(packed))) | {"name": name}
    bad = tmp_path / "bad.tar"
    bad.write_bytes(entry(CONTENTS, json.dumps(contents).encode()) + END)
    with pytest.raises(MalformedInputError, match="cannot be the name of a workshop"):
        archive.read_contents(bad)


def test_an_archive_without_the_files_of_an_exercise_is_refused(
    packed: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.tar"
    bad.write_bytes(listed(packed, X) + entry("x", X["x"]) + END)
    with pytest.raises(MalformedInputError, match="no files of the exercise 01-ddp"):
        joined(bad, tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_others_can_read_what_was_unpacked_under_a_strict_umask(
    packed: Path, tmp_path: Path
) -> None:
    before = os.umask(0o077)
    try:
        archive.unpack(packed, tmp_path / "shared")
    finally:
        os.umask(before)
    for path in (tmp_path / "shared").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path


def test_joining_again_keeps_changed_settings_and_the_consent(packed: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    joined(packed, mine)
    settings = mine / "toolkit.toml"
    written = settings.read_text()
    settings.write_text(written + 'account = "mine"\n')
    joined(packed, mine)
    assert settings.read_text() == written
    assert (mine / "toolkit.toml.old-1").read_text() == written + 'account = "mine"\n'
    joined(packed, mine)
    assert not (mine / "toolkit.toml.old-2").exists()


def test_the_consent_is_kept_unless_it_is_withdrawn(tmp_path: Path, drop: Path) -> None:
    shared = packed_workshop(tmp_path, f'results = "{drop}"\n')
    assert joined(shared, tmp_path / "mine", share=None).joined.results == ""
    assert joined(shared, tmp_path / "mine", share=True).joined.results == str(drop)
    assert joined(shared, tmp_path / "mine", share=None).joined.results == str(drop)
    assert joined(shared, tmp_path / "mine", share=False).joined.results == ""


def test_a_reset_changes_nothing_if_the_workshop_is_gone(packed: Path, tmp_path: Path) -> None:
    archive.unpack(packed, tmp_path / "shared")
    member = joined(tmp_path / "shared", tmp_path / "mine")
    results.remove_unpacked(tmp_path / "shared", "first")
    with pytest.raises(ScriptMissingError, match="no longer at"):
        join.reset(member.directory, member.joined, "01-ddp")
    assert (member.directory / "01-ddp" / "train.py").is_file()


def test_a_reset_in_another_directory_says_where_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, ["reset", "01-ddp"])
    assert isinstance(done.exception, UsageError)
    assert "neither a joined workshop" in done.exception.cause
    assert "cd to the directory" in str(done.exception.next_step)


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


class Machine:
    """The users of a machine, and the programs that change them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, users: dict[str, str]) -> None:
        self.users, self.fails = users, False
        monkeypatch.setattr(pwd, "getpwall", lambda: [self._get(name) for name in users])
        monkeypatch.setattr(pwd, "getpwnam", self._get)
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(accounts, "_change", self._change)

    def _get(self, name: str) -> Any:
        return SimpleNamespace(pw_name=name, pw_gecos=self.users[name])

    def _change(self, *argv: str | Path, check: bool = True) -> None:
        del check
        name = str(argv[-1])
        if argv[0] == "userdel":
            del self.users[name]
        elif name in self.users:
            raise CommandFailedError("useradd failed")
        else:
            self.users[name] = str(argv[argv.index("--comment") + 1])
            Path(argv[argv.index("--home-dir") + 1]).mkdir()


def test_a_rehearsal_removes_no_user_that_it_did_not_create(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = f"tkw{os.getpid()}-02"
    machine = Machine(monkeypatch, {foreign: "A person"})
    with (
        pytest.raises(CommandFailedError, match="useradd"),
        accounts.users(3, tmp_path / "home"),
    ):
        raise AssertionError("one of the users could not be created")
    assert machine.users == {foreign: "A person"}


def test_users_of_a_killed_rehearsal_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comment = "toolkit rehearsal"
    kept = {f"tkw{os.getppid()}-01": comment, "999999999-x": comment, "tkw999999999-x": comment}
    stale = {f"tkw{os.getpid()}-01": comment, "tkw999999999-02": comment}
    machine = Machine(monkeypatch, {**kept, **stale})
    with accounts.users(1, tmp_path / "home") as people:
        assert [each.name for each in people] == [f"tkw{os.getpid()}-01"]
        assert set(machine.users) == {*kept, people[0].name}
    assert machine.users == kept


def test_jobs_that_outlive_their_commands_are_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {1: None, 2: "outcome", 3: None}
    cancelled = []

    def cancel(job_id: int) -> None:
        cancelled.append(job_id)
        raise SlurmUnreachableError("it is down")

    def all_runs(path: Path) -> list[Any]:
        assert path == tmp_path / "mine" / "runs"
        return [
            SimpleNamespace(
                read_submission=lambda job_id=job_id: SimpleNamespace(job_id=job_id),
                read_outcome=lambda outcome=outcome: outcome,
            )
            for job_id, outcome in runs.items()
        ]

    monkeypatch.setattr(rehearse, "all_runs", all_runs)
    client: Any = SimpleNamespace(cancel=cancel)
    rehearse._cancel_jobs(client, [accounts.Person("01", tmp_path)])
    assert cancelled == [1, 3]
