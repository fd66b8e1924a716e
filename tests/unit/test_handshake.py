"""The nodes of a job let in each other and nobody else: hostile peers on loopback, against the program that scripts carry."""

from __future__ import annotations

import importlib.util
import os
import queue
import secrets
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

import pytest

from toolkit.config import package_directory

PROGRAM = package_directory("scripts") / "templates" / "handshake.py"
TOKEN, JOB = secrets.token_hex(32), "4711"


def program(token: str = TOKEN, job: str = JOB) -> ModuleType:
    """The program as a process of a job has it."""
    os.environ.update(TOOLKIT_TOKEN=token, SLURM_JOB_ID=job)
    spec = importlib.util.spec_from_file_location(f"handshake_{secrets.token_hex(4)}", PROGRAM)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "TOOLKIT_TOKEN" not in os.environ, "the ranks' environment does not hold the secret"
    return module


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("SLURM_JOB_ID", JOB)
    return program()


@contextmanager
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as server:
        yield server


@contextmanager
def leading(module: ModuleType) -> Iterator[tuple[int, queue.Queue[Any]]]:
    """A leading node: its port, and the links to those that it has let in."""
    inside: queue.Queue[Any] = queue.Queue()
    with listening() as server:
        threading.Thread(
            target=module.answer, args=(server, "test", inside.put), daemon=True
        ).start()
        yield server.getsockname()[1], inside
        module.hang_up(server)


def pair(
    first: Callable[[socket.socket], Any], second: Callable[[socket.socket], Any]
) -> tuple[Any, Any]:
    """What comes of two ends of a connection: a link, or the error."""
    ends = socket.socketpair()
    found: dict[int, Any] = {}

    def act(index: int, what: Callable[[socket.socket], Any]) -> None:
        try:
            found[index] = what(ends[index])
        except Exception as error:
            found[index] = error
            ends[index].close()

    threads = [
        threading.Thread(target=act, args=(index, what))
        for index, what in enumerate((first, second))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found[0], found[1]


def leader(module: ModuleType, purpose: str = "test") -> Callable[[socket.socket], Any]:
    return lambda end: module.Link(end, purpose, leads=True)


def member(module: ModuleType, purpose: str = "test") -> Callable[[socket.socket], Any]:
    return lambda end: module.Link(end, purpose, leads=False)


def test_nodes_of_a_job_believe_each_other(node: ModuleType) -> None:
    first, second = pair(leader(node), member(node))
    first.send(start="rank 1", environment={"A": "ü\n"})
    first.send()
    first.send(over=True)
    second.send(node="nid002")
    assert first.read() == {"node": "nid002"}
    messages = second.messages()
    assert [next(messages), next(messages)] == [
        {"start": "rank 1", "environment": {"A": "ü\n"}},
        {"over": True},
    ]
    first.close()
    assert second.read() is None
    assert second.closed.is_set()


@pytest.mark.parametrize("other", ["secret", "job", "purpose"])
def test_nodes_of_other_jobs_do_not(other: str, node: ModuleType) -> None:
    stranger = program(token=secrets.token_hex(32)) if other == "secret" else node
    purpose = "else" if other == "purpose" else "test"
    for turn in (0, 1):
        if other == "job":
            # Each side reads the job's number when it proves; here the two of one process must
            # differ.
            def elsewhere(end: socket.socket, leads: bool) -> Any:
                module = program()
                numbers = {"SLURM_JOB_ID": "4712"}
                module.os = type("os", (), {"environ": numbers})  # type: ignore[attr-defined]
                return module.Link(end, "test", leads=leads)

            first, second = pair(leader(node), lambda end: elsewhere(end, leads=False))
            if turn:
                first, second = pair(lambda end: elsewhere(end, leads=True), member(node))
        elif turn:
            first, second = pair(leader(node), member(stranger, purpose))
        else:
            first, second = pair(leader(stranger, purpose), member(node))
        assert isinstance(first, Exception)
        assert isinstance(second, Exception)
        assert "StrangerError" in {type(first).__name__, type(second).__name__}


class Relay:
    """A hostile listener between two nodes, which writes everything down and may meddle."""

    def __init__(
        self, port: int, meddle: Callable[[str, bytes], bytes] = lambda _, data: data
    ) -> None:
        self.target, self.meddle = port, meddle
        self.seen: dict[str, bytes] = {"from member": b"", "from leader": b""}
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self.server.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
                for name, source, sink in (("from member", near, far), ("from leader", far, near)):
                    threading.Thread(
                        target=self._pass, args=(name, source, sink), daemon=True
                    ).start()

    def _pass(self, name: str, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.seen[name] += data
                sink.sendall(self.meddle(name, data))
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


def test_the_secret_is_never_on_the_wire(node: ModuleType) -> None:
    with leading(node) as (port, inside):
        relay = Relay(port)
        link = node.call("127.0.0.1", relay.port, "test", 5)
        link.send(node="nid002")
        assert inside.get(timeout=5).read() == {"node": "nid002"}
    wire = relay.seen["from member"] + relay.seen["from leader"]
    assert b"nid002" in wire, "what is passed on can be read"
    derived = node.keyed(node.SECRET, b"ray")
    for secret in (node.SECRET, derived):
        assert secret not in wire
        assert secret.hex().encode()[:32] not in wire


def test_what_was_recorded_cannot_be_used_again(node: ModuleType) -> None:
    node.STRANGER = 2  # type: ignore[attr-defined]
    with leading(node) as (port, inside):
        relay = Relay(port)
        link = node.call("127.0.0.1", relay.port, "test", 5)
        link.send(node="nid002")
        inside.get(timeout=5).read()
        with socket.create_connection(("127.0.0.1", port)) as replay:
            replay.settimeout(5)
            replay.sendall(relay.seen["from member"])
            answered = b"".join(iter(lambda: replay.recv(1 << 16), b""))
        assert len(answered) == 2 * node.SIZE, "a number and a proof, nothing after them"
        with pytest.raises(queue.Empty):
            inside.get(timeout=0.2)
    recorded = relay.seen["from leader"]
    _, second = pair(lambda end: end.sendall(recorded), member(node))
    assert isinstance(second, node.StrangerError)


def test_a_nodes_own_answers_are_no_proof_to_it_or_to_another(node: ModuleType) -> None:
    node.STRANGER = 2  # type: ignore[attr-defined]
    with leading(node) as (port, inside):
        # The leader's proof for our number, handed back as ours.
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(secrets.token_bytes(node.SIZE))
            proof = connection.recv(2 * node.SIZE, socket.MSG_WAITALL)[node.SIZE :]
            connection.sendall(proof)
            assert connection.recv(1) == b""
        # Two conversations with the leader, each answered with what the other said.
        with (
            socket.create_connection(("127.0.0.1", port)) as one,
            socket.create_connection(("127.0.0.1", port)) as two,
        ):
            one.sendall(secrets.token_bytes(node.SIZE))
            theirs = one.recv(2 * node.SIZE, socket.MSG_WAITALL)
            two.sendall(theirs[: node.SIZE])
            one.sendall(two.recv(2 * node.SIZE, socket.MSG_WAITALL)[node.SIZE :])
            assert one.recv(1) == b""
        assert inside.empty()

    def mirror(end: socket.socket) -> None:
        number = end.recv(node.SIZE, socket.MSG_WAITALL)
        end.sendall(number + number)

    _, second = pair(mirror, member(node))
    assert isinstance(second, node.StrangerError)


@pytest.mark.parametrize("how", ["changed", "doubled", "swallowed", "invented"])
def test_who_only_relays_can_cut_but_not_change(how: str, node: ModuleType) -> None:
    def meddle(name: str, data: bytes) -> bytes:
        if b'"start"' not in data or name != "from leader":
            return data
        line = data.splitlines(keepends=True)[0]
        text = line.partition(b" ")[2]
        return {
            "changed": line.replace(b"good", b"evil"),
            "doubled": line + line,
            "swallowed": b"",
            "invented": line.split(b" ")[0] + b" " + text.replace(b"1", b"2") + line,
        }[how]

    with leading(node) as (port, inside):
        relay = Relay(port, meddle)
        link = node.call("127.0.0.1", relay.port, "test", 5)
        inner = inside.get(timeout=5)
        inner.send(start="1", environment={"LD_PRELOAD": "good"})
        if how == "doubled":
            assert link.read() == {"start": "1", "environment": {"LD_PRELOAD": "good"}}
        elif how == "swallowed":
            time.sleep(0.2)
            inner.send(over=True)
        assert link.read() is None
        assert link.closed.is_set()


def hold(port: int, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(data)
    return connection


def test_garbage_and_crowds_do_not_keep_the_nodes_from_meeting(node: ModuleType) -> None:
    with leading(node) as (port, inside):
        crowd = [hold(port) for _ in range(node.CROWD + 50)]
        crowd += [
            hold(port, garbage)
            for garbage in (
                b"GET / HTTP/1.1\r\n\r\n" * 8,
                b"\0",
                b"x" * 31,
                b"\xff" * 10**6,
                b"{}\n",
            )
        ]
        link = node.call("127.0.0.1", port, "test", 20)
        assert link is not None
        link.send(node="nid002")
        assert inside.get(timeout=5).read() == {"node": "nid002"}
        assert inside.empty()
        for connection in crowd:
            connection.close()


def test_one_who_drips_is_not_waited_for_longer_than_anybody(node: ModuleType) -> None:
    node.STRANGER = 1  # type: ignore[attr-defined]
    with leading(node) as (port, inside), socket.create_connection(("127.0.0.1", port)) as slow:

        def drip() -> None:
            for _ in range(100):
                slow.sendall(b"x")
                time.sleep(0.1)

        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            drip()
        assert inside.empty()


def test_a_message_without_an_end_takes_no_memory(node: ModuleType) -> None:
    first, second = pair(leader(node), member(node))

    def flood() -> None:
        with suppress(OSError):
            for _ in range(1000):
                first.connection.sendall(b"x" * 10**5)

    threading.Thread(target=flood, daemon=True).start()
    tracemalloc.start()
    assert second.read() is None
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()
    assert second.closed.is_set()


def test_who_calls_early_or_finds_a_stranger_calls_again(node: ModuleType) -> None:
    """First nobody is there, then a stranger has the port, then the leader."""
    with listening() as server:
        port = server.getsockname()[1]
    found: queue.Queue[Any] = queue.Queue()
    threading.Thread(
        target=lambda: found.put(node.call("127.0.0.1", port, "test", 20)), daemon=True
    ).start()
    time.sleep(0.7)
    stranger = program(token=secrets.token_hex(32))
    with socket.create_server(("127.0.0.1", port)) as server:
        refused: queue.Queue[Any] = queue.Queue()
        threading.Thread(
            target=stranger.answer, args=(server, "test", refused.put), daemon=True
        ).start()
        time.sleep(1.5)
        stranger.hang_up(server)
    assert refused.empty()
    with socket.create_server(("127.0.0.1", port)) as server:
        inside: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=node.answer, args=(server, "test", inside.put), daemon=True).start()
        assert found.get(timeout=10) is not None
        assert inside.get(timeout=5) is not None
        node.hang_up(server)


def test_nobody_there_is_an_end_after_a_while(node: ModuleType) -> None:
    with listening() as server:
        port = server.getsockname()[1]
    assert node.call("127.0.0.1", port, "test", 1) is None
