"""A signal to save reaches ranks whose image an ordinary user's Apptainer reads through a FUSE server, and leaves that server alone.

Root's Apptainer mounts images in the kernel, so this needs a user and a cluster of theirs.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.ordinary_user import User
from tests.cluster.ranks import logs_of, wait_for


@pytest.fixture(scope="module")
def place(user: User, pytorch_image: Path) -> Iterator[Path]:
    """A directory of the user's, whose cluster is up and whose store has the image."""
    images = user.home / ".local/share/toolkit/images"
    user.run("mkdir", "-p", str(images))
    image = images / pytorch_image.name
    if not image.exists():
        shutil.copy(pytorch_image, image)
        shutil.chown(image, user.name)
    up = user.toolkit("cluster", "up", "--nodes", "2", "--mem-per-node", "8G")
    assert up.returncode == 0, up.stderr
    yield user.home
    down = user.toolkit("cluster", "down")
    assert down.returncode == 0, down.stderr


STUCK = """\
import pathlib, time
def read_shard():
    while not pathlib.Path("go").exists():
        time.sleep(0.1)
print("ready", flush=True)
read_shard()
import sqlite3, xml.dom.minidom, sklearn.linear_model
print("end", flush=True)
"""


def test_a_rank_that_is_asked_for_its_stacks_reads_from_its_image_afterwards(user, place):
    (place / "stuck.py").write_text(STUCK)
    (place / "go").unlink(missing_ok=True)
    words = ("--image", "pytorch_cpu", "--launcher", "none", "stuck.py")
    assert user.toolkit("run", "--detach", *words).returncode == 0
    wait_for(lambda: "ready" in logs_of(place, "stuck-0001"), "the script to run", seconds=120)
    for _ in range(2):
        shown = user.toolkit("stacks", "stuck-0001")
        assert "task 0 is in read_shard (stuck.py:" in shown.stdout, shown.stderr
    user.run("touch", str(place / "go"))
    followed = user.toolkit("logs", "-f", "stuck-0001", timeout=180)
    assert followed.returncode == 0, (followed.stderr, logs_of(place, "stuck-0001"))
    assert "end" in logs_of(place, "stuck-0001")
