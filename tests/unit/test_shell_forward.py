"""`toolkit shell --forward`: what is asked for, and a process beside the shell that ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.test_relay_ends import wait_for
from toolkit.cli import shell_forward
from toolkit.cli.shell import command
from toolkit.errors import ToolkitError, UsageError

# Starts a process that writes its number and serves until it is told to end, and then does what
# the argument says.
_PROGRAM = """
import os, sys, time
from pathlib import Path
from toolkit.relay.child import Child
place = Path(sys.argv[1])
def serve():
    try:
        (place / "child.new").write_text(str(os.getpid()))
        (place / "child.new").rename(place / "child")
        time.sleep(300)
    finally:
        (place / "ended").touch()
with Child() as child:
    child.start(serve)
    print("started", flush=True)
    sys.stdin.readline()
print("the end", flush=True)
"""


@pytest.fixture
def parent(tmp_path: Path) -> subprocess.Popen[str]:
    words = (sys.executable, "-c", _PROGRAM, str(tmp_path))
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_for((tmp_path / "child").exists)
    return process


def test_a_process_beside_ends_when_it_is_told_to(
    parent: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert parent.communicate("\n")[0] == "started\nthe end\n"
    assert (tmp_path / "ended").exists()
    assert not _is_there(tmp_path)


def test_a_process_beside_ends_when_the_shell_is_killed(
    parent: subprocess.Popen[str], tmp_path: Path
) -> None:
    parent.kill()
    wait_for((tmp_path / "ended").exists)
    wait_for(lambda: not _is_there(tmp_path))
    parent.communicate()


def test_the_keys_of_the_terminal_are_not_for_the_process_beside(
    parent: subprocess.Popen[str], tmp_path: Path
) -> None:
    child = int((tmp_path / "child").read_text())
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP):
        os.kill(child, number)
    os.kill(child, signal.SIGTERM)  # this one is
    wait_for((tmp_path / "ended").exists)
    assert parent.communicate("\n")[0] == "started\nthe end\n"


def _is_there(place: Path) -> bool:
    return Path("/proc", (place / "child").read_text()).exists()


def test_each_server_has_a_port_of_its_own() -> None:
    targets = ["/tmp/a.sock", "8888", "6006", "/tmp/b.sock"]
    assert shell_forward.own_ports(targets) == [8889, 8888, 6006, 8890]


@pytest.mark.parametrize(
    ("forwards", "by_ssh", "cause"),
    [
        (("6006", "06006"), False, "port 6006 is named twice"),
        (("web",), False, "'web' is neither a port nor the absolute path of a socket"),
        (("70000",), False, "'70000' is neither"),
        (("/" + "x" * 107,), False, "at most 107 bytes, and this one has 108"),
        ((), True, "--ssh says how --forward reaches the node"),
    ],
)
def test_what_cannot_be_forwarded_is_refused_before_the_job_queues(
    forwards: tuple[str, ...], by_ssh: bool, cause: str
) -> None:
    with pytest.raises(UsageError) as caught:
        shell_forward.wanted(forwards, by_ssh=by_ssh)
    assert cause in caught.value.cause
    assert caught.value.place in ("--forward", "--ssh")
    assert caught.value.next_step


def test_the_command_takes_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, ["--forward", "6006", "--forward", "x"])
    assert isinstance(done.exception, ToolkitError)
    assert "'x' is neither a port" in done.exception.cause
