"""A relay as a whole: the private socket, the node's end in a process of its own, and what becomes of both."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.test_relay_ends import received, wait_for
from toolkit.errors import BusyError, CommandFailedError, UntrustedError, UsageError
from toolkit.relay import ends, gate, node, sockets
from toolkit.runs import forward
from toolkit.runs.run import Run

_LONG = 30.0  # seconds that nothing here takes; whoever waits longer has failed


def here(command: Sequence[str]) -> Sequence[str]:
    """A transport to this machine, which prints something first, as a site's prolog may."""
    return ("sh", "-c", 'echo "Welcome to nid001"; exec "$@"', "sh", *command)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[int]:
    """A web server on a port of this machine."""
    (tmp_path / "www").mkdir()
    (tmp_path / "www/page").write_text("a page\n" * 1000)
    words = (sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "0")
    with subprocess.Popen(
        words, cwd=tmp_path / "www", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline().split(" port ")[1].split()[0])
        process.terminate()


def get(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_LONG)
        sock.connect(str(path))
        sock.sendall(b"GET /page HTTP/1.0\r\n\r\n")
        return received(sock)


def test_it_starts_again_after_its_end_on_the_node_was_killed(tmp_path: Path, web: int) -> None:
    tmp_path.chmod(0o700)
    path, pages, runs, kinds = tmp_path / "door", list[bytes](), [True], list[str]()

    def use_and_kill() -> None:
        pages.append(get(path))
        os.kill(processes(web)[0], signal.SIGKILL)

    with sockets.listening(path) as listener:
        for event in gate.carry([listener], gate.Route(here, [str(web)], lambda: runs[0])):
            kinds.append(type(event).__name__)
            if isinstance(event, gate.Connected):
                runs[0] = len(kinds) == 1
                threading.Thread(target=use_and_kill).start()
    assert kinds == ["Connected", "Lost", "Connected", "Ended"]
    assert [page.endswith(b"a page\n" * 1000) for page in pages] == [True, True]
    assert not path.exists()
    assert not processes(web)


def processes(port: int) -> list[int]:
    """The processes of the node's end that lead to a port."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_bytes().split(b"\0")
            if words[0].endswith(b"python3") and str(port).encode() in words:
                found.append(int(entry.parent.name))
    return found


def test_nothing_is_left_when_the_caller_stops(tmp_path: Path, web: int) -> None:
    tmp_path.chmod(0o700)
    with sockets.listening(tmp_path / "door") as listener:
        events = gate.carry([listener], gate.Route(here, [str(web)], lambda: True))
        assert isinstance(next(events), gate.Connected)
        assert len(processes(web)) == 1
        events.close()  # type: ignore[attr-defined]
    assert not processes(web)


def test_a_node_that_cannot_start_it_is_an_error_with_the_nodes_words(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with (
        sockets.listening(tmp_path / "door") as listener,
        pytest.raises(CommandFailedError) as caught,
    ):
        list(
            gate.carry(
                [listener],
                gate.Route(
                    lambda _: ("sh", "-c", "echo python3: not found >&2; exit 127"),
                    ["1"],
                    lambda: True,
                ),
            )
        )
    assert caught.value.details == ("python3: not found",)


def test_the_socket_is_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(UntrustedError), sockets.listening(tmp_path / "door"):
        pass
    tmp_path.chmod(0o700)
    with sockets.listening(tmp_path / "door"):
        assert (tmp_path / "door").stat().st_mode & 0o777 == 0o600
        with pytest.raises(BusyError), sockets.listening(tmp_path / "door"):
            pass
    assert not (tmp_path / "door").exists()


def test_a_socket_below_a_directory_that_others_can_exchange_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "all" / "own"
    own.mkdir(mode=0o700, parents=True)
    own.parent.chmod(0o777)
    with pytest.raises(UntrustedError, match="every user"), sockets.listening(own / "door"):
        pass
    own.parent.chmod(0o1777)  # as /tmp: only its owner can rename an entry
    with sockets.listening(own / "door"):
        pass


def test_a_dead_socket_is_replaced(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "door"))
    with sockets.listening(tmp_path / "door"), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "door"))


def test_a_file_in_place_of_the_socket_is_kept(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "door").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="not a socket"), sockets.listening(tmp_path / "door"):
        pass
    assert (tmp_path / "door").read_text(encoding="utf-8") == "mine"


def test_the_directory_of_sockets_is_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    directory = sockets.private_directory()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert sockets.private_directory() == directory
    directory.chmod(0o750)
    with pytest.raises(UntrustedError, match="only you"):
        sockets.private_directory()
    directory.rmdir()
    directory.symlink_to(tmp_path)
    with pytest.raises(UntrustedError):
        sockets.private_directory()
    (tmp_path / "run").mkdir(mode=0o700)  # another user who takes the name locks no one out
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    assert sockets.private_directory() == tmp_path / "run/toolkit"
    assert directory.is_symlink()


def test_a_path_of_107_bytes_is_the_longest(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    room = sockets.LONGEST_PATH - len(str(tmp_path)) - 1
    with sockets.listening(tmp_path / ("x" * room)):
        pass
    with (
        pytest.raises(UsageError, match="has 108") as caught,
        sockets.listening(tmp_path / ("é" + "x" * (room - 1))),
    ):
        pass
    assert "TMPDIR" in (caught.value.next_step or "")


@pytest.mark.parametrize(
    "text", ["0", "65536", "-1", "tcp:80", "run/server.sock", "", "٣", "/" + "x" * 107]
)
def test_a_target_that_is_none(text: str) -> None:
    with pytest.raises(UsageError):
        forward.target(text)


def test_a_server_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert node.users_of("127.0.0.1", port) == {os.geteuid()}
        node.connect(str(port)).close()
        monkeypatch.setattr("os.geteuid", lambda: 4711)
        with pytest.raises(OSError, match="another user"):
            node.connect(str(port))


def test_a_port_that_another_user_takes_during_the_connection_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        answers = iter([{os.geteuid()}, {4711}])
        monkeypatch.setattr(node, "users_of", lambda *_: next(answers))
        with pytest.raises(OSError, match="another user"):
            node.connect(str(server.getsockname()[1]))


def test_a_server_on_the_other_loopback_address_is_reached() -> None:
    with socket.socket(socket.AF_INET6) as server:
        try:
            server.bind(("::1", 0))
        except OSError:  # a machine without IPv6
            return
        server.listen()
        node.connect(str(server.getsockname()[1])).close()


def test_the_server_of_a_socket_is_checked_and_not_only_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "server"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        node.connect(str(path)).close()
        with monkeypatch.context() as patch:
            patch.setattr("os.geteuid", lambda: 4711)
            patch.setattr("os.stat", lambda _: SimpleNamespace(st_uid=4711))
            with pytest.raises(OSError, match="another user"):
                node.connect(str(path))


def test_a_server_that_accepts_nothing_does_not_stop_the_others(tmp_path: Path) -> None:
    path = tmp_path / "server"
    with socket.socket(socket.AF_UNIX) as server, contextlib.ExitStack() as waiting:
        server.bind(str(path))
        server.listen(1)
        with contextlib.suppress(BlockingIOError):
            while True:
                sock = waiting.enter_context(socket.socket(socket.AF_UNIX))
                sock.setblocking(False)
                sock.connect(str(path))
        with pytest.raises(OSError, match="too many connections wait"):
            node.connect(str(path))


class _FullListener(socket.socket):
    """A listener of a process that has all the descriptors that it may have."""

    calls = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.calls += 1
        raise OSError(errno.EMFILE, "Too many open files")


def test_without_a_descriptor_for_a_connection_it_does_not_spin(tmp_path: Path) -> None:
    there, back = os.pipe(), os.pipe()
    with _FullListener(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(tmp_path / "door"))
        listener.listen()
        client.connect(str(tmp_path / "door"))
        relay = ends.Relay(back[0], there[1], listeners=[listener])
        for _ in range(5):
            relay.turn(0.01)
        assert listener.calls == 1
        relay.accept_after = 0.0
        relay.turn(0.01)
        assert listener.calls == 2
        relay.close()
    for descriptor in (*there, *back):
        os.close(descriptor)


def test_the_way_from_ones_own_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "alice")
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.7 50022 198.51.100.1 22")
    line = forward.ssh_command(6006, Path("/tmp/toolkit-1000/train-0007-6006"))
    assert line == "ssh -N -L 6006:/tmp/toolkit-1000/train-0007-6006 alice@198.51.100.1"
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.7 50022 198.51.100.1 2222")
    assert forward.ssh_command(1, Path("/s")) == "ssh -N -p 2222 -L 1:/s alice@198.51.100.1"
    monkeypatch.delenv("SSH_CONNECTION")
    monkeypatch.setattr("socket.getfqdn", lambda: "login1.site")
    assert forward.ssh_command(1, Path("/s")).endswith("@login1.site")


def test_slurm_that_does_not_answer_delays_no_connection(
    tmp_path: Path, web: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    asked, answer = threading.Event(), threading.Event()

    def is_running() -> bool:
        asked.set()
        assert answer.wait(_LONG)
        return False

    def use() -> None:
        assert asked.wait(_LONG)
        pages.extend(get(tmp_path / "door") for _ in range(3))
        answer.set()

    monkeypatch.setattr("toolkit.relay.gate._LONGEST_PAUSE", 0.05)
    pages: list[bytes] = []
    kinds: list[str] = []
    with sockets.listening(tmp_path / "door") as listener:
        route = gate.Route(here, [str(web)], is_running, outlives_job=True)
        for event in gate.carry([listener], route):
            kinds.append(type(event).__name__)
            if isinstance(event, gate.Connected):
                threading.Thread(target=use).start()
    assert kinds == ["Connected", "Ended"]
    assert [page.endswith(b"a page\n") for page in pages] == [True] * 3
    assert not processes(web)


def test_messages_of_the_transport_do_not_fill_the_disk(
    tmp_path: Path, web: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    links: list[gate._Link] = []

    class Link(gate._Link):
        def __enter__(self) -> gate._Link:
            links.append(self)
            return super().__enter__()

    def size() -> int:
        return os.fstat(links[0].messages.fileno()).st_size

    def end_once_it_was_cut() -> None:
        wait_for(lambda: size() > 100)
        wait_for(lambda: size() < 100)
        os.kill(processes(web)[0], signal.SIGTERM)

    talk = 'while sleep 0.01; do echo "srun: a warning of many" >&2; done & pid=$!; "$@"; kill $pid'
    monkeypatch.setattr("toolkit.relay.gate._Link", Link)
    monkeypatch.setattr("toolkit.relay.gate._MOST_MESSAGES", 100)
    tmp_path.chmod(0o700)
    with sockets.listening(tmp_path / "door") as listener:
        route = gate.Route(
            lambda words: ("sh", "-c", talk, "sh", *words), [str(web)], lambda: False
        )
        for event in gate.carry([listener], route):
            if isinstance(event, gate.Connected):
                threading.Thread(target=end_once_it_was_cut).start()
    assert not processes(web)


def test_servers_and_nodes_have_sockets_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    paths = Run(tmp_path / "runs/train-0001")
    places = [
        ("6006", "nid001"),
        ("6006", "nid002"),
        ("/a/s.sock", "nid001"),
        ("/b/s.sock", "nid001"),
    ]
    names = [forward.socket_path(paths, where, node).name for where, node in places]
    assert len(set(names)) == 4
    assert names[2].endswith("-s.sock")
    odd = forward.socket_path(paths, "/tmp/of user:6006\n" + "x" * 20).name
    assert re.fullmatch(r"train-0001-[0-9a-f]{6}-[a-z0-9-]{24}", odd)
