"""An HTTP server on a loopback address that answers what a test tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class StandIn:
    """A server that answers what it is told, and knows what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[
            str, Callable[[BaseHTTPRequestHandler], tuple[int, dict[str, str], bytes]]
        ] = {}
        self.asked: list[tuple[str, str, str]] = []
        self.name = ""


@contextmanager
def standing_in() -> Iterator[StandIn]:
    it = StandIn()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            it.asked.append((self.path, self.headers.get("Authorization", ""), body))
            found = it.answers.get(self.path.split("?")[0])
            status, headers, answer = found(self) if found else (404, {}, b"{}")
            self.send_response(status)
            for name, value in {"Content-Length": str(len(answer)), **headers}.items():
                for each in value.split("\n"):
                    self.send_header(name, each)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)

        do_HEAD = do_POST = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    it.name = f"127.0.0.1:{server.server_address[1]}"
    try:
        yield it
    finally:
        server.shutdown()
        server.server_close()
