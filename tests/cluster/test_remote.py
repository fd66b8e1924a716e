"""A laptop without Slurm, and a login node: a real sshd on the loopback address, another user, a banner, a noisy shell, lost connections."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.forwarding import CONNECT, TOOLKIT, free_port
from tests.cluster.ordinary_user import User, change_accounts
from tests.cluster.ranks import ran, wait_for
from tests.cluster.ssh import own_sshd
from tests.cluster.terminal import Terminal
from tests.hostile import HOSTILE, MULTILINE

# What a shell of the login node prints before any command.
NOISE = "sleep 0.3; echo 'Welcome to the cluster'; printf 'no newline'\n"
COUNT = """\
import json, os, pathlib, sys, time
for number in range(12):
    print("line", number, flush=True)
    while number == 5 and not pathlib.Path("go").exists():
        time.sleep(0.1)
print(json.dumps({"words": sys.argv[1:], "secret": os.environ.get("MY_TOKEN"), "files": sorted(os.listdir("."))}))
sys.exit(7)
"""
SERVE = """\
import http.server, pathlib
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
pathlib.Path("served.new").write_text(str(server.server_port))
pathlib.Path("served.new").rename("served.port")
server.serve_forever()
"""
PLAIN = "--runtime none --launcher none --time 5".split()


def children_of(pid: int) -> list[int]:
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def of_rank(text: str) -> list[str]:
    """The lines of rank 0; those of the batch shell come between them at any place."""
    return [line for line in text.splitlines() if line.startswith("0| ")]


@dataclass(frozen=True)
class Laptop:
    """A project on a machine that has ssh, rsync and git only, and where it goes.

    `sshd` is the process that listens; `home` that of the account on the login node.
    """

    project: Path
    env: dict[str, str]
    sshd: int
    home: Path

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        env = {**self.env, **variables}
        return ran(*TOOLKIT, *words, cwd=self.project, env=env, timeout=200)

    def start(self, *words: str) -> Any:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        argv, nothing = (*TOOLKIT, *words), subprocess.DEVNULL
        return subprocess.Popen(
            argv, cwd=self.project, env=self.env, stdin=nothing, text=True, **pipes
        )

    def begin(self, name: str) -> Any:
        """Begin a run that waits after line 5, and wait until it has printed that."""
        for project in (self.project, self.there):
            (project / "go").unlink(missing_ok=True)
        running = self.start("run", *PLAIN, "--job-name", name, "train.py")
        log = self.there / f"runs/{name}-0001/logs"
        wait_for(lambda: any("line 5" in path.read_text() for path in log.glob("*-*")), "line 5")
        return running

    def drop(self) -> None:
        """Kill the processes of the sshd that serve connections, each of which has one of the user's."""
        serving = [child for each in children_of(self.sshd) for child in (each, *children_of(each))]
        names = {child: Path(f"/proc/{child}/comm").read_text() for child in serving}
        for child, name in names.items():
            if name.startswith("sshd"):
                os.kill(child, signal.SIGKILL)

    @property
    def there(self) -> Path:
        """The project's directory on the login node."""
        (place,) = self.home.glob("scratch/toolkit-on/*")
        return place


def set_up(laptop: Laptop) -> Laptop:
    """Make the project and the login node ready; twice, as an update does."""
    laptop.project.mkdir()
    (laptop.project / "train.py").write_text(COUNT)
    (laptop.project / ".gitignore").write_text("*.log\n")
    subprocess.run(("git", "init", "-q"), cwd=laptop.project, check=True)
    missing = laptop.run("ps")
    assert (missing.returncode, missing.stdout) == (72, "")
    assert "next: toolkit --on site setup" in missing.stderr
    for words in ("setup", "setup", "cluster up --nodes 1"):
        done = laptop.run(*words.split())
        assert done.returncode == 0, done.stderr
    return laptop


@pytest.fixture(scope="module")
def laptop(user: User) -> Iterator[Laptop]:
    """A laptop whose login node has been set up, and has a cluster of its own."""
    base = Path(tempfile.mkdtemp(prefix="tk-on-", dir="/var/tmp"))
    base.chmod(0o755)
    home, own, programs = base / "remote", base / "local", base / "programs"
    for directory in (home, own, programs, base / "ssh", home / "scratch"):
        directory.mkdir()
    (base / "ssh/banner").write_text("*** Authorized users only ***\n")
    (home / ".bashrc").write_text(NOISE)
    if os.geteuid() == 0:
        change_accounts("usermod", "--password", "*", user.name)  # not locked
        for directory in (home, home / "scratch"):
            shutil.chown(directory, user.name)
    cluster = f"TOOLKIT_CLUSTER_DIR={home}/c"
    variables = f"HOME={home} SCRATCH={home}/scratch {cluster}"
    settings = f"Banner {base}/ssh/banner\nSetEnv {variables}\n"
    for name in ("rsync", "git", "timeout", "ssh-keygen", "env", "sh", "cat"):
        (programs / name).symlink_to(str(shutil.which(name)))
    with own_sshd(base / "ssh", settings=settings, user=user.name) as _:
        (programs / "ssh").symlink_to(base / "ssh/bin/ssh")
        env = {
            **{"HOME": str(own), "PATH": str(programs), "LANG": "C.UTF-8", "TERM": "xterm"},
            "TOOLKIT_ON": "site",
        }
        made = Laptop(own / "it's $(x)", env, int((base / "ssh/pid").read_text()), home)
        try:
            yield set_up(made)
        finally:
            down = made.run("cluster", "down")
            (control,) = (path for path in own.glob(".cache/toolkit/on/*") if not path.suffix)
            modes = [path.stat().st_mode & 0o777 for path in (control, control.parent)]
            subprocess.run(("ssh", "-S", control, "-O", "exit", "site"), env=env, check=True)
        assert (down.returncode, modes) == (0, [0o600, 0o700]), down.stderr
    shutil.rmtree(base)


def test_a_run_has_the_tree_the_words_and_the_secret_and_its_exit_code_comes_back(laptop):
    for name in ("notes.txt", "much.log", "data.bin", ".env"):
        (laptop.project / name).write_text("x")
    (laptop.project / ".toolkitignore").write_text("data.*\n")
    (laptop.project / "go").touch()
    words = [*HOSTILE, *MULTILINE, "", "a | b"]
    script = str(laptop.project / "train.py")
    done = laptop.run("run", *PLAIN, "--secret", "MY_TOKEN", script, *words, MY_TOKEN="s3cret-$(x)")
    assert done.returncode == 7, done.stderr
    assert not re.search("Welcome|newline|Authorized", done.stdout + done.stderr)
    lines = of_rank(done.stdout)
    assert lines[:12] == [f"0| line {number}" for number in range(12)]
    told = json.loads(lines[12].removeprefix("0| ").replace("****", "s3cret-$(x)"))
    assert (told["words"], told["secret"]) == (words, "s3cret-$(x)")
    sent = {"train.py", "notes.txt", ".gitignore", ".toolkitignore", ".toolkit-sent", "go"}
    assert {*told["files"]} - {"runs"} == sent
    assert "left out: .env" in done.stderr
    assert not list(laptop.home.rglob("call-*"))
    assert laptop.there.parent.stat().st_mode & 0o077 == 0


def test_what_only_shows_sends_nothing_and_is_answered_as_there(laptop):
    (laptop.project / "go").touch()
    assert laptop.run("run", *PLAIN, "--job-name", "shown", "train.py").returncode == 7
    before = {path: path.stat().st_mtime_ns for path in laptop.there.iterdir() if path.is_file()}
    (laptop.project / "train.py").write_text(COUNT + "# changed\n")
    listed = laptop.run("ps", "--json")
    rows = json.loads(listed.stdout)
    assert (rows[0]["run"], rows[0]["exit_code"]) == ("shown-0001", 7)
    for words in (("logs", "shown-0001"), ("results", "shown-0001"), ("explain", "shown-0001")):
        done = laptop.run(*words)
        assert (done.returncode, "Welcome" in done.stdout) == (0, False), done.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert laptop.run("logs", "none-0001").returncode == 84
    assert laptop.run("pull", "shown-0001", "go").returncode == 0
    pulled = laptop.project / "runs/shown-0001"
    assert json.loads((pulled / "outcome.json").read_text())["exit_code"] == 7
    for line in ("pull none-0001", "pull shown-0001 ../x", "run ../../ssh/banner"):
        assert laptop.run(*line.split()).returncode in (64, 71)


def test_a_lost_connection_is_made_again_and_no_line_is_missed_or_repeated(laptop):
    """A run that is followed, and another terminal that follows its logs."""
    assert laptop.run("push").returncode == 0
    running = laptop.begin("dropped")
    following = laptop.start("logs", "-f", "dropped-0001")
    seen = ""
    while "line 5" not in seen:
        seen += following.stdout.readline()
    laptop.drop()
    time.sleep(1)
    (laptop.there / "go").touch()
    lines = [f"0| line {number}" for number in range(12)]
    for process, before in ((following, seen), (running, "")):
        out, told = process.communicate(timeout=200)
        assert process.returncode == 7, told
        assert of_rank(before + out)[:12] == lines
        assert told.count("connecting again") == 1
    assert len(json.loads(laptop.run("ps", "--all", "--json").stdout)) == len(
        {*(laptop.there / "runs").iterdir()}
    )


def test_ctrl_c_reaches_the_command_there(laptop):
    running = laptop.begin("stopped")
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=60)
    assert (running.returncode, "detached" in told) == (99, True), told
    assert laptop.run("cancel", "stopped-0001").returncode == 0


@pytest.fixture
def serving(laptop: Laptop) -> Iterator[tuple[str, str]]:
    """A run with a server, and its port."""
    (laptop.project / "serve.py").write_text(SERVE)
    done = laptop.run("--on", "site", "run", "--detach", *PLAIN, "serve.py")
    assert (done.returncode, "toolkit --on site logs -f serve-" in done.stderr) == (0, True), done
    ready = laptop.there / "served.port"
    wait_for(ready.is_file, "the server")
    (run,) = re.findall(r"logs -f (serve-\d+)", done.stderr)
    yield run, ready.read_text()
    assert laptop.run("cancel", run).returncode == 0
    ready.unlink()


@pytest.mark.parametrize(
    ("kind", "end"), [("port", signal.SIGINT), ("socket", signal.SIGHUP)], ids=["port", "socket"]
)
def test_a_server_in_a_job_is_reached_at_a_place_here_until_ctrl_c_or_a_closed_terminal(
    laptop, serving, user, kind, end
):
    """At a port of this machine, or, also after a lost connection, a socket that only this user can open."""
    port, own = free_port(), laptop.home.parent / "own"
    own.mkdir(mode=0o700)
    before = {*Path("/tmp").glob("toolkit-on-*")}
    place, shown = {
        "port": (f"--port={port}", f"address    http://127.0.0.1:{port}/\n"),
        "socket": (f"--socket={own}/s", f"socket     {own}/s\n"),
    }[kind]
    forwarding = laptop.start("forward", *serving, place)
    assert shown in forwarding.stdout
    if kind == "socket":
        before |= {*Path("/tmp").glob("toolkit-on-*")}
        laptop.drop()
        assert shown in forwarding.stdout
    (there,) = {*Path("/tmp").glob("toolkit-on-*")} - before
    assert there.stat().st_mode & 0o777 == 0o700
    taken = laptop.run("forward", *serving, place)
    assert (taken.returncode, "another process listens" in taken.stderr) == (75, True), taken
    with socket.socket(socket.AF_UNIX if kind == "socket" else socket.AF_INET) as sock:
        sock.connect(str(own / "s") if kind == "socket" else ("127.0.0.1", port))
        sock.sendall(b"GET /train.py HTTP/1.0\r\n\r\n")
        assert "import json" in sock.makefile().read()
    if user.become and kind == "socket":
        assert (own / "s").stat().st_mode & 0o777 == 0o600
        tried = user.run("/usr/bin/python3", "-c", CONNECT, f"{own}/s")
        assert "PermissionError" in tried.stderr
    forwarding.send_signal(end)
    _, told = forwarding.communicate(timeout=60)
    assert (forwarding.returncode, "closed" in told) == (130, True), told
    with socket.socket() as closed:
        assert closed.connect_ex(("127.0.0.1", port)) != 0
    assert not there.exists()
    assert not list(own.iterdir())
    own.chmod(0o755)
    assert laptop.run("forward", *serving, f"--socket={own}/s").returncode == 94
    own.rmdir()


def test_sessions_of_every_program_of_openssh_begin_here(laptop, serving):
    run, _ = serving
    words = [*HOSTILE, *MULTILINE, "", "a b"]
    script = 'printf "<%s>" "$@"; exit 7'
    done = laptop.run("ssh", run, "sh", "-c", script, "-", *words)
    assert (done.returncode, done.stdout) == (7, "".join(f"<{word}>" for word in words)), done
    # From anywhere, also where another user's files could be programs; with no key there.
    done = laptop.run("ssh", "--install", run)
    assert "Include toolkit.d/*.conf" in done.stdout, done.stderr
    folder = Path(laptop.env["HOME"]) / ".ssh/toolkit.d"
    places = (folder, folder / run, folder / run / "user")
    assert {path.stat().st_mode & 0o77 for path in places} == {0}
    assert laptop.run("ssh", "--config", run).stdout == (folder / f"{run}.conf").read_text()
    strange = laptop.home.parent / "strange"
    strange.mkdir()
    (strange / "toolkit.py").write_text("print('pwned')")

    def outside(program: str, *words: str, **more: str) -> str:
        done = ran(f"/usr/bin/{program}", *words, cwd=strange, env=laptop.env, **more)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    config = ("-F", str(folder / f"{run}.conf"))
    assert outside("ssh", *config, "-T", run, "bash", stdin="echo started; exit 0") == "started\n"
    (strange / "sent").write_text("sent")
    outside("scp", *config, "-q", "sent", f"{run}:{laptop.there}/copied")
    assert (laptop.there / "copied").read_text() == "sent"
    assert laptop.run("ssh", "--install", "none-0001").returncode == 84


def test_a_terminal_is_that_of_the_command_there(laptop):
    script = "stty size; read word; echo got $word; exit 5"
    argv = (*TOOLKIT, *"cluster exec -- sh -c".split(), script)
    terminal = Terminal(argv, env=laptop.env, cwd=laptop.project)
    terminal.until("33 101")
    terminal.press("hello\r")
    terminal.until("got hello")
    assert terminal.code() == 5
