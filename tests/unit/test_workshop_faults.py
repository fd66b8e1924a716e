"""Rehearsals that were killed, their report, and images that were not built from the lock."""

from __future__ import annotations

import os
import pwd
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolkit.errors import CommandFailedError, SignatureError
from toolkit.images.recipe.lock import Lock, format_lock
from toolkit.images.store import store
from toolkit.images.store.provenance import hash_lock
from toolkit.model.image import BaseImage
from toolkit.model.site import Access
from toolkit.slurm.client import Client
from toolkit.workshops import checks, pack
from toolkit.workshops.rehearsal import accounts, rehearse, report
from toolkit.workshops.rehearsal.report import Attempt, Report

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
    facts = {"workshop": "first", "people": 3, "cluster": "2 nodes", "seconds": 100.0}
    rehearsed = Report(**facts, exercises=("01", "02"), attempts=attempts)
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
    assert (one.ok, one.accuracy, three.ok, three.after >= one.after) == (True, 0.5, True, True)
    assert (two.ok, two.cause, two.fix) == (False, "no label", "look")
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
