"""Workshops against hostile users, servers and archives, interruptions and mistakes; rehearsals and what they leave."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.stand_in import standing_in
from tests.unit import workshop_fixtures as fixtures
from tests.unit.test_workshops import END, entry
from tests.unit.workshop_fixtures import OWN, joined, packs
from toolkit import errors
from toolkit.cli.follow import leave_results
from toolkit.errors import (
    CommandFailedError,
    MalformedInputError,
    ScriptMissingError,
    SignatureError,
    UsageError,
)
from toolkit.images.recipe.lock import Lock, format_lock
from toolkit.images.store import store
from toolkit.images.store.provenance import hash_lock
from toolkit.model.base import to_json
from toolkit.model.image import BaseImage
from toolkit.model.site import Access
from toolkit.runs.run import Run
from toolkit.slurm.client import Client
from toolkit.workshops import archive, checks, join, pack, results
from toolkit.workshops.model import CONTENTS
from toolkit.workshops.rehearsal import accounts, rehearse, report
from toolkit.workshops.rehearsal.report import Attempt, Report


@pytest.fixture
def shared(packed: Path, tmp_path: Path) -> Path:
    """The unpacked workshop, as an instructor has it."""
    archive.unpack(packed, tmp_path / "shared")
    return tmp_path / "shared"


def test_what_is_not_listed_is_not_copied_from_an_instructors_directory(shared, tmp_path):
    secret = tmp_path / "id_ed25519"
    secret.write_text("secret")
    exercise = shared / "exercises" / "01-ddp"
    names = {path.name for path in exercise.iterdir()}
    (exercise / "torch.py").write_text("print('imported in place of torch')")
    (exercise / "link").symlink_to(secret)
    (exercise / "endless").symlink_to("/dev/zero")
    os.mkfifo(exercise / "pipe")
    member = joined(shared, tmp_path / "mine")
    assert {path.name for path in (tmp_path / "mine/01-ddp").iterdir()} == names
    aside = join.reset(member.directory, member.joined, "01-ddp")
    assert {path.name for path in (tmp_path / "mine/01-ddp").iterdir()} == names
    assert aside is not None
    assert aside.name == "01-ddp.old-1"


@pytest.mark.parametrize("text", ["#", "#" * 100_000, "", None])
def test_a_listed_file_that_is_exchanged_while_it_is_copied_is_refused(text, shared, tmp_path):
    contents, script = join.contents_of(shared), shared / "exercises/01-ddp/train.py"
    size = script.stat().st_size
    script.unlink()
    os.mkfifo(script) if text is None else script.write_text(text or "#" * size)
    copying = archive.copy_of_exercise(contents, shared, "01-ddp", tmp_path / "mine")
    with pytest.raises((MalformedInputError, OSError), match=r"was changed|not a regular"), copying:
        raise AssertionError
    assert [path.name for path in tmp_path.iterdir()] == ["shared"]


def test_a_file_with_consent_that_others_could_have_written_is_not_obeyed(drop, tmp_path, capsys):
    mine = tmp_path / "mine"
    joined(fixtures.packed_workshop(tmp_path, f'results = "{drop}"\n'), mine, share=True)
    mine.chmod(0o777)
    with pytest.raises(errors.UntrustedError, match="every user"):
        results.leave(mine)
    leave_results(Run(mine / "runs" / "01-ddp-0001"))
    assert "not trusted" in capsys.readouterr().err
    assert results.read_all(drop, "first") == ([], [])
    mine.chmod(0o755)
    assert results.leave(mine) == drop / f"{OWN}.json"


@pytest.mark.parametrize("lost", ["workshop.json", "exercises/01-ddp/train.py"])
def test_what_a_purge_took_of_a_joined_workshop_comes_back(lost, packed, tmp_path):
    joined(packed, tmp_path / "mine")
    (tmp_path / "mine/.workshop" / lost).unlink()
    (tmp_path / "mine/01-ddp/own.txt").write_text("mine")
    joined(packed, tmp_path / "mine")
    assert (tmp_path / "mine/.workshop" / lost).is_file()
    assert (tmp_path / "mine/01-ddp/own.txt").read_text() == "mine"


@pytest.mark.parametrize("text", ["# longer\n", ""])
def test_a_file_that_changes_while_it_is_packed_is_an_error(text, tmp_path, monkeypatch):
    folder, write = fixtures.write_folder(tmp_path / "first"), archive.write

    def changed(*arguments: Any) -> None:
        before = (folder / "workshop.toml").read_text()
        (folder / "workshop.toml").write_text(text + before if text else before.swapcase())
        write(*arguments)

    monkeypatch.setattr(archive, "write", changed)
    with pytest.raises(MalformedInputError, match="has changed while it was packed"):
        packs(folder, tmp_path / "first.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


def test_an_answer_without_an_end_does_not_fill_the_disk(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1 << 20})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with standing_in() as server:
        server.answers["/x.tar"] = lambda _: (200, {}, bytes(1 << 20))
        with pytest.raises(errors.NoSpaceError, match=r"more than 524 kB"):
            joined(f"http://{server.name}/x.tar", tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []


def test_the_results_of_any_name_can_be_removed_and_nothing_else(drop):
    (drop / "minji").touch()
    with pytest.raises(ScriptMissingError, match="left no results"):
        results.remove_one(drop, "minji")
    for name in ("_minji", "minji@example.org"):
        (drop / f"{name}.json").touch()
        results.remove_one(drop, name)
    (drop / "full.json" / "inner").mkdir(parents=True)
    results.remove_one(drop, "full")
    assert [path.name for path in drop.iterdir() if path.name[0] != "."] == ["minji"]


def test_what_others_made_is_neither_opened_nor_closed(tmp_path):
    (tmp_path / "own").write_text("own")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / ".toolkit-workshop").symlink_to(tmp_path / "own")
    for place in (tmp_path, tmp_path / "linked"):
        for act in (results.open_directory, results.close_directory):
            with pytest.raises(UsageError, match="not a directory of results"):
                act(place)


def test_only_the_unpacked_workshop_is_removed(shared, tmp_path):
    with pytest.raises(UsageError, match="is the workshop first, not second"):
        results.remove_unpacked(shared, "second")
    (shared / "link").symlink_to(tmp_path)
    (shared / "mine.txt").write_text("mine")
    for name in ("link", "mine.txt"):
        with pytest.raises(UsageError, match=f"not unpacked there: .*{name}"):
            results.remove_unpacked(shared, "first")
        assert (shared / CONTENTS).is_file()
        (shared / name).unlink()
    results.remove_unpacked(shared, "first")
    assert not shared.exists()


def test_opening_after_an_interruption_gives_participants_their_rights(drop, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", lambda _: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            results.close_directory(drop)
    results.open_directory(drop)
    assert drop.stat().st_mode & 0o7777 == 0o3733


_JOIN = """
import sys, time
from toolkit.cli import main
from toolkit.workshops import archive
def wait(*_):
    print("ready", flush=True)
    time.sleep(600)
archive._copy = wait
sys.argv[1:] = ["workshop", *sys.argv[1:]]
main.main()
"""


@pytest.mark.parametrize(("verb", "number"), [("join", signal.SIGTERM), ("unpack", signal.SIGHUP)])
def test_a_closed_terminal_leaves_nothing_half_written(verb, number, packed, tmp_path):
    words = (sys.executable, "-c", _JOIN, verb, str(packed), "mine")
    with subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(number)
            _, messages = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, "interrupted" in messages) == (130, True), messages
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not (tmp_path / "mine").exists() or not any((tmp_path / "mine").iterdir())


def rewritten(packed: Path, place: Path, **changed: object) -> Path:
    """An archive whose list says something else."""
    contents = json.loads(to_json(archive.read_contents(packed))) | changed
    (place / "bad.tar").write_bytes(entry(CONTENTS, json.dumps(contents).encode()) + END)
    return place / "bad.tar"


@pytest.mark.parametrize("name", ["../outside", "", ".ssh"])
def test_an_archive_cannot_choose_where_it_is_joined(packed, tmp_path, name):
    with pytest.raises(MalformedInputError, match="expected a name of a folder"):
        archive.read_contents(rewritten(packed, tmp_path, name=name))


def test_an_archive_lists_no_more_files_than_a_workshop_has(packed, tmp_path):
    each = {"size": 0, "sha256": "0" * 64}
    files = {str(number): each for number in range(20_001)}
    with pytest.raises(MalformedInputError, match="20000"):
        archive.read_contents(rewritten(packed, tmp_path, files=files))


def test_joining_again_keeps_changed_settings_and_the_consent(packed, tmp_path):
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


def test_the_consent_is_kept_unless_it_is_withdrawn(tmp_path, drop):
    shared = fixtures.packed_workshop(tmp_path, f'results = "{drop}"\n')
    shares = (None, True, None, False)
    left = [joined(shared, tmp_path / "mine", share=share).joined.results for share in shares]
    assert left == ["", str(drop), str(drop), ""]


def test_a_directory_of_another_user_keeps_the_results_open(drop, monkeypatch):
    (drop / "minji.json").write_text("{}")
    (drop / "full").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # as if it were another's
        with pytest.raises(errors.ForbiddenError, match="1 directory of other users") as caught:
            results.close_directory(drop)
    assert f"{drop}/full of {OWN}" in str(caught.value.place)
    assert not (drop / "minji.json").exists()
    results.close_directory(drop)
    assert not drop.exists()


COMMENT = "toolkit rehearsal"


def test_users_of_rehearsals_are_removed_and_no_others(tmp_path, monkeypatch):
    """Those of a rehearsal that runs, and people whose home is gone, stay; of a failure none does."""
    (tmp_path / "living").mkdir()
    users = {
        "tkw1-01": (COMMENT, tmp_path / "living"),
        "tkw1-02": ("A person", tmp_path / "gone"),
        "tkw1-03": (COMMENT, tmp_path / "gone"),
        f"tkw{os.getpid()}-02": ("A person", tmp_path / "gone"),
    }

    def change(*argv: str | Path, **_: bool) -> None:
        name = str(argv[-1])
        if argv[0] == "userdel":
            del users[name]
        elif name in users:
            raise CommandFailedError("useradd failed")
        else:
            users[name] = (COMMENT, tmp_path / "home")

    def entries() -> list[Any]:
        fields = [(name, comment, str(home / name)) for name, (comment, home) in users.items()]
        return [
            SimpleNamespace(pw_name=name, pw_gecos=comment, pw_dir=home, pw_uid=name)
            for name, comment, home in fields
        ]

    monkeypatch.setattr(pwd, "getpwall", entries)
    monkeypatch.setattr(accounts, "_change", change)
    monkeypatch.setattr(accounts, "_end_processes", lambda _: None)
    monkeypatch.setattr(shutil, "chown", lambda *_: None)
    with pytest.raises(CommandFailedError, match="useradd"), accounts.users(3, tmp_path / "home"):
        raise AssertionError("one of the users could not be created")
    assert [*users] == ["tkw1-01", "tkw1-02", f"tkw{os.getpid()}-02"]
    assert (tmp_path / "home" / f"tkw{os.getpid()}-01").stat().st_mode & 0o777 == 0o700


def test_the_report_has_the_first_accuracy_of_each_person():
    attempts = (
        Attempt(person="c", exercise="join", ok=False, after=12),
        Attempt(person="a", exercise="01", ok=True, after=70, accuracy=0.9, queued=20.0),
        Attempt(person="b", exercise="01", ok=False, after=80),
        Attempt(person="a", exercise="02", ok=True, after=90, accuracy=0.95),
        Attempt(person="b", exercise="02", ok=True, after=100, accuracy=0.8),
    )
    facts: dict[str, Any] = {"workshop": "first", "people": 3, "cluster": "2 nodes"}
    rehearsed = Report(**facts, seconds=100.0, exercises=("01", "02"), attempts=attempts)
    header, *people = report.rows(rehearsed)
    assert header[:2] == ("PARTICIPANT", "FIRST ACCURACY")
    assert [row[1] for row in people] == ["1:10", "1:40", "-"]
    spread = "1:25 (median), 1:40 (90 %), 1:40 (last); 2 of 3 participants"
    assert report.summary(rehearsed)["first accuracy"] == spread
    assert people[0][3] == "0.900 at 1:10, queued 0:20"


TOOL = """\
import json, pathlib, sys
words = sys.argv[1:]
if words[0] == "workshop":
    pathlib.Path("mine").mkdir()
elif words[0] == "run" and words[-1] == "02":
    print(json.dumps({"run": "runs/02-0001"}))
    sys.exit(137)  # of a rank that had no memory
elif words[0] == "run" and words[-1] == "03":
    sys.exit("error: no partition\\nhelp: main")
elif words[0] == "explain":
    print(json.dumps({"match": {"cause": "no label", "fix": ["look"]}}))
else:
    print(json.dumps({"results": {"accuracy": 0.5}}))
"""


def test_a_participant_joins_and_runs_all_exercises(tmp_path):
    (tmp_path / "tool.py").write_text(TOOL)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {tmp_path}/tool.py "$@"\n')
    python.chmod(0o755)
    words = ("source", str(python), "01", "02", "03")
    home = ("env", f"HOME={tmp_path}", "bash", "-c", rehearse._COMMANDS, "participant", *words)
    _, is_stopped = rehearse.run_all([home])
    people = [accounts.Person("a", tmp_path), accounts.Person("b", tmp_path / "none")]
    done = rehearse.attempts(people, ("join", "01", "02", "03", "04"), 0.0, {("a", "01"): 3.0})
    join, one, two, three, four, other = done
    assert (is_stopped, join.exercise, join.ok) == (False, "join", True)
    assert (one.queued, two.queued) == (3.0, None)
    assert (one.ok, one.accuracy, three.after >= one.after) == (True, 0.5, True)
    assert (two.ok, two.cause, two.fix) == (False, "no label", "look")
    assert (three.ok, three.cause) == (False, "error: no partition")
    # The script ended before it, and that of the other participant never began.
    assert (four.ok, four.exercise, other.ok, other.exercise) == (False, "04", False, "join")


def test_an_image_that_was_not_built_from_the_lock_is_not_packed(tmp_path, monkeypatch):
    lock = Lock(name="small", recipe_hash="r", epoch=1, base=BaseImage(reference="b"))
    (tmp_path / "small.lock").write_text(format_lock(lock))
    workshop: Any = SimpleNamespace(images={"small": "small.lock"})
    image = SimpleNamespace(path="/small.sif", manifest=SimpleNamespace(locked=hash_lock(lock)))
    monkeypatch.setattr(store, "find", lambda _: image)
    assert [*pack._images(tmp_path, workshop)] == ["images/small.sif", "locks/small.lock"]
    image.manifest.locked = "another"
    with pytest.raises(SignatureError, match="was not built from small"):
        pack._images(tmp_path, workshop)


def test_a_controller_that_is_down_fails_the_check_of_jobs(tmp_path, monkeypatch):
    """`sinfo --version` answers without it."""
    sinfo = tmp_path / "sinfo"
    sinfo.write_text('#!/bin/sh\n[ "$1" = --version ] && echo slurm 22.05.8\n')
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(checks, "chosen", lambda _: SimpleNamespace(site="local"))
    cluster = SimpleNamespace(client=Client(Access()), site=SimpleNamespace(name="local"))
    monkeypatch.setattr(checks, "find_cluster", lambda _: cluster)
    member: Any = SimpleNamespace(
        directory=tmp_path, joined=SimpleNamespace(source="."), contents=None
    )
    (result,) = checks.jobs(member)
    assert result.outcome == "failed"
