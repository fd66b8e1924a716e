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
from contextlib import suppress
from pathlib import Path

import pytest

from tests.progress import Silent
from toolkit import shell
from toolkit.checks import failed
from toolkit.errors import BuildError, ForbiddenError, NeedsInstallError, NoSpaceError
from toolkit.images.builder import build as building
from toolkit.images.builder import methods
from toolkit.images.builder.apptainer import programs
from toolkit.images.builder.apptainer.sandbox import SandboxStep
from toolkit.images.builder.buildlog import Reader
from toolkit.images.builder.follow import Follower
from toolkit.images.builder.remote_base import BuildTask
from toolkit.images.host import host_config as host
from toolkit.images.host import mutex, privilege, workspace
from toolkit.images.host.mutex import hold_image
from toolkit.images.recipe import library
from toolkit.images.recipe.recipe import Space
from toolkit.images.verify.own_checks import Results

LOG = """\
INFO:    Starting build...
+ echo ==> apt: zip
==> apt: zip
+ apt-get -qq update
==> pip: this was said by a program, and it is not the turn of pip
+ apt-get -qq -y install zip
+ echo ==> greet: 1 command
==> greet: 1 command
==> pip: torch 2.13.0
+ pip install torch==2.13.0
ERROR: No matching distribution found for torch==2.13.0
"""
END = """\
==> clean: x
INFO:    Creating SIF file...
INFO:    Non-gzip squashfs compression might not work with some installations
"""
CHECKS = """\
==> clean: x
toolkit-fact: framework torch 2.13.0+cpu
toolkit-check: imports passed: torch 2.13.0+cpu
toolkit-fact: mpi pmix
toolkit-check: ranks-gloo failed: [0]<stdout>:the sum is wrong: 1
"""


def fed(reader: Reader, text: str) -> list[tuple[str, str]]:
    """The events of a log, each with the step it was in."""
    return [(event, reader.step) for line in text.splitlines() if (event := reader.feed(line))]


def test_a_log_tells_the_step_the_command_and_the_end():
    reader = Reader(["apt", "greet", "pip", "clean"])
    assert fed(reader, LOG) == [("step", "apt"), ("step", "greet"), ("step", "pip")]
    assert reader.command == "pip install torch==2.13.0"
    assert list(reader.tail)[-1].startswith("ERROR: No matching")
    assert not reader.no_space


def test_a_log_tells_what_the_checks_said():
    reader = Reader(["clean", "pack"])
    assert fed(reader, END) == [("step", "clean"), ("step", "pack")]
    assert list(reader.tail) == []
    reader.enter("checks")
    assert fed(reader, CHECKS) == [("check", "checks"), ("check", "checks")]
    assert reader.results.frameworks == {"torch": "2.13.0+cpu"}
    assert reader.results.mpi == ["pmix"]
    assert reader.results.failed == [failed("the sum is wrong: 1", name="ranks-gloo")]


@pytest.mark.parametrize("steps", [["run", "clean", "pack"], []])
def test_what_a_step_prints_is_no_result_and_no_later_step(steps):
    """It prints the lines of Apptainer's own tests and packing, of the checks, and of other steps."""
    reader = Reader(steps, "run")
    lies = "INFO:    Running testscript\nINFO:    Creating SIF file...\n==> pack: x\n"
    lies += "==> checks: x\ntoolkit-check: imports passed: a lie\ntoolkit-fact: framework torch 9\n"
    assert fed(reader, f"==> run: x\n{lies}") in ([("step", "run")], [])
    assert (reader.step, reader.results) == ("run", Results())


def test_a_full_disk_is_recognised():
    reader = Reader(["run"])
    fed(reader, "==> run: x\ncp: error writing 'y': No space left on device\n")
    assert reader.no_space


class Said(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, subject: str, text: str) -> None:
        self.lines.append(f"{subject} {text}")


def decided(
    monkeypatch: pytest.MonkeyPatch, images: Path, reason: str, layered: object
) -> tuple[list[str], list[str]]:
    """Build on a machine without layers for this reason; return which ways were tried, and what was said."""
    tried: list[str] = []

    def in_layers(*_: object) -> object:
        tried.append("layers")
        if isinstance(layered, BaseException):
            raise layered
        return layered

    monkeypatch.setattr(methods, "why_no_layers", lambda *_: reason)
    monkeypatch.setattr(methods, "_build_layered", in_layers)
    monkeypatch.setattr(methods, "_build_flat", lambda *_: tried.append("flat"))
    said = Said()
    with workspace.workspace(images) as place, suppress(BuildError):
        follower = Follower("x", images / "log", said)
        task = BuildTask(library.load("pytorch_cpu"), None, None, place, follower)
        methods.run(task, said, "apptainer", flat=False)
    return tried, said.lines


def test_a_build_is_flat_if_layers_are_impossible_which_is_said(monkeypatch, tmp_path):
    tried, said = decided(monkeypatch, tmp_path, "no overlays", None)
    assert tried == ["flat"]
    assert said[0] == "flat no layers on this machine: no overlays"
    assert said[1].startswith("warning Apptainer does not confine the steps")


@pytest.mark.parametrize("cause", ["exit code 124", "namespaces: Operation not permitted"])
def test_a_build_that_fails_in_layers_is_never_repeated_flat(monkeypatch, tmp_path, cause):
    assert decided(monkeypatch, tmp_path, "", BuildError(cause)) == (["layers"], [])


def test_a_build_that_is_stopped_while_it_asks_a_registry_has_made_no_image(monkeypatch, tmp_path):
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("TOOLKIT_IMAGES", str(tmp_path / "images"))
    monkeypatch.setattr(building, "resolve_base", stopped)
    monkeypatch.setattr(building, "require_space", lambda *_, **__: ())
    said = Said()
    with pytest.raises(KeyboardInterrupt):
        building.build("pytorch_cpu", said)
    assert said.lines == ["stopped no process of the build is left; the image does not exist"]


@pytest.mark.parametrize(
    "keyring", ["debian-archive-keyring.gpg", "debian-archive-keyring.pgp", ""]
)
def test_debootstrap_always_verifies(keyring, monkeypatch, tmp_path):
    monkeypatch.setattr(shell, "which", lambda program: f"/usr/sbin/{program}")
    monkeypatch.setattr(host, "_KEYRINGS", tmp_path)
    if keyring:
        (tmp_path / keyring).touch()
        assert host.debootstrap_command() == ("/usr/sbin/debootstrap", "--force-check-gpg")
    else:
        with pytest.raises(NeedsInstallError, match="cannot be verified") as caught:
            host.debootstrap_command()
        assert caught.value.next_step == "toolkit setup (package debian-archive-keyring)"


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
    assert privilege.build_options(root=root) == options


def test_without_subordinate_ids_the_administrator_is_asked(monkeypatch, tmp_path):
    monkeypatch.setattr(privilege, "_SUBUID", tmp_path / "missing")
    monkeypatch.setattr(shell, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(ForbiddenError, match="is not set up here") as caught:
        privilege.build_options(root=False)
    assert (caught.value.next_step or "").startswith(
        "ask the administrator to run: apptainer config fakeroot --add "
    )


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
    follower.log_line("line")
    follower.end()
    assert (log.read_text(), precious.read_text()) == ("line\n", "precious")


def test_a_line_without_end_is_kept_short(tmp_path):
    follower = Follower("tiny", tmp_path / "log", Silent())
    script = "import sys; sys.stdout.write('x' * 5_000_000 + 'said\\n' + 'y\\n')"
    assert follower.follow([sys.executable, "-c", script], {}) == 0
    log = (tmp_path / "log").read_text()
    assert log.endswith("xsaid\ny\n")
    assert len(log) < 600_000


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


def test_that_layers_work_is_tested_once_until_a_step_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(shell, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(programs, "namespace_ids", lambda: ((), ()))
    monkeypatch.setattr(shell, "run", lambda words, **_: shell.Result(tuple(words), 0, "", ""))
    codes: list[int] = []
    monkeypatch.setattr(Follower, "follow", lambda *_, **__: codes.pop(0))

    def asked(*given: int, step: bool = False) -> str:
        codes[:] = given
        with workspace.workspace(tmp_path / "images") as place:
            follower = Follower("tiny", tmp_path / "log", Silent())
            if not step:
                return programs.why_no_layers(place, follower)
            made = SandboxStep("bwrap", "/", (), "u0", ("true",))
            return str(programs.run_step(made, place, follower))

    assert asked(7) == "the test of it ended with 7"
    assert asked(0) == asked() == ""
    assert asked(0, step=True) == "0"
    assert asked() == ""
    assert asked(1, step=True) == "1"
    assert asked(7) == "the test of it ended with 7"
    (proof,) = (asked(0), *(tmp_path / "images/.cache").glob(".layers-*"))[1:]
    proof.unlink()
    proof.symlink_to(tmp_path / "elsewhere")
    assert asked(0) == ""
    assert not (tmp_path / "elsewhere").exists()


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
