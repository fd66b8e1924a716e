"""Notebooks of an ordinary user, beside another ordinary user of the same node and login node."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.forwarding import LONG, Forward
from tests.cluster.ranks import wait_for
from tests.progress import Silent
from toolkit.workshops.model import Exercise, Workshop
from toolkit.workshops.rehearsal import accounts
from toolkit.workshops.rehearsal.rehearse import NAME, Stage, stage, temporary_place

_NODE = "nid001"
# Prints how many processes of a user are seen, and how often the words of standard input are in
# what can be read of all processes.
_SEARCH = r"""
import contextlib, pathlib, pwd, sys
words, seen, found = sys.stdin.read().split(), 0, 0
user = pwd.getpwnam(sys.argv[1]).pw_uid
for entry in pathlib.Path("/proc").glob("[0-9]*"):
    for name in ("cmdline", "environ", "maps"):
        with contextlib.suppress(OSError):  # it has ended meanwhile, or may not be read
            data = (entry / name).read_bytes()
            found += sum(word.encode() in data for word in words)
            seen += name == "cmdline" and entry.stat().st_uid == user
print(seen, found)
"""
# The user whom the files in /proc of the server belong to, and the user that it runs as.
_SERVER = r"""
import contextlib, os, pathlib
for entry in pathlib.Path("/proc").glob("[0-9]*"):
    with contextlib.suppress(OSError):  # it has ended meanwhile
        words = (entry / "cmdline").read_bytes().split(b"\0")
        if any(word.endswith(b"/notebook_server.py") for word in words) and b"python" in words[0]:
            print((entry / "environ").stat().st_uid, os.stat(entry / "task").st_uid)
"""
# Takes connections in the place of a server, and writes down what they send.
_IMPOSTOR = """
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
server.listen()
print("ready", flush=True)
while True:
    peer, _ = server.accept()
    print(peer.recv(4096), flush=True)
"""


class Login(NamedTuple):
    """A user on the login side of a cluster, and on its nodes."""

    cluster: Stage
    person: accounts.Person
    tool: tuple[str, dict[str, str]]
    directory: Path

    @property
    def words(self) -> tuple[str, ...]:
        """The words before a command of this user, in the directory."""
        settings = {
            **self.tool[1],
            "HOME": str(self.person.home),
            "USER": self.person.name,
            "LOGNAME": self.person.name,
            "TOOLKIT_ETC": str(self.directory.parent / "etc"),
            "TOOLKIT_SITE": self.cluster.site,
            "SLURM_CONF": str(self.cluster.paths.conf),
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "LANG": "C.UTF-8",
        }
        own = (f"{name}={value}" for name, value in settings.items())
        return (*self.cluster.words(self.directory), *self.person.become, "env", "-i", *own)

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command on the login side."""
        return subprocess.run(
            (*self.words, *words),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=LONG,
        )

    def toolkit(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.tool[0], "-m", "toolkit", *words)

    def on_node(self, *words: str) -> tuple[str, ...]:
        """Return a command that runs another on the node, with no rights but this user's."""
        clusters = f"TOOLKIT_CLUSTER_DIR={self.cluster.paths.directory.parent}"
        entry = f"-m toolkit cluster exec --name {NAME} --node".split()
        enter = ("env", clusters, sys.executable, *entry)
        return (*enter, _NODE, "--", *self.person.become, *words)

    def there(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command on the node."""
        return subprocess.run(
            self.on_node(*words),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=LONG,
        )


@pytest.fixture(scope="module")
def two_users(notebook_image: Path) -> Iterator[tuple[Login, Login]]:
    """Two users of one cluster, and the directory of the first, which all may enter."""
    if os.geteuid() != 0:
        pytest.skip("only root can make users")
    workshop = Workshop(title="notebooks", exercises=(Exercise(name="one", folder="one"),))
    with temporary_place(Silent()) as place, accounts.users(2, place / "home") as people:
        tool = accounts.provide_tool(people[0], place / "tool")
        shutil.copy(notebook_image, place)
        course = place / "course"
        course.mkdir()
        shutil.chown(course, people[0].name)
        with stage(workshop, 2, place, Silent()) as cluster:
            first, second = (Login(cluster, person, tool, course) for person in people)
            yield first, second


def refused(done: subprocess.CompletedProcess[str]) -> bool:
    return done.returncode != 0 and "ermission" in done.stderr


def test_another_user_gets_nothing_of_a_notebook(two_users):
    first, second = two_users
    image = str(first.directory.parent / "notebook_cpu.sif")
    words = ("notebook", "--image", image, "--nodelist", _NODE, "--time", "20")
    start = (*first.words, first.tool[0], "-m", "toolkit")
    door = Forward(first.directory.parent, {**os.environ}, *words, command=start)
    token = door.entry["address"].split("token=")[1]
    run = first.directory / "runs/notebook-0001"
    place = json.loads((run / "place.json").read_text())
    ask = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "s.sendall(b'GET /api/status HTTP/1.0\\r\\nAuthorization: token %s\\r\\n\\r\\n' % sys.stdin.buffer.read());"
        "print(s.recv(20))"
    )
    python = ("/usr/bin/python3", "-c")

    # The owner reaches it on the login node; the other user does not, there or on the node.
    answer = first.run(*python, ask, str(door.socket), stdin=token)
    assert "200" in answer.stdout, answer
    assert refused(second.run(*python, ask, str(door.socket), stdin=token))
    assert refused(second.there(*python, ask, place["socket"], stdin=token))
    assert refused(second.there("ls", str(Path(place["socket"]).parent)))

    # Nor a file of the run, whose directory only the owner enters.
    assert refused(second.run("ls", str(run)))
    names = ("token", "plan.json", "job.sbatch", "place.json", "notebook_server.py", "logs", "ssh")
    for name in names:
        assert (run / name).exists()
        assert refused(second.run("cat", str(run / name))), name

    # Nor the token in what is seen of processes, of the job and of its script.
    for search in (second.run, second.there):
        seen, found = search(*python, _SEARCH, first.person.name, stdin=token).stdout.split()
        assert int(seen) > 0
        assert found == "0"
    for user in (first, second):
        shown = user.run("scontrol", "show", "job", "--details").stdout
        assert ("JobId=" in shown, token in shown) == (True, False)
    job = re.findall(r"JobId=(\d+)", shown)[0]
    script = first.run("scontrol", "write", "batch_script", job, "-").stdout
    assert ("notebook_server.py" in script, token in script) == (True, False)
    assert "Invalid user id" in second.run("scontrol", "write", "batch_script", job, "-").stderr

    # The server's memory is closed to the user's own other processes, and in no core dump.
    (owner, runs_as), *_ = (
        row.split() for row in first.there(*python, _SERVER).stdout.splitlines()
    )
    assert (owner, runs_as) == ("0", str(run.stat().st_uid))

    # A server of the other user in its place gets no token.
    impostor = subprocess.Popen(
        second.on_node(*python, _IMPOSTOR, "/tmp/impostor.sock"), stdout=subprocess.PIPE, text=True
    )
    assert impostor.stdout is not None
    assert impostor.stdout.readline() == "ready\n"
    (run / "place.json").write_text(json.dumps({**place, "socket": "/tmp/impostor.sock"}))
    fooled = first.toolkit("notebook", "connect", "--socket", str(first.person.home / "s"))
    assert (fooled.returncode, "belongs to another user" in fooled.stderr) == (71, True), fooled
    second.there("pkill", "--full", "impostor.sock")
    heard = impostor.communicate(timeout=LONG)[0]
    assert heard == ""  # nothing of this user has connected
    (run / "place.json").write_text(json.dumps(place))

    stopped = first.toolkit("notebook", "stop", "notebook-0001")
    assert stopped.returncode == 0, stopped.stderr
    assert door.process.wait(LONG) == 0
    assert door.says("not running any more")
    assert not door.socket.exists()
    wait_for(lambda: not (run / "token").exists(), "the job's own clean-up")
