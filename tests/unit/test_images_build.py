"""What a build is made of, each part alone: its log, its lock, its directories, its programs."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from pathlib import Path

import pytest

from tests.progress import Silent
from toolkit import shell
from toolkit.checks import failed
from toolkit.errors import ForbiddenError, NoSpaceError
from toolkit.images.builder import build as building
from toolkit.images.builder.apptainer import apptainer, layered, programs
from toolkit.images.builder.follow import Follower, Reader
from toolkit.images.builder.remote_base import BuildTask
from toolkit.images.host import host_config as host
from toolkit.images.host import mutex, privilege, workspace
from toolkit.images.host.mutex import hold_image
from toolkit.images.recipe import library
from toolkit.images.recipe.recipe import Space
from toolkit.images.verify.own_checks import Results

LOG = """\
+ echo ==> apt: zip
+ pip install torch==2.13.0
ERROR: No matching distribution found for torch==2.13.0
"""
CHECKS = """\
toolkit-fact: framework torch 2.13.0+cpu
toolkit-check: imports passed: torch 2.13.0+cpu
toolkit-fact: mpi pmix
toolkit-check: ranks-gloo failed: [0]<stdout>:the sum is wrong: 1
"""


def fed(step: str, text: str) -> tuple[Reader, int]:
    """Feed a log to a reader in this step; return it, and how many checks ended."""
    reader = Reader()
    reader.enter(step)
    return reader, [reader.feed(line) for line in text.splitlines()].count("check")


def test_a_log_tells_the_steps_and_only_the_next_one_is_believed():
    reader = Reader(["apt", "pip", "pack"], "base")
    begun = []
    for line in ("==> apt: zip", "==> pack: a lie", "==> pip: x", "INFO:    Creating SIF file..."):
        begun += [reader.step] if reader.feed(line) == "step" else []
    assert begun == ["apt", "pip", "pack"]


def test_a_log_tells_the_command_and_the_end():
    reader, _ = fed("pip", LOG)
    assert reader.command == "pip install torch==2.13.0"
    assert list(reader.tail)[-1].startswith("ERROR: No matching")
    assert not reader.no_space
    assert fed("run", "cp: error writing 'y': No space left on device\n")[0].no_space


@pytest.mark.parametrize(
    ("said", "conflict"),
    [
        ("ERROR: No matching distribution found for x==9", ""),
        ("    The user requested (constraint) torch==2.13.0", "x==9"),
    ],
)
def test_only_what_pip_cannot_install_beside_a_constraint_is_a_conflict(said, conflict):
    assert fed("pip", f"{said}\ntoolkit-conflict: x==9\n")[0].conflict == conflict


def test_a_log_tells_what_the_checks_said():
    reader, count = fed("checks", CHECKS)
    assert count == 2
    assert reader.results.frameworks == {"torch": "2.13.0+cpu"}
    assert reader.results.mpi == ["pmix"]
    assert reader.results.failed == [failed("the sum is wrong: 1", name="ranks-gloo")]


def test_what_a_step_prints_is_no_result_of_a_check():
    reader, count = fed("run", CHECKS)
    assert (count, reader.results) == (0, Results())


class Said(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, subject: str, text: str) -> None:
        self.lines.append(f"{subject} {text}")


def test_a_build_is_flat_if_layers_are_impossible_which_is_said(monkeypatch, tmp_path):
    tried: list[str] = []
    monkeypatch.setattr(building, "why_no_layers", lambda *_: "no overlays")
    monkeypatch.setattr(layered, "build", lambda *_: tried.append("layers"))
    monkeypatch.setattr(apptainer, "build", lambda *_: tried.append("flat"))
    said = Said()
    with workspace.workspace(tmp_path) as place:
        follower = Follower("x", tmp_path / "log", said)
        task = BuildTask(library.load("pytorch_cpu"), None, None, place, follower)
        building._run(task, said, "apptainer", flat=False)
    assert tried == ["flat"]
    (line,) = said.lines
    assert line.startswith("flat no overlays: Apptainer does not confine the steps")


@pytest.mark.parametrize("times", [1, 2])
def test_a_build_that_is_stopped_while_it_asks_a_registry_has_made_no_image(
    times, monkeypatch, tmp_path
):
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("TOOLKIT_IMAGES", str(tmp_path / "images"))
    monkeypatch.setattr(building, "resolve_base", stopped)
    spaces: list[Space] = []
    monkeypatch.setattr(building, "require_space", lambda _, space: spaces.append(space))
    said = Said()
    with pytest.raises(KeyboardInterrupt):
        building.build("pytorch_cpu", said, building.BuildOptions(flat=times == 1))
    assert said.lines == ["stopped no process of the build is left"]
    assert spaces[0].image == times * library.load("pytorch_cpu").space.image


def test_debootstrap_always_verifies(monkeypatch):
    monkeypatch.setattr(shell, "which", lambda program: f"/usr/sbin/{program}")
    assert host.debootstrap_command() == ("/usr/sbin/debootstrap", "--force-check-gpg")


Usage = namedtuple("Usage", "total used free")


def test_space_on_one_disk_is_added_up(tmp_path, monkeypatch):
    monkeypatch.delenv(workspace.TMP_VARIABLE, raising=False)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 3_000_000_000))
    workspace.require_space(tmp_path, Space(image=1000, build=2000))
    with pytest.raises(NoSpaceError, match=r"needs 3.0 GB in .*; 3.0 GB are free") as caught:
        workspace.require_space(tmp_path, Space(image=1001, build=2000))
    assert caught.value.exit_code == 73


def test_a_workspace_is_private_and_goes(tmp_path, monkeypatch):
    images, scratch = tmp_path / "images", tmp_path / "scratch"
    images.mkdir()
    scratch.mkdir()
    monkeypatch.setenv(workspace.TMP_VARIABLE, str(scratch))
    with workspace.workspace(images) as place:
        assert (place.output.parent, place.scratch.parent) == (images, scratch)
        assert {path.stat().st_mode & 0o777 for path in place.directories} == {0o700}
        (place.scratch / "deep/er").mkdir(parents=True)
        (place.scratch / "deep").chmod(0o500)
    assert list(scratch.iterdir()) == []
    assert list(images.iterdir()) == []


def test_what_dead_builds_left_goes_and_what_living_ones_have_stays(tmp_path, monkeypatch):
    monkeypatch.delenv(workspace.TMP_VARIABLE, raising=False)
    images, precious = tmp_path / "images", tmp_path / "precious"
    precious.mkdir()
    dead, unmarked = (images / f"{workspace.own_prefix()}{name}" for name in ("dead", "unmarked"))
    foreign = images / f"{workspace.PREFIX}nid007-dead"
    longer = images / f"{workspace.own_prefix()}gpu-dead"  # of a machine whose name begins so
    for directory in (dead, unmarked, foreign, longer):
        (directory / "rootfs").mkdir(parents=True)
    for directory in (dead, foreign, longer):
        (directory / workspace.MARKER).touch()
    (images / f"{workspace.own_prefix()}link").symlink_to(precious)
    with workspace.workspace(images) as first:
        assert not dead.exists()
        with workspace.workspace(images) as second:
            assert first.output.exists()
            assert first.output != second.output
    assert unmarked.exists()
    assert foreign.exists()
    assert longer.exists()
    long_ago = time.time() - 8 * 86400
    os.utime(foreign, (long_ago, long_ago))
    os.utime(longer, (long_ago, long_ago))
    (unmarked / "rootfs").rmdir()  # what a kill before the marker leaves is empty
    workspace.sweep(images)
    assert [path.name for path in images.iterdir()] == [f"{workspace.own_prefix()}link"]
    assert precious.exists()


def test_a_build_takes_another_directory_where_its_new_one_is_taken_for_abandoned(
    tmp_path, monkeypatch
):
    """Another build searches before the directory has a lock."""
    make, made = tempfile.mkdtemp, list[str]()

    def make_and_search(*, prefix: str, dir: Path) -> str:
        made.append(make(prefix=prefix, dir=dir))
        if len(made) < 3:
            workspace.sweep(tmp_path)
        return made[-1]

    monkeypatch.delenv(workspace.TMP_VARIABLE, raising=False)
    monkeypatch.setattr(tempfile, "mkdtemp", make_and_search)
    with workspace.workspace(tmp_path) as place:
        assert len(made) == 3
        assert [place.output] == list(tmp_path.iterdir())


def test_a_build_without_locks_is_left_alone(tmp_path, monkeypatch):
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.delenv(workspace.TMP_VARIABLE, raising=False)
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with workspace.workspace(tmp_path) as first, workspace.workspace(tmp_path) as second:
        assert first.output.exists()
        assert second.output.exists()
    assert list(tmp_path.iterdir()) == []


def test_locks_are_for_the_group_that_may_write_to_the_directory(tmp_path):
    before = os.umask(0o077)
    try:
        for mode, expected in ((0o2770, 0o660), (0o700, 0o600)):
            directory = tmp_path / oct(mode)
            directory.mkdir()
            directory.chmod(mode)
            with hold_image(directory / "x.sif", "built"):
                pass
            assert stat.S_IMODE((directory / ".x.lock").stat().st_mode) == expected
            mutex.make_directory(directory / ".cache" / "layers")
            is_shared = (directory / ".cache" / "layers").stat().st_mode & stat.S_IWGRP
            assert bool(is_shared) == (expected == 0o660)
    finally:
        os.umask(before)


FULL, LAST = "000001ffffffffff", 40


@pytest.mark.parametrize(
    ("mask", "full"),
    [
        (FULL, True),
        ("000001fffeffffff", False),
        ("0000000000000000", False),
        ("000003ffffffffff", True),
    ],
)
def test_all_capabilities_are_all_that_the_kernel_knows(mask, full, tmp_path, monkeypatch):
    for name, text in (("_STATUS", f"CapInh:\t0\nCapEff:\t{mask}\n"), ("_LAST_CAPABILITY", "40\n")):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(privilege, name, tmp_path / name)
    assert privilege.has_all_capabilities() is full


@pytest.mark.parametrize(
    ("root", "full", "options"),
    [(True, True, ()), (False, True, ("--fakeroot",)), (True, False, ("--fakeroot",))],
)
def test_root_builds_directly_and_everybody_else_in_a_namespace(
    monkeypatch, tmp_path, root, full, options
):
    ids = tmp_path / "subuid"
    ids.write_text(f"{os.getuid()}:100000:65536\n")
    for name in ("_SUBUID", "_SUBGID"):
        monkeypatch.setattr(privilege, name, ids)
    monkeypatch.setattr(privilege, "has_all_capabilities", lambda: full)
    monkeypatch.setattr(shell, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    assert privilege.build_options() == options


def test_without_subordinate_ids_the_administrator_is_asked(monkeypatch, tmp_path):
    monkeypatch.setattr(privilege, "_SUBUID", tmp_path / "missing")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shell, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(ForbiddenError, match="is not set up here") as caught:
        privilege.build_options()
    assert "apptainer config fakeroot --add " in str(caught.value.next_step)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{uid}:100000:65536\n", (100000, 65536)),
        ("{name}:100000:65536\n", (100000, 65536)),
        ("other:1:2\n# a comment\n\n{name}:3:4:5\n{name}:100000:65536\n", (100000, 65536)),
        ("other:100000:65536\n", None),
        ("", None),
    ],
)
def test_subordinate_ids_are_by_name_or_number(tmp_path, text, expected):
    import pwd

    file = tmp_path / "subuid"
    file.write_text(text.format(uid=os.getuid(), name=pwd.getpwuid(os.getuid()).pw_name))
    assert privilege.subordinate_range(file) == expected
    assert privilege.subordinate_range(tmp_path / "missing") is None


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_log_is_a_new_file_whatever_others_put_there(kind, tmp_path):
    log, precious = tmp_path / "x.failed.log", tmp_path / "precious"
    precious.write_text("precious")
    if kind == "link":
        log.symlink_to(precious)
    else:
        os.mkfifo(log)
    follower = Follower("x", log, Silent())
    follower.announce("step")
    follower.end()
    assert (log.read_text(), precious.read_text()) == ("==> step: \n", "precious")


def test_a_line_without_end_is_kept_short(tmp_path):
    follower = Follower("tiny", tmp_path / "log", Silent())
    follower.secrets = ("hunter2",)
    line = "('x' * ((1 << 18) - 3) + 'hunter2') * 5 + 'said\\n'"
    script = f"import sys; sys.stdout.write({line} + 'y\\n')"
    assert follower.follow([sys.executable, "-c", script], {}) == 0
    log = (tmp_path / "log").read_text()
    assert log.endswith("x****said\ny\n")
    assert max(map(len, log.splitlines())) < 1 << 18
    assert set(log) == set("x*said\ny")


def test_what_cannot_be_removed_now_is_removed_by_a_later_build(tmp_path, monkeypatch):
    program = tmp_path / "rm"
    program.write_text('#!/bin/sh\n[ "${3##*/}" = held ] || exec /bin/rm "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(shell, "_program", lambda name, _: program if name == "rm" else name)
    monkeypatch.setattr(os, "getuid", lambda: 0)  # it is not tried again with subordinate ids
    images = tmp_path / "images"
    with workspace.workspace(images) as place:
        (place.output / "held").touch()
    assert {path.name for path in place.output.iterdir()} == {"held", workspace.MARKER}
    monkeypatch.undo()
    workspace.sweep(images)
    assert list(images.iterdir()) == []


def test_a_password_renames_no_package(tmp_path):
    follower = Follower("tiny", tmp_path / "log", Silent())
    follower.secrets = ("numpy",)
    follower.begin("checks")
    listed = 'toolkit-contents: pip {"name": "numpy"}'
    assert follower.follow(["printf", "%s\\n", listed, "by numpy"], {}) == 0
    assert follower.reader.results.listed == [listed]
    assert list(follower.reader.tail) == ["by ****"]
    assert (tmp_path / "log").read_text() == "by ****\n"


def test_without_bubblewrap_there_are_no_layers(tmp_path, monkeypatch):
    monkeypatch.setattr(shell, "which", lambda name: None if name == "bwrap" else f"/bin/{name}")
    with workspace.workspace(tmp_path / "images") as place:
        follower = Follower("tiny", tmp_path / "log", Silent())
        reason = programs.why_no_layers(place, follower)
    assert reason == "bubblewrap is not installed (toolkit setup installs it)"


def test_apptainer_reads_behind_its_fence_what_a_link_in_tmp_leads_to(tmp_path, monkeypatch):
    monkeypatch.setattr(shell, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(shell, "run", lambda words, **_: shell.Result(tuple(words), 0, "", ""))
    (tmp_path / "real").mkdir()
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        link = Path(place, "link")
        link.symlink_to(tmp_path / "real")
        with workspace.workspace(tmp_path / "images") as space:
            follower = Follower("tiny", tmp_path / "log", Silent())
            words = programs.fence_command(space, follower, (str(link),), "/")
    assert f"--ro-bind {link} {link}" in " ".join(words)


# Starts a program as a build does, says whose it is, and waits.
_TOOL = """
import sys, time
from pathlib import Path
from toolkit.images.builder.follow import start
print(start(["sh", "-c", "trap '' TERM INT HUP; sleep 1000; true"], {"PATH": "/bin"}).pid, flush=True)
time.sleep(1000)
"""


def test_a_program_ends_when_the_tool_is_killed(tmp_path):
    tool = subprocess.Popen(
        [sys.executable, "-c", _TOOL, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert tool.stdout
    pid = int(tool.stdout.readline())
    tool.kill()
    tool.communicate()
    until = time.monotonic() + 10
    while Path(f"/proc/{pid}/cmdline").exists() and time.monotonic() < until:
        if not Path(f"/proc/{pid}/cmdline").read_bytes():
            break  # it waits for its parent to read its exit code
        time.sleep(0.01)
    assert time.monotonic() < until
