"""What another user of the machine can do, tried by real second users."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.image_fixtures import Tiny, tidied

GROUP = f"tkg{os.getpid()}"
USERS = (f"tka{os.getpid()}", f"tkb{os.getpid()}")


@pytest.fixture(scope="module")
def group() -> Iterator[str]:
    """A group with two ordinary users who may build images."""
    if os.geteuid() != 0:
        pytest.skip("only root can make users")
    subprocess.run(["groupadd", GROUP], check=True)
    try:
        for name in USERS:
            home = f"/var/tmp/{name}"
            subprocess.run(["useradd", "--create-home", "--home-dir", home, "--groups", GROUP, name], check=True)
            subprocess.run(["apptainer", "config", "fakeroot", "--add", name], check=True)
        yield GROUP
    finally:
        for name in USERS:
            subprocess.run(["apptainer", "config", "fakeroot", "--remove", name], check=False)
            subprocess.run(["userdel", "--remove", name], check=False, capture_output=True)
        subprocess.run(["groupdel", GROUP], check=False)


@pytest.fixture
def shared_store(group: str, tiny_base: str) -> Iterator[tuple[Tiny, Tiny]]:
    """One directory of images, seen by two users of its group."""
    read = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
    with tempfile.TemporaryDirectory(prefix="toolkit-test-", dir="/var/tmp") as name:
        place = Path(name)
        place.chmod(0o711)
        first, second = (
            Tiny(place, tiny_base, ("setpriv", "--reuid", user, "--regid", user, "--init-groups", *read), {"HOME": f"/var/tmp/{user}"})
            for user in USERS
        )
        for _ in tidied(first):
            shutil.chown(first.images, USERS[0], group)
            first.images.chmod(0o2775)
            yield first, second


def test_two_users_build_in_one_directory_of_images(shared_store: tuple[Tiny, Tiny]) -> None:
    first, second = shared_store
    recipe = first.recipe("echo one > /greeting")
    done = first.run("build", recipe)
    assert done.returncode == 0, done.stderr
    assert first.images.joinpath("tiny.sif").owner() == USERS[0]

    again = second.run("build", recipe)
    assert again.returncode == 0, again.stderr
    first.recipe("echo two > /greeting")
    changed = second.run("build", recipe)
    assert changed.returncode == 0, changed.stderr
    assert second.images.joinpath("tiny.sif").owner() == USERS[1]
    assert second.inside("/bin/cat", "/greeting") == "two\n"
    back = first.run("build", recipe, "--force")
    assert back.returncode == 0, back.stderr
    for user in (first, second):
        for words in (("list",), ("cache", "--clear"), ("prune", "--older-than", "1d")):
            done = user.run(*words)
            assert done.returncode == 0, (words, done.stderr)


def test_one_waits_for_the_other(shared_store: tuple[Tiny, Tiny]) -> None:
    first, second = shared_store
    recipe = first.recipe("sleep 5")
    building = first.started(recipe, until="act")
    refused = second.run("build", recipe, "--no-wait")
    assert refused.returncode == 75, refused.stderr
    assert f"by process {building.pid}" in refused.stderr or "by process" in refused.stderr
    assert building.wait(60) == 0


def test_who_may_not_is_told_which_permission_is_missing(shared_store: tuple[Tiny, Tiny]) -> None:
    first, second = shared_store
    recipe = first.recipe("true")
    assert first.run("build", recipe).returncode == 0
    first.images.chmod(0o755)
    (first.images / ".tiny.lock").chmod(0o600)
    for words in (("build", recipe, "--force"), ("remove", "tiny")):
        done = second.run(*words)
        assert "Traceback" not in done.stderr, words
        assert done.returncode == 77, (words, done.stdout, done.stderr)
        assert str(first.images) in done.stderr
    assert first.inside("/bin/true") == ""
