"""`toolkit notebook` of an ordinary user, beside another ordinary user of the same node and login node."""

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

from tests.cluster.forwarding import LONG, TOOLKIT, Channels, Forward
from tests.cluster.ranks import ran, wait_for
from tests.progress import Silent
from toolkit.workshops.model import Exercise, Workshop
from toolkit.workshops.rehearsal import accounts
from toolkit.workshops.rehearsal.rehearse import NAME, Stage, stage, temporary_place

_NODE = "nid001"
_PYTHON = ("/usr/bin/python3", "-c")
# Asks the server behind a socket by the token on standard input.
_ASK = (
    "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
    "s.sendall(b'GET /api/status HTTP/1.0\\r\\nAuthorization: token %s\\r\\n\\r\\n' % sys.stdin.buffer.read());"
    "print(s.recv(20))"
)
_DEBUG = {
    "command": "initialize",
    "arguments": {"clientID": "test", "adapterID": "python", "pathFormat": "path"},
}
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
    reach: tuple[str, ...]
    directory: Path

    @property
    def words(self) -> tuple[str, ...]:
        """The words before a command of this user, in the directory."""
        name = self.person.name
        settings = {
            **{"HOME": str(self.person.home), "USER": name, "LOGNAME": name, "LANG": "C.UTF-8"},
            "TOOLKIT_ETC": str(self.directory.parent / "etc"),
            "TOOLKIT_SITE": self.cluster.site,
            "SLURM_CONF": str(self.cluster.paths.conf),
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        }
        own = (f"{name}={value}" for name, value in settings.items())
        become = (*self.reach, *self.person.become)
        return (*self.cluster.words(self.directory), *become, "env", "-i", *own)

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the login side."""
        return ran(*self.words, *words, **more)

    def toolkit(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "toolkit", *words)

    def on_node(self, *words: str, as_root: bool = False) -> tuple[str, ...]:
        """Return a command that runs another on the node, with no rights but this user's."""
        become = () if as_root else self.person.become
        clusters = f"TOOLKIT_CLUSTER_DIR={self.cluster.paths.directory.parent}"
        entry = f"cluster exec --name {NAME} --node {_NODE} --".split()
        return ("env", clusters, *TOOLKIT, *entry, *become, *words)

    def there(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the node."""
        return ran(*self.on_node(*words), **more)


@pytest.fixture(scope="module")
def two_users(notebook_image: Path) -> Iterator[tuple[Login, Login]]:
    """Two users of one cluster, and the directory of the first, which all may enter."""
    if os.geteuid() != 0:
        pytest.skip("only root can make users")
    workshop = Workshop(title="notebooks", exercises=(Exercise(name="one", folder="one"),))
    with temporary_place(Silent()) as place, accounts.users(2, place / "home") as people:
        reach = accounts.reach(people[0], place / "tool")
        shutil.copy(notebook_image, place)
        course = place / "course"
        course.mkdir()
        shutil.chown(course, people[0].name)
        with stage(workshop, 2, place, Silent()) as cluster:
            first, second = (Login(cluster, person, reach, course) for person in people)
            yield first, second


def refused(done: subprocess.CompletedProcess[str]) -> bool:
    return done.returncode != 0 and "ermission" in done.stderr


def status(door: Forward, token: str = "") -> int:
    return int(door.get("/api/status", token).split()[1])


# The addresses on which processes of the notebook listen, run on its node.
_LISTENING = r"""
import contextlib, os, pathlib, re
own = set()
def links(process):
    for number in os.listdir(process / "fd"):
        with contextlib.suppress(FileNotFoundError):  # a server closes connections all the time
            yield os.readlink(process / "fd" / number)
for entry in pathlib.Path("/proc").glob("[0-9]*"):
    with contextlib.suppress(OSError):
        if re.match(rb"\S*python.*(notebook_server|ipykernel|debugpy)", (entry / "cmdline").read_bytes()):
            own |= set(links(entry))
for name in ("tcp", "tcp6", "udp", "udp6"):
    for row in pathlib.Path("/proc/net", name).read_text().splitlines()[1:]:
        words = row.split()
        if f"socket:[{words[9]}]" in own and (words[3] == "0A" or name[0] == "u"):
            print(words[1])
print("listed", len(own))
"""


def listening(login: Login) -> list[str]:
    """As root, who sees the connections of every process."""
    done = ran(*login.on_node(*_PYTHON, _LISTENING, as_root=True))
    *addresses, last = done.stdout.splitlines()
    assert int(last.split()[1]) > 0, done
    return addresses


def test_a_notebook_that_only_its_owner_reaches(two_users):
    first, second = two_users
    image = str(first.directory.parent / "notebook_cpu.sif")
    words = ("--image", image, "--nodelist", _NODE, "--cpus-per-task", "2", "--time", "20")
    start = (*first.words, sys.executable, "-m", "toolkit")
    here = first.directory.parent
    door = Forward(here, {**os.environ}, "notebook", *words, command=start)
    token = door.entry["address"].split("token=")[1]
    run = first.directory / "runs/notebook-0001"
    place = json.loads((run / "place.json").read_text())
    assert re.fullmatch(r"http://localhost:8888/lab\?token=[0-9a-f]{64}", door.entry["address"])
    assert (status(door), status(door, "0" * 64), status(door, token)) == (403, 403, 200)

    # The owner reaches it on the login node; the other user does not, there or on the node.
    answer = first.run(*_PYTHON, _ASK, str(door.socket), stdin=token)
    assert "200" in answer.stdout, answer
    assert refused(second.run(*_PYTHON, _ASK, str(door.socket), stdin=token))
    assert refused(second.there(*_PYTHON, _ASK, place["socket"], stdin=token))
    assert refused(second.there("ls", str(Path(place["socket"]).parent)))

    # Nor a file of the run, whose directory only the owner enters; the token is in one of them.
    assert refused(second.run("ls", str(run)))
    names = ("token", "plan.json", "job.sbatch", "place.json", "notebook_server.py", "logs", "ssh")
    for name in names:
        assert (run / name).exists()
        assert refused(second.run("cat", str(run / name))), name
    files = [path for path in run.rglob("*") if path.is_file()]
    holding = [path.name for path in files if token.encode() in path.read_bytes()]
    assert (holding, (run / "token").stat().st_mode & 0o777) == (["token"], 0o600)

    # Nor the token in what is seen of processes, of the job and of its script.
    for search in (second.run, second.there):
        seen, found = search(*_PYTHON, _SEARCH, first.person.name, stdin=token).stdout.split()
        assert (int(seen) > 0, found) == (True, "0")
    for user in (first, second):
        shown = user.run("scontrol", "show", "job", "--details").stdout
        assert ("JobId=" in shown, token in shown) == (True, False)
    job = re.findall(r"JobId=(\d+)", shown)[0]
    script = first.run("scontrol", "write", "batch_script", job, "-").stdout
    assert ("notebook_server.py" in script, token in script) == (True, False)
    assert "Invalid user id" in second.run("scontrol", "write", "batch_script", job, "-").stderr

    # The server's memory is closed to the user's own other processes, and in no core dump.
    owner, runs_as = first.there(*_PYTHON, _SERVER).stdout.splitlines()[0].split()
    assert (owner, runs_as) == ("0", str(run.stat().st_uid))

    # Who has the token cannot set a password that would outlive it.
    page = door.get("/login")
    assert ("_xsrf" in page, "new_password" in page) == (True, False)

    # It listens on no address. A kernel has one, on the loopback address, on which ipykernel takes
    # the output of forked processes; it sends nothing, and takes nothing without a secret.
    assert listening(first) == []
    kernel = json.loads(door.get("/api/kernels", token, verb="POST").split("\r\n\r\n", 1)[1])
    wait_for(lambda: len(listening(first)) == 1, "the kernel")
    assert listening(first)[0].startswith("0100007F:")

    # The debugger, to whose ports every user of the node could connect, cannot be started.
    assert "@jupyterlab/debugger-extension" in door.get("/lab", token)
    channels = Channels(door, kernel["id"], token)
    channels.ask("debug_request", {"type": "request", "seq": 1, **_DEBUG})
    channels.ask("kernel_info_request", {})
    kinds = iter(each["msg_type"] for each in channels.answers())
    replies = {next(kind for kind in kinds if kind.endswith("_reply"))}
    assert (replies, len(listening(first))) == ({"kernel_info_reply"}, 1)

    # A session is where the kernels are: in the image, with what the job sees.
    ask = "ls runs; python3 -c 'import jupyterlab'"
    inside = first.toolkit("ssh", "notebook-0001", ask)
    assert (inside.returncode, inside.stdout) == (0, "notebook-0001\n"), inside

    # The step is killed, and is there again.
    steps = first.run(*"squeue --steps --noheader".split(), "--format=%i %j").stdout
    (step,) = [row.split()[0] for row in steps.splitlines() if "toolkit-ssh" in row]
    first.run("scancel", step)
    wait_for(lambda: door.says(f"{_NODE} again"), "the step to start again")
    assert status(door, token) == 200

    # The way in is closed and opened; the notebook goes on.
    first.run("pkill", "--full", "toolkit notebook --image")
    assert door.process.wait(LONG) == 130
    connect = ("notebook", "connect", "notebook-0001")
    again = Forward(here, {**os.environ}, *connect, command=start)
    assert again.entry["address"].endswith(token)
    (row,) = json.loads(first.toolkit("ps", "--json").stdout)
    assert (row["run"], row["state"], row["nodes"]) == ("notebook-0001", "RUNNING", _NODE)

    # A server of the other user in its place gets no token.
    listen = second.on_node(*_PYTHON, _IMPOSTOR, "/tmp/impostor.sock")
    impostor = subprocess.Popen(listen, stdout=subprocess.PIPE, text=True)
    assert impostor.stdout
    assert impostor.stdout.readline() == "ready\n"
    (run / "place.json").write_text(json.dumps({**place, "socket": "/tmp/impostor.sock"}))
    fooled = first.toolkit("notebook", "connect", "--socket", str(first.person.home / "s"))
    assert (fooled.returncode, "belongs to another user" in fooled.stderr) == (71, True), fooled
    second.there("pkill", "--full", "impostor.sock")
    assert impostor.communicate(timeout=LONG)[0] == "", "nothing of this user has connected"
    (run / "place.json").write_text(json.dumps(place))

    # It is stopped while a client is connected: a plain end, and nothing is left.
    assert status(again, token) == 200
    stopped = first.toolkit("notebook", "stop", "notebook-0001")
    assert stopped.returncode == 0, stopped.stderr
    assert again.process.wait(LONG) == 0
    assert again.says("not running any more")
    assert not again.socket.exists()
    wait_for(lambda: not (run / "token").exists(), "the job's own clean-up")
    assert "toolkit-notebook" not in first.there("ls", "/tmp").stdout
    ended = first.toolkit(*connect)
    assert (ended.returncode, "is not running" in ended.stderr) == (87, True)
