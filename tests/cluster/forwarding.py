"""A command that carries connections, run as a user runs it, and requests through its socket."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LONG = 120.0  # seconds that nothing here takes


def wait_for(condition: Callable[[], object], what: str) -> None:
    until = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < until, f"waited for {what}"
        time.sleep(0.1)


class Forward:
    """`toolkit forward` or `toolkit notebook`, once it has printed the way in."""

    def __init__(self, cwd: Path, env: Mapping[str, str], *arguments: str) -> None:
        self.messages = cwd / f"{arguments[0]}-{time.monotonic_ns()}.err"
        with self.messages.open("w") as stream:
            self.process = subprocess.Popen(
                (sys.executable, "-m", "toolkit", *arguments, "--json"),
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
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
        header = f"Authorization: token {token}\r\n" if token else ""
        body = "{}" if verb == "POST" else ""
        request = (
            f"{verb} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{header}"
        )
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(LONG)
            sock.connect(str(self.socket))
            sock.sendall(f"{request}\r\n{body}".encode())
            data = bytearray()
            while part := sock.recv(65536):
                data += part
                if most and len(data) > most:
                    break
            return data.decode(errors="replace")
