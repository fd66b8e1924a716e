"""Connections over one pair of pipes: frames, windows, half-closed connections, and a node's end that dies."""

from __future__ import annotations

import ast
import contextlib
import errno
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.cli import forward as cli_forward
from toolkit.errors import BusyError, CommandFailedError, UntrustedError, UsageError
from toolkit.records import store
from toolkit.relay import gate, node, wire
from toolkit.runs import forward

_LONG = 30.0  # seconds that nothing here takes; whoever waits longer has failed

_frames = st.lists(
    st.tuples(
        st.integers(wire.OPEN, wire.PING),
        st.integers(0, 2**32 - 1),
        st.binary(max_size=300),
    ),
    max_size=20,
)


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for begin, end in itertools.pairwise(places):
        yield data[begin:end]


@given(_frames, st.lists(st.integers(0), max_size=30), st.binary(max_size=200))
def test_frames_come_out_as_they_went_in(
    frames: list[wire.Frame], cuts: list[int], noise: bytes
) -> None:
    start = wire.greeting("6c0ffee")
    data = noise + start + b"".join(wire.frame(*frame) for frame in frames)
    decoder = wire.Decoder(start)
    assert [frame for piece in pieces(data, cuts) for frame in decoder.feed(piece)] == frames
    assert not decoder.bytes


@given(st.binary(min_size=wire.HEADER.size))
def test_anything_else_is_refused_or_is_frames(data: bytes) -> None:
    with contextlib.suppress(wire.WireError):
        for kind, _, content in wire.Decoder().feed(data):
            assert wire.OPEN <= kind <= wire.PING
            assert len(content) <= wire.PIECE


def test_noise_without_an_end_is_refused() -> None:
    decoder = wire.Decoder(wire.greeting("1"))
    assert decoder.feed(b"module load: not found\n") == []
    with pytest.raises(wire.WireError, match="prints something else"):
        decoder.feed(b"module load: not found\n" * 10_000)


@pytest.mark.parametrize("name", ["wire.py", "node.py"])
def test_the_nodes_end_has_the_syntax_of_an_old_python(name: str) -> None:
    source = (Path(gate.__file__).parent / name).read_text()
    ast.parse(source, feature_version=(3, 6))
    assert "\nfrom toolkit" not in gate.program().decode()


class Pair(NamedTuple):
    """Both ends of a relay, in two threads, and a server behind them.

    Attributes:
        path: the socket that clients connect to.
        server: accepts what the node's end opens.
        refusals: reasons of the node's end.
        ends: of the relay, the login node's first.
    """

    path: Path
    server: socket.socket
    refusals: list[str]
    ends: tuple[wire.Relay, wire.Relay]

    def client(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(_LONG)
        sock.connect(str(self.path))
        return sock

    def both(self) -> tuple[socket.socket, socket.socket]:
        """A new connection: the client's side and the server's."""
        client = self.client()
        server, _ = self.server.accept()
        server.settimeout(_LONG)
        return client, server


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    tmp_path.chmod(0o700)
    server_path, refusals = tmp_path / "server", list[str]()
    there, back = os.pipe(), os.pipe()
    stop = threading.Event()

    def connect() -> socket.socket:
        return node.connect(str(server_path))

    def turn(relay: wire.Relay) -> None:
        with contextlib.suppress(wire.WireError):
            while not stop.is_set():
                relay.turn(0.02)

    with gate.listening(tmp_path / "door") as listener, socket.socket(socket.AF_UNIX) as server:
        server.bind(str(server_path))
        server.listen()
        server.settimeout(_LONG)
        login = wire.Relay(back[0], there[1], listener=listener, on_refused=refusals.append)
        far = wire.Relay(there[0], back[1], connect=connect)
        threads = [threading.Thread(target=turn, args=(relay,)) for relay in (login, far)]
        for thread in threads:
            thread.start()
        yield Pair(tmp_path / "door", server, refusals, (login, far))
        stop.set()
        for thread in threads:
            thread.join()
        login.close()
        far.close()
    for descriptor in (*there, *back):
        os.close(descriptor)


def received(sock: socket.socket, count: int | None = None) -> bytes:
    """So many bytes, or all up to the end."""
    data = bytearray()
    while count is None or len(data) < count:
        part = sock.recv(65536)
        if not part:
            break
        data += part
    return bytes(data)


def test_several_connections_at_once(pair: Pair) -> None:
    connections = [pair.both() for _ in range(20)]
    for number, (client, server) in enumerate(connections):
        question = b"question %d" % number
        client.sendall(question)
        assert received(server, len(question)) == question
        server.sendall(b"answer %d" % number)
    for number, (client, server) in enumerate(connections):
        server.close()
        assert received(client) == b"answer %d" % number
        client.close()


def test_a_direction_ends_alone(pair: Pair) -> None:
    client, server = pair.both()
    client.sendall(b"all that I say")
    client.shutdown(socket.SHUT_WR)
    assert received(server) == b"all that I say"
    server.sendall(b"then I answer")
    server.close()
    assert received(client) == b"then I answer"
    wait_for(lambda: not any(relay.streams for relay in pair.ends))


def test_large_amounts_arrive_whole_in_both_directions(pair: Pair) -> None:
    client, server = pair.both()
    up, down = os.urandom(3_000_000), os.urandom(5_000_000)
    writers = [
        threading.Thread(target=_send_all, args=pair) for pair in ((client, up), (server, down))
    ]
    results: list[bytes] = []
    reader = threading.Thread(target=lambda: results.append(received(server)))
    for thread in (*writers, reader):
        thread.start()
    assert received(client) == down
    for thread in (*writers, reader):
        thread.join()
    assert results == [up]


def test_a_connection_that_nobody_reads_stops_itself_and_no_other(pair: Pair) -> None:
    stuck, flood = pair.both()
    flood.setblocking(False)
    sent = 0

    def flooded() -> bool:
        nonlocal sent
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += flood.send(b"x" * 65536)
        return all(stream.credit == 0 for stream in pair.ends[1].streams.values())

    wait_for(flooded)
    client, server = pair.both()
    for _ in range(50):
        client.sendall(b"ping")
        assert received(server, 4) == b"ping"
        server.sendall(b"pong")
        assert received(client, 4) == b"pong"
    assert all(
        len(stream.pending) <= wire.WINDOW
        for relay in pair.ends
        for stream in relay.streams.values()
    )
    assert len(received(stuck, sent)) == sent
    for sock in (stuck, flood, client, server):
        sock.close()


def test_the_error_of_one_connection_ends_no_other(pair: Pair) -> None:
    client, server = pair.both()
    path = Path(pair.server.getsockname())
    path.rename(path.with_name("gone"))
    with pair.client() as refused:
        assert received(refused) == b""
    assert "No such file" in pair.refusals[0]
    path.with_name("gone").rename(path)
    broken, other = pair.both()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    other.close()
    with contextlib.suppress(OSError):
        while True:
            broken.sendall(b"x" * 65536)
    client.sendall(b"still here")
    assert received(server, 10) == b"still here"
    for sock in (client, server, broken):
        sock.close()


def test_a_connection_that_breaks_after_its_answer_was_not_refused(pair: Pair) -> None:
    client, server = pair.both()
    client.sendall(b"what the server leaves unread")
    server.sendall(b"page")
    assert received(client, 4) == b"page"
    wait_for(lambda: bool(select.select([server], [], [], 0)[0]))
    server.close()
    assert received(client) == b""
    assert pair.refusals == []


def test_a_peer_that_sends_more_than_it_may_is_cut_off() -> None:
    there, back = os.pipe(), os.pipe()
    ours, theirs = socket.socketpair()
    relay = wire.Relay(there[0], back[1], connect=lambda: ours)
    data = wire.frame(wire.DATA, 1, b"x" * wire.PIECE)
    greedy = wire.frame(wire.OPEN, 1) + data * (4 * wire.WINDOW // wire.PIECE)
    writer = threading.Thread(target=_write, args=(there[1], greedy))
    writer.start()
    with pytest.raises(wire.WireError, match="more than it may"):
        _turn_for_ever(relay)
    os.close(there[0])
    writer.join()
    relay.close()
    theirs.close()
    for descriptor in (there[1], *back):
        os.close(descriptor)


def _turn_for_ever(relay: wire.Relay) -> None:
    while True:
        relay.turn(0.1)


def _send_all(sock: socket.socket, data: bytes) -> None:
    sock.sendall(data)
    sock.shutdown(socket.SHUT_WR)


def _write(descriptor: int, data: bytes) -> None:
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + _LONG
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


# The whole: a socket on this host, the node's end in a process of its own.


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
        os.kill(ends(web)[0], signal.SIGKILL)

    with gate.listening(path) as listener:
        for event in gate.carry(listener, here, str(web), lambda: runs[0]):
            kinds.append(type(event).__name__)
            if isinstance(event, gate.Connected):
                runs[0] = len(kinds) == 1
                threading.Thread(target=use_and_kill).start()
    assert kinds == ["Connected", "Lost", "Connected", "Ended"]
    assert [page.endswith(b"a page\n" * 1000) for page in pages] == [True, True]
    assert not path.exists()
    assert not ends(web)


def ends(port: int) -> list[int]:
    """The processes of the node's end that lead to a port."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_bytes().split(b"\0")
            if words[0].endswith(b"python3") and str(port).encode() in words:
                found.append(int(entry.parent.name))
    return found


def test_a_nodes_end_that_dies_at_once_is_started_ever_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(command: Sequence[str]) -> Sequence[str]:
        script = r'printf "\n\0toolkit relay $1\n"; head -c "$2" >/dev/null'
        return ("sh", "-c", script, "sh", command[-1], command[-3])

    tmp_path.chmod(0o700)
    pauses: list[float] = []
    monkeypatch.setattr("toolkit.relay.gate._FIRST_PAUSE", 0.001)
    with gate.listening(tmp_path / "door") as listener:
        for event in gate.carry(listener, dies, "1", lambda: len(pauses) < 3):
            if isinstance(event, gate.Lost):
                pauses.append(event.seconds)
    assert pauses == [0.001, 0.002, 0.004]


def test_nothing_is_left_when_the_caller_stops(tmp_path: Path, web: int) -> None:
    tmp_path.chmod(0o700)
    with gate.listening(tmp_path / "door") as listener:
        events = gate.carry(listener, here, str(web), lambda: True)
        assert isinstance(next(events), gate.Connected)
        assert len(ends(web)) == 1
        events.close()  # type: ignore[attr-defined]
    assert not ends(web)


def test_a_node_that_cannot_start_it_is_an_error_with_the_nodes_words(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with (
        gate.listening(tmp_path / "door") as listener,
        pytest.raises(CommandFailedError) as caught,
    ):
        list(
            gate.carry(
                listener,
                lambda _: ("sh", "-c", "echo python3: not found >&2; exit 127"),
                "1",
                lambda: True,
            )
        )
    assert caught.value.details == ("python3: not found",)


def test_the_socket_is_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(UntrustedError), gate.listening(tmp_path / "door"):
        pass
    tmp_path.chmod(0o700)
    with gate.listening(tmp_path / "door"):
        assert (tmp_path / "door").stat().st_mode & 0o777 == 0o600
        with pytest.raises(BusyError), gate.listening(tmp_path / "door"):
            pass
    assert not (tmp_path / "door").exists()


def test_a_dead_socket_is_replaced(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "door"))
    with gate.listening(tmp_path / "door"), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "door"))


def test_a_file_in_place_of_the_socket_is_kept(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "door").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="not a socket"), gate.listening(tmp_path / "door"):
        pass
    assert (tmp_path / "door").read_text(encoding="utf-8") == "mine"


def test_the_directory_of_sockets_is_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    directory = gate.private_directory()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert gate.private_directory() == directory
    directory.chmod(0o750)
    with pytest.raises(UntrustedError, match="only you"):
        gate.private_directory()
    directory.rmdir()
    directory.symlink_to(tmp_path)
    with pytest.raises(UntrustedError):
        gate.private_directory()
    (tmp_path / "run").mkdir(mode=0o700)  # another user who takes the name locks no one out
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    assert gate.private_directory() == tmp_path / "run/toolkit"
    assert directory.is_symlink()


def test_a_path_of_107_bytes_is_the_longest(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    room = gate.LONGEST_PATH - len(str(tmp_path)) - 1
    with gate.listening(tmp_path / ("x" * room)):
        pass
    with (
        pytest.raises(UsageError, match="has 108") as caught,
        gate.listening(tmp_path / ("é" + "x" * (room - 1))),
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


def test_other_addresses_of_the_port_are_no_matter_of_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [
        (node.written("127.0.0.1"), 6006, 1000),
        (node.written("127.0.0.2"), 6006, 4711),
        (node.written("::1"), 6006, 4711),
        (node.written("::"), 8265, 1000),
    ]
    monkeypatch.setattr(node, "listeners", lambda: iter(rows))
    assert node.users_of("127.0.0.1", 6006) == {1000}
    assert node.users_of("::1", 6006) == {4711}
    assert node.users_of("127.0.0.1", 8265) == {1000}
    assert node.users_of("127.0.0.1", 80) == set()


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
        relay = wire.Relay(back[0], there[1], listener=listener)
        for _ in range(5):
            relay.turn(0.01)
        assert listener.calls == 1
        relay.accept_after = 0.0
        relay.turn(0.01)
        assert listener.calls == 2
        relay.close()
    for descriptor in (*there, *back):
        os.close(descriptor)


def test_runs_of_one_name_have_sockets_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    paths = [store.Paths(tmp_path / project / "runs/train-0001") for project in ("a", "b")]
    names = [forward.socket_path(each, "6006").name for each in (*paths, paths[0])]
    assert names[0] == names[2] != names[1]
    assert all(name.startswith("train-0001-") and name.endswith("-6006") for name in names)


def test_a_hangup_that_nohup_ignores_closes_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with cli_forward._closed_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_way_from_ones_own_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "alice")
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.7 50022 198.51.100.1 22")
    line = forward.ssh_command(6006, Path("/tmp/toolkit-1000/train-0007-6006"))
    assert line == "ssh -N -L 6006:/tmp/toolkit-1000/train-0007-6006 alice@198.51.100.1"
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.7 50022 198.51.100.1 2222")
    assert forward.ssh_command(1, Path("/s")) == "ssh -N -p 2222 -L 1:/s alice@198.51.100.1"
    monkeypatch.delenv("SSH_CONNECTION")
    monkeypatch.setattr("socket.getfqdn", lambda: "login1.site")
    assert forward.login_host() == "login1.site"
