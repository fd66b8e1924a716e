"""A workshop with real users on a real Slurm: rehearsed, joined by another user, and nothing left."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ordinary_user import account, as_user
from tests.cluster.ranks import wait_for


def accounts(process: int) -> list[str]:
    """Return the users of a rehearsal. Others may rehearse meanwhile: tests of notebooks do."""
    return [entry.pw_name for entry in pwd.getpwall() if entry.pw_name.startswith(f"tkw{process}-")]


def place_of(process: int) -> Path:
    """Return the directory of a rehearsal, by the homes of its users."""
    return Path(pwd.getpwnam(accounts(process)[0]).pw_dir).parents[1]


def process_of(report: dict[str, Any]) -> int:
    """Return the number of the process that rehearsed, which the names of its users have."""
    return int(report["attempts"][0]["person"].removeprefix("tkw").partition("-")[0])


SCRIPTS = {
    "bad": "labels = {}; labels['label']",
    "good": "print('{\"accuracy\": 0.5}')",
    "endless": "import time; time.sleep(3600)",
}


def workshop(folder: Path, *names: str) -> Path:
    """Write a workshop whose exercises need no image."""
    text = 'title = "Light"\n'
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "train.py").write_text(SCRIPTS[name] + "\n")
        job = 'launcher = "none"\nruntime = "none"\ntime = "10"\n'
        (folder / name / "job.toml").write_text(job)
        text += f'[[exercises]]\nname = "{name}"\nfolder = "{name}"\n'
    (folder / "workshop.toml").write_text(text)
    return folder


def test_who_got_what_and_why_not_is_reported(toolkit, tmp_path):
    """One exercise fails for all: the others go on."""
    light = workshop(tmp_path / "light", "bad", "good")
    done = toolkit("workshop", "rehearse", str(light), "--people", "3", "--json", timeout=400)
    assert done.returncode == 92, (done.stdout[-3000:], done.stderr[-3000:])
    report = json.loads(done.stdout)
    seen = "\n".join(map(str, report["attempts"]))

    def each(exercise: str, key: str) -> list[Any]:
        return [one[key] for one in report["attempts"] if one["exercise"] == exercise]

    assert (each("join", "ok"), each("bad", "ok")) == ([True] * 3, [False] * 3), seen
    assert all("KeyError: 'label'" in cause for cause in each("bad", "cause")), seen
    assert all(each("bad", "fix")), seen
    assert each("good", "accuracy") == [0.5] * 3, seen
    assert accounts(process_of(report)) == []


@pytest.fixture
def intruder() -> Iterator[Callable[[str], subprocess.CompletedProcess[str]]]:
    """A function that runs a line of a shell as a second user."""
    name = f"tki{os.getpid()}"
    with account(name, "--no-create-home"):
        yield lambda line: as_user(name, "sh", "-c", line)


def test_a_second_user_neither_reads_nor_replaces_results_and_nothing_of_theirs_counts(
    toolkit, user, intruder, tmp_path
):
    light = workshop(tmp_path / "light", "good")
    with tempfile.TemporaryDirectory(prefix="toolkit-test-", dir="/var/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        drop, own = place / "results", place / "results" / f"{user.name}.json"
        (light / "workshop.toml").write_text(
            f'results = "{drop}"\n' + (light / "workshop.toml").read_text()
        )
        packed, unpacked = place / "light.tar", place / "light"
        for words in (
            ("open", str(light)),
            ("pack", str(light), "-o", str(packed)),
            ("unpack", str(packed), str(unpacked)),
        ):
            done = toolkit("workshop", *words)
            assert done.returncode == 0, done.stderr

        def join() -> str:
            done = user.toolkit("workshop", "join", str(unpacked), "mine", "--share-results")
            return next(line for line in done.stdout.splitlines() if " results " in line)

        assert intruder(f"ln -s /etc/hostname {own}").returncode == 0
        assert join().startswith("WARN")
        assert Path("/etc/hostname").stat().st_uid == 0
        assert "not counted" in toolkit("workshop", "status", str(light)).stderr
        assert toolkit("workshop", "reset", user.name, str(light)).returncode == 0
        assert join().startswith("PASS")

        left = own.read_bytes()
        for line in (
            f"ls {drop}",
            f"cat {own}",
            f"echo x >> {own}",
            f"mv {own} {drop}/x.json",
            f"touch {drop}/y; mv {drop}/y {own}",
            f"ln -sf /etc/hostname {own}",
        ):
            assert intruder(line).returncode != 0, line
        assert own.read_bytes() == left
        for line in (
            "mkfifo pipe.json; truncate -s 40G huge.json; ln -s /dev/zero zero.json",
            f"printf '%s' '{left.decode()}' > other.json; mkdir -p full.json/inner",
            "touch \"$(printf 'evil\\033[31m\\nred.json')\"",
        ):
            assert intruder(f"cd {drop}; {line}").returncode == 0, line
        status = toolkit("workshop", "status", str(light), timeout=60)
        assert status.returncode == 0, status.stderr
        assert "\033" not in status.stdout + status.stderr
        found = json.loads(toolkit("workshop", "status", "--json", str(light)).stdout)
        assert [each["name"] for each in found["participants"]] == [user.name]
        (left_out,) = found["not_counted"]
        assert left_out["why"].startswith("7 files"), left_out
        done = toolkit("workshop", "close", str(light), "--unpacked", str(unpacked))
        assert done.returncode == 0, done.stderr
        assert sorted(path.name for path in place.iterdir()) == ["light.tar"]


@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGKILL]
)
def test_of_a_rehearsal_that_is_ended_no_user_and_no_cluster_is_left(
    started, toolkit, tmp_path, how
):
    """After Ctrl-C at once, with a report; after SIGKILL by the next `rehearse --clean`."""
    light = workshop(tmp_path / "light", "endless")
    words = ("workshop", "rehearse", str(light), "--people", "2")
    log = tmp_path / "log"
    (tmp_path / "cwd").mkdir()
    with log.open("w") as said:
        pipes = {"stdout": said, "stderr": said, "start_new_session": True}
        process = started(*words, cwd=tmp_path / "cwd", **pipes)
    pid = process.pid
    try:
        wait_for(lambda: "rehearsal  2 participants" in log.read_text(), "participants")
        assert toolkit("workshop", "rehearse", "--clean").returncode == 0
        assert len(accounts(pid)) == 2  # this one lives
        place = place_of(pid)
        wait_for(lambda: running(place.name, "train.py"), "job of a participant")
    finally:
        process.send_signal(how)
        code = process.wait(120)
    if how == signal.SIGINT:
        assert code == 130, log.read_text()
        assert "0:" in log.read_text().split("duration")[1]
    else:
        assert running(place.name, "train.py")
        cleaned = toolkit("workshop", "rehearse", "--clean", cwd=tmp_path)
        assert cleaned.returncode == 0, cleaned.stderr
        # Another rehearsal that begins on this machine meanwhile cleans up first.
        wait_for(lambda: not place.exists(), "removal of the killed rehearsal")
    assert not running(place.name)
    assert accounts(pid) == []
    assert not place.exists()
    assert place.name not in Path("/proc/self/mountinfo").read_text()


def running(*words: str) -> bool:
    """Whether a process has all of these words among its arguments and in its working directory."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = f"{(process / 'cmdline').read_text(errors='replace')} {(process / 'cwd').readlink()}"
            if all(word in line for word in words):
                return True
    return False
