"""What works on one image at the same time: each waits or is refused, and a kill leaves the old image or the new one."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.image_fixtures import Tiny, key
from tests.cluster.ranks import wait_for
from toolkit.images.store import store

HOLDER = r"being {} by process {} on \S+ since 20"
IMAGE = {"tiny.sif", "tiny.log"}


@pytest.fixture(autouse=True)
def own_key(tiny: Tiny) -> None:
    key(tiny.place, "ec")


@pytest.fixture
def building(built: Tiny) -> Iterator[subprocess.Popen[str]]:
    """A second build of the image, which is in the middle of its step."""
    recipe = built.recipe("sleep 300 || true", "echo new > /greeting", checks='greeting = "true"')
    process = built.started("--force", recipe, until="+ sleep 300")
    yield process
    process.kill()
    process.communicate()


def lock(images: Tiny) -> int:
    return (images.images / ".tiny.lock").stat().st_ino


def greeting(images: Tiny) -> str:
    """The greeting of the image, which must be whole: its file, its manifest, its start."""
    assert store.find(str(images.sif)).manifest is not None
    return images.inside("/bin/cat", "/greeting").strip()


def left_after_prune(images: Tiny) -> set[str]:
    images.idle()
    done = images.run("prune")
    assert done.returncode == 0, done.stderr
    return set(images.left()) - {"tiny.failed.log", ".tiny.note.json"}


def test_an_image_that_is_built_is_not_removed(built, building):
    inode = lock(built)
    ways = {("remove", "tiny", "--force"): 75, ("prune", "--older-than", "0d"): 0}
    for words, code in ways.items():
        done = built.run(*words)
        assert done.returncode == code, done.stderr
        assert re.search(HOLDER.format("built", building.pid), done.stdout + done.stderr)
    assert greeting(built) == "old"
    built.wake()
    _, said = building.communicate(timeout=120)
    assert (building.returncode, "bug" in said) == (0, False), said
    assert greeting(built) == "new"
    assert lock(built) == inode
    assert left_after_prune(built) == IMAGE


def test_of_builds_that_wait_one_goes_on_when_the_first_is_killed(built, building):
    recipe = built.recipe("echo next > /greeting")
    waiting = [built.start("build", recipe, "--json") for _ in range(2)]
    for process in waiting:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert re.search(f"^waiting +tiny is {HOLDER.format('built', building.pid)}", said), said
    building.kill()
    building.communicate()
    outputs = [process.communicate(timeout=120)[0] for process in waiting]
    assert [process.returncode for process in waiting] == [0, 0]
    assert sorted(re.findall(r'"kept": *(\w+)', "".join(outputs))) == ["false", "true"]
    assert greeting(built) == "next"
    assert left_after_prune(built) == IMAGE


def _verifies(built: Tiny) -> bool:
    return built.run("verify-signature", "tiny", "--key", built.place / "ec.pub").returncode == 0


@pytest.mark.parametrize(("action", "killed"), [("sign", False), ("verify", False), ("pull", True)])
def test_who_works_on_an_image_waits_for_its_build(action, killed, built, registry, request):
    """Each then works on what the build left: the new image, or after a kill the old one."""
    place = f"oras://{registry.name}/at-once/tiny:1"
    if action == "pull":
        built.built(built.recipe("echo pulled > /greeting", name="other"))
        assert built.run("push", "other", place).returncode == 0
    building = request.getfixturevalue("building")
    words = {
        "sign": ("sign", "tiny", "--key", built.place / "ec.pem"),
        "pull": ("pull", place, "--name", "tiny", "--force"),
        "verify": ("verify", "tiny"),
    }
    other = built.start(*words[action])
    assert other.stderr is not None
    lines = iter(other.stderr.readline, "")
    said = next((line for line in lines if line.startswith("waiting")), "")
    assert re.search(HOLDER.format("built", building.pid), said), said
    assert other.poll() is None
    if killed:
        building.kill()
    else:
        built.wake()
    _, said = other.communicate(timeout=120)
    assert other.returncode == 0, said
    building.communicate(timeout=120)
    assert greeting(built) == ("pulled" if killed else "new")
    assert action != "sign" or _verifies(built)
    assert left_after_prune(built) - {"other.sif", "other.log"} == IMAGE


@pytest.fixture
def held(built: Tiny) -> Callable[[], Path]:
    """Have every `cp` of the store's commands wait until its FIFO is opened for writing."""
    programs, fifo = built.place / "programs", built.place / "fifo"
    programs.mkdir()
    os.mkfifo(fifo)
    script = f'#!/bin/sh\n: > {programs}/begun\n: < {fifo}\nexec /bin/cp "$@"\n'
    (programs / "cp").write_text(script)
    (programs / "cp").chmod(0o755)
    built.extra["PATH"] = f"{programs}:{os.environ['PATH']}"

    def begun() -> Path:
        wait_for((programs / "begun").exists, "cp to begin")
        return fifo

    return begun


@pytest.mark.parametrize("killed", [False, True], ids=["ends", "killed"])
def test_an_image_that_is_signed_is_not_removed(killed, built, held):
    inode = lock(built)
    signing = built.start("sign", "tiny", "--key", built.place / "ec.pem")
    fifo = held()
    refused = built.run("remove", "tiny")
    assert refused.returncode == 75
    assert re.search(HOLDER.format("signed", signing.pid), refused.stderr), refused.stderr
    if killed:
        os.killpg(signing.pid, signal.SIGKILL)
        signing.communicate()
    else:
        fifo.write_text("")
        assert signing.wait(120) == 0, signing.communicate()
    assert greeting(built) == "old"
    assert _verifies(built) is not killed
    assert left_after_prune(built) == IMAGE
    assert built.run("remove", "tiny").returncode == 0
    assert (built.left(), lock(built)) == ([], inode)


def test_what_a_killed_pull_leaves_goes_with_the_next_prune(tiny):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        pulling = tiny.start("pull", f"oras://127.0.0.1:{silent.getsockname()[1]}/a/b:1")
        connection, _ = silent.accept()  # by Apptainer, in the directories of the pull
        with connection:
            assert tiny.left() != []
            tiny.run("prune")
            assert tiny.left() != [], "of a living process nothing is removed"
            os.killpg(pulling.pid, signal.SIGKILL)
            pulling.communicate()
    assert left_after_prune(tiny) == set()
