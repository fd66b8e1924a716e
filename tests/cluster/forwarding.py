"""A command that carries connections, run as a user runs it, and requests through its socket."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

LONG = 120.0  # seconds that nothing here takes
TOOLKIT = (sys.executable, "-m", "toolkit")
# A program that connects to a socket.
CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"


class Forward:
    """`toolkit forward` or `toolkit notebook`, once it has printed the way in."""

    def __init__(
        self, cwd: Path, env: Mapping[str, str], *arguments: str, command: Sequence[str] = TOOLKIT
    ) -> None:
        self.messages = cwd / f"{arguments[0]}-{time.monotonic_ns()}.err"
        words, (nothing, pipe) = (*command, *arguments, "--json"), (DEVNULL, PIPE)
        with self.messages.open("w") as stream:
            self.process = Popen(
                words, cwd=cwd, env=env, stdin=nothing, stdout=pipe, stderr=stream, text=True
            )
        self.entry: dict[str, Any] = json.loads(self._first())
        self.socket = Path(re.search(r"-L \d+:(\S+) ", self.entry["ssh"] + " ")[1])  # type: ignore[index]

    def _first(self) -> str:
        """The first document on standard output."""
        assert self.process.stdout is not None
        text = ""
        for line in self.process.stdout:
            text += line
            if line.startswith("}"):
                return text
        raise AssertionError(self.messages.read_text())

    def says(self, text: str) -> bool:
        return text in self.messages.read_text()

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(LONG)

    def get(self, path: str = "/", token: str = "", *, verb: str = "GET", most: int = 0) -> str:
        """The answer to a request, or its first bytes."""
        body = "{}" if verb == "POST" else ""
        fields = [
            f"Content-Length: {len(body)}",
            *([f"Authorization: token {token}"] * bool(token)),
        ]
        request = "\r\n".join((f"{verb} {path} HTTP/1.0\r\nHost: localhost", *fields, "", body))
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(LONG)
            sock.connect(str(self.socket))
            sock.sendall(request.encode())
            data = bytearray()
            while part := sock.recv(65536):
                data += part
                if most and len(data) > most:
                    break
            return data.decode(errors="replace")


class Channels:
    """A connection to all channels of a kernel, as a browser has it."""

    def __init__(self, door: Forward, kernel: str, token: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LONG)
        self.sock.connect(str(door.socket))
        fields = (
            f"GET /api/kernels/{kernel}/channels HTTP/1.1",
            f"Host: localhost\r\nAuthorization: token {token}",
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
        )
        self.sock.sendall("\r\n".join((*fields, "", "")).encode())
        self.stream = self.sock.makefile("rb")
        assert b" 101 " in self.stream.readline()
        while self.stream.readline().strip():
            pass

    def ask(self, kind: str, content: Mapping[str, object]) -> None:
        """Send a message to the kernel's channel of control."""
        header = {"msg_id": kind, "msg_type": kind, "session": "test", "username": "test"}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        data = json.dumps({**message, "channel": "control"}).encode()
        masked = b"\0\0\0\0" + data  # a mask of zeros changes nothing
        self.sock.sendall(struct.pack(">BBH", 0x81, 0x80 | 126, len(data)) + masked)

    def answers(self) -> Iterator[dict[str, Any]]:
        """Yield the messages of the kernel."""
        while True:
            opcode, length = self.stream.read(2)
            for short, size, form in ((126, 2, ">H"), (127, 8, ">Q")):
                if length == short:
                    (length,) = struct.unpack(form, self.stream.read(size))
                    break
            data = self.stream.read(length)
            if opcode & 15 == 1:
                yield json.loads(data)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
