"""Connections over one pair of pipes: frames, windows, half-closed connections, and a node's end that dies."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.relay import ends, node, sockets, wire

_LONG = 30.0  # seconds that nothing here takes; whoever waits longer has failed

_frames = st.lists(
    st.tuples(
        st.integers(wire.OPEN, wire.PACKED),
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
    assert not decoder.rest


@given(st.binary(min_size=wire.HEADER.size))
def test_anything_else_is_refused_or_is_frames(data: bytes) -> None:
    with contextlib.suppress(wire.WireError):
        for kind, _, content in wire.Decoder().feed(data):
            assert wire.OPEN <= kind <= wire.PACKED
            assert len(content) <= wire.PIECE


def test_noise_without_an_end_is_refused() -> None:
    decoder = wire.Decoder(wire.greeting("1"))
    assert decoder.feed(b"module load: not found\n") == []
    with pytest.raises(wire.WireError, match="prints something else"):
        decoder.feed(b"module load: not found\n" * 10_000)


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
    ends: tuple[ends.Relay, ends.Relay]

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

    def connect(_: int) -> socket.socket:
        return node.connect(str(server_path))

    def turn(relay: ends.Relay) -> None:
        with contextlib.suppress(wire.WireError):
            while not stop.is_set():
                relay.turn(0.02)

    with sockets.listening(tmp_path / "door") as listener, socket.socket(socket.AF_UNIX) as server:
        server.bind(str(server_path))
        server.listen()
        server.settimeout(_LONG)
        login = ends.Relay(
            back[0],
            there[1],
            packs=True,
            listeners=[listener],
            on_refused=lambda _, reason: refusals.append(reason),
        )
        far = ends.Relay(there[0], back[1], connect=connect, packs=True)
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


def test_a_peer_that_sends_more_than_it_may_is_cut_off() -> None:
    there, back = os.pipe(), os.pipe()
    ours, theirs = socket.socketpair()
    relay = ends.Relay(there[0], back[1], connect=lambda _: ours)
    data = wire.frame(wire.DATA, 1, b"x" * wire.PIECE)
    greedy = wire.frame(wire.OPEN, 1, wire.amount(0)) + data * (4 * wire.WINDOW // wire.PIECE)
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


def _turn_for_ever(relay: ends.Relay) -> None:
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


# What a hostile or careless peer does.


class Far(NamedTuple):
    """The node's end alone, and the pipes to it, which the test reads and writes by itself.

    Attributes:
        servers: the other sides of the connections that it opened, in their order.
    """

    relay: ends.Relay
    servers: list[socket.socket]
    reader: int
    writer: int
    decoder: wire.Decoder

    def tell(self, *frames: bytes) -> None:
        _write(self.writer, b"".join(frames))
        self.turn()

    def turn(self) -> None:
        """Let it do all that it can."""
        before = None
        while before != (state := (len(self.relay.out), self.relay.flying, self.relay.received)):
            before = state
            for _ in range(8):
                self.relay.turn(0)

    def frames(self) -> list[wire.Frame]:
        """The frames that it has written since the last time."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            while True:
                data += os.read(self.reader, 1 << 16)
        return self.decoder.feed(data)


@pytest.fixture
def far() -> Iterator[Far]:
    there, back = os.pipe(), os.pipe()
    servers: list[socket.socket] = []

    def connect(_: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        servers.append(theirs)
        return ours

    os.set_blocking(back[0], False)
    relay = ends.Relay(there[0], back[1], connect=connect)
    yield Far(relay, servers, back[0], there[1], wire.Decoder())
    relay.close()
    for sock in servers:
        sock.close()
    for descriptor in (*there, *back):
        os.close(descriptor)


def opened(far: Far, count: int) -> None:
    numbers = range(1, count + 1)
    far.tell(*(wire.frame(wire.OPEN, number, wire.amount(0)) for number in numbers))


def fill(sock: socket.socket) -> None:
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(b"x" * wire.PIECE)


def test_a_small_answer_waits_for_one_round_of_the_floods_and_no_more(far: Far) -> None:
    opened(far, 40)
    for server in far.servers[:-1]:
        fill(server)
    far.turn()
    far.servers[-1].send(b"small")
    floods, is_there = 0, False
    while not is_there:
        for kind, number, content in far.frames():
            is_there = is_there or number == 40
            floods += 0 if is_there else kind == wire.DATA
            far.tell(wire.frame(wire.CREDIT, 0, wire.amount(len(content))))
        for server in far.servers[:-1]:
            fill(server)
        far.turn()
    assert floods <= wire.FLIGHT // wire.PIECE + ends.TAKEN + 2 * 40


def test_a_flood_beside_small_requests_stays_in_the_windows(pair: Pair) -> None:
    flood, source = pair.both()
    size = 64 << 20
    sender = threading.Thread(target=_send_all, args=(source, b"\0" * size))
    amounts: list[int] = []
    drain = threading.Thread(target=lambda: amounts.append(_drained(flood)))
    sender.start()
    drain.start()
    client, server = pair.both()
    rounds = 0
    while drain.is_alive():
        client.sendall(b"ping")
        assert received(server, 4) == b"ping"
        rounds += 1
        for relay in pair.ends:
            stored = len(relay.out) + sum(len(each.pending) for each in [*relay.streams.values()])
            assert stored <= wire.WINDOW + wire.FLIGHT + ends.TAKEN * wire.PIECE
    sender.join()
    drain.join()
    assert amounts == [size]
    assert rounds > 20
    for sock in (flood, source, client, server):
        sock.close()


def _send_and_close(sock: socket.socket, data: bytes) -> None:
    sock.sendall(data)
    sock.close()


def _drained(sock: socket.socket) -> int:
    count = 0
    while part := sock.recv(1 << 20):
        count += len(part)
    return count


def test_a_client_that_is_gone_leaves_no_connection_to_a_server_that_waits(pair: Pair) -> None:
    client, server = pair.both()
    client.sendall(b"tell me when there is something")
    assert received(server, 31)
    client.close()  # unlike shutdown(2): nobody is there for an answer
    wait_for(lambda: not any(relay.streams for relay in pair.ends))
    assert server.recv(1) == b""
    server.close()


def test_a_server_that_is_gone_ends_the_connection_after_its_answer(pair: Pair) -> None:
    client, server = pair.both()
    client.sendall(b"what the server leaves unread")
    wait_for(lambda: bool(select.select([server], [], [], 0)[0]))
    answer = os.urandom(wire.WINDOW // 2)
    threading.Thread(target=_send_and_close, args=(server, answer)).start()
    wait_for(lambda: not pair.ends[1].streams)
    assert received(client) == answer
    assert pair.refusals == []
    client.close()


def test_the_last_words_of_a_peer_arrive_although_it_takes_no_answer(far: Far) -> None:
    opened(far, 1)
    far.relay.flying = wire.FLIGHT  # the pipe is full: its words wait in the socket
    words = os.urandom(wire.PIECE + 100)
    far.servers[0].sendall(words)
    far.servers[0].close()
    far.tell(wire.frame(wire.DATA, 1, b"an answer"))
    frames = far.frames()
    assert b"".join(content for kind, _, content in frames if kind == wire.DATA) == words
    assert frames[-1][0] == wire.RESET
    assert not far.relay.streams


def test_a_flood_for_a_client_that_is_gone_stops(pair: Pair) -> None:
    client, server = pair.both()
    fill(server)
    client.close()
    server.setblocking(True)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # else the test does not end
        while True:
            server.sendall(b"x" * wire.PIECE)
    server.close()


@given(st.binary(max_size=wire.PIECE))
def test_content_is_compressed_without_loss(data: bytes) -> None:
    assert wire.unpack(wire.pack(data)) == data


def test_a_frame_that_unpacks_to_more_than_a_frame_is_refused() -> None:
    with pytest.raises(wire.WireError, match="more than it may"):
        wire.unpack(wire.pack(b"\0" * (wire.PIECE + 1)))
    with pytest.raises(wire.WireError, match="changes what it carries"):
        wire.unpack(b"no zlib at all")
    with pytest.raises(wire.WireError, match="without its number"):
        wire.number_of(b"123")


def test_each_listener_leads_to_its_server(tmp_path: Path) -> None:
    there, back = os.pipe(), os.pipe()
    targets: list[int] = []

    def connect(target: int) -> socket.socket:
        targets.append(target)
        raise OSError(errno.ECONNREFUSED, "nobody")

    refusals: list[tuple[int, str]] = []
    tmp_path.chmod(0o700)
    with sockets.listening(tmp_path / "a") as one, sockets.listening(tmp_path / "b") as other:
        login = ends.Relay(
            back[0],
            there[1],
            listeners=[one, other],
            on_refused=lambda *words: refusals.append(words),
        )
        node_end = ends.Relay(there[0], back[1], connect=connect)
        for name in ("b", "a"):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(tmp_path / name))
                for _ in range(4):
                    login.turn(0.05)
                    node_end.turn(0.05)
        login.close()
        node_end.close()
    assert targets == [1, 0]
    assert refusals == [(1, "nobody"), (0, "nobody")]
    for descriptor in (*there, *back):
        os.close(descriptor)
