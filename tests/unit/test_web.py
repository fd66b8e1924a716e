"""Logins stay with their server, and answers have an end: two real servers on loopback."""

from __future__ import annotations

import base64
import http.client
import io
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from tests.stand_in import StandIn, standing_in
from toolkit.errors import CommandFailedError, MalformedInputError
from toolkit.images.lockfile.index import File, Index
from toolkit.images.registry import web

BASIC = "Basic " + base64.b64encode(b"me:hunter22").decode()


@pytest.fixture
def servers() -> Iterator[tuple[StandIn, StandIn]]:
    with ExitStack() as stack:
        yield stack.enter_context(standing_in()), stack.enter_context(standing_in())


def file(server: StandIn) -> File:
    url = f"http://{server.name}/a-1.tar.gz"
    return File(package="a", name="a-1.tar.gz", url=url, sha256="0" * 64)


def fetch(server: StandIn, target: Path) -> None:
    """Fetch a file of an index that needs a login."""
    index = Index(settings={"index-url": f"http://me:hunter22@{server.name}/simple"})
    index.fetch(file(server), target)


def logins(server: StandIn) -> list[str]:
    return [authorization for _, authorization, _ in server.asked]


def to(url: str, code: int = 302) -> Any:
    return lambda _: (code, {"Location": url}, b"moved")


def gives(data: bytes) -> Any:
    return lambda _: (200, {}, data)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_the_login_of_an_index_stays_with_it(servers, tmp_path, code):
    one, other = servers
    one.answers["/a-1.tar.gz"] = to(f"http://{other.name}/a", code)
    other.answers["/a"] = to(f"http://{one.name}/b", code)
    one.answers["/b"] = gives(b"data")
    fetch(one, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b"data"
    assert (logins(one), logins(other)) == ([BASIC, ""], [""]), "it does not come back either"
    index = Index(settings={"index-url": f"http://me:hunter22@{one.name}/simple"})
    other.answers["/a-1.tar.gz"] = gives(b"data")
    index.fetch(file(other), tmp_path / "y")
    assert logins(other) == ["", ""], "a file on another server than the index"


def test_a_redirect_on_the_same_host_keeps_the_login(servers, tmp_path):
    one, _ = servers
    one.answers["/a-1.tar.gz"] = to("/b")
    one.answers["/b"] = gives(b"data")
    fetch(one, tmp_path / "x")
    assert logins(one) == [BASIC, BASIC]


@pytest.mark.parametrize(
    "place",
    [
        *("ftp://127.0.0.1:1/x", "file:///etc/passwd", "data:text/html,x", "gopher://x"),
        *("http://[::1", "//"),
    ],
)
def test_nothing_but_http_is_followed(servers, tmp_path, place):
    one, _ = servers
    one.answers["/a-1.tar.gz"] = to(place)
    with pytest.raises(CommandFailedError):
        fetch(one, tmp_path / "x")


def redirected(before: str, after: str) -> urllib.request.Request | None:
    request = urllib.request.Request(before)
    request.add_unredirected_header("Authorization", BASIC)
    request.add_header("Cookie", "a=b")
    headers = Message()
    return web._Redirects().redirect_request(request, io.BytesIO(), 302, "Found", headers, after)


@pytest.mark.parametrize(
    ("before", "after", "login"),
    [
        ("https://a.site/x", "https://a.site/y", BASIC),
        ("https://a.site/x", "https://A.site:443/y", BASIC),
        ("http://a.site/x", "https://a.site/y", BASIC),
        ("https://a.site/x", "https://b.site/y", None),
        ("https://a.site/x", "https://a.site:8443/y", None),
        ("https://a.site/x", "https://a.site.evil.example/y", None),
        ("https://a.site/x", "https://evil.example@a.site/y", BASIC),
        ("https://a.site/x", "https://a.site@evil.example/y", None),
        ("http://a.site:8080/x", "https://a.site/y", None),
    ],
)
def test_who_gets_a_login(before, after, login):
    request = redirected(before, after)
    assert request
    assert request.get_header("Authorization") == login
    assert request.has_header("Cookie") is (login is not None)


class Endless:
    """A stream that never ends."""

    def __init__(self, pause: float = 0.0) -> None:
        self.given, self.pause = 0, pause

    def read1(self, size: int) -> bytes:
        time.sleep(self.pause)
        self.given += size
        return bytes(size)

    read = read1


def test_an_answer_without_an_end_is_refused(monkeypatch):
    stream = Endless()
    with pytest.raises(MalformedInputError, match="more than 16 MiB"):
        web.read_body(stream, 16 << 20)
    assert stream.given < 17 << 20
    monkeypatch.setattr(web, "_PATIENCE", 0.05)
    with pytest.raises(MalformedInputError, match="has not ended"):
        web.read_body(Endless(0.01), 1 << 40)


def test_servers_without_an_end_are_left(servers, monkeypatch, tmp_path):
    one, _ = servers
    monkeypatch.setattr("toolkit.images.lockfile.index._MOST_FILE", 1000)
    monkeypatch.setattr("toolkit.images.registry.web._MOST_BESIDE", 1000)
    for answer in (gives(b"x" * 5000), lambda _: (302, {"Location": "/b"}, b"x" * 5000)):
        one.answers["/a-1.tar.gz"] = answer
        with pytest.raises(MalformedInputError, match="has more than"):
            fetch(one, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_breaks_off_leaves_nothing(servers, tmp_path):
    one, _ = servers
    one.answers["/a-1.tar.gz"] = lambda _: (200, {"Content-Length": "1000"}, b"short")
    with pytest.raises(CommandFailedError, match="cannot be fetched"):
        fetch(one, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999/simple", "http://[::1/simple"])
def test_what_is_no_http_is_said(tmp_path, url):
    assert issubclass(http.client.BadStatusLine, web.FAILURES)
    bad = File(package="a", name="a-1.zip", url=url, sha256="0" * 64)
    with pytest.raises(CommandFailedError):
        Index().fetch(bad, tmp_path / "x")
    with pytest.raises(CommandFailedError):
        Index(settings={"index-url": url}).list_files({"a": "1"}, "3.11")
