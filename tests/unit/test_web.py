"""Logins stay with their server, and answers have an end: two real servers on loopback."""

from __future__ import annotations

import base64
import http.client
import io
import itertools
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from email.message import Message
from pathlib import Path

import pytest

from tests.stand_in import StandIn, standing_in
from toolkit.errors import CommandFailedError, MalformedInputError
from toolkit.images.lockfile.index import Index
from toolkit.images.lockfile.packages import File
from toolkit.images.registry import web

BASIC = "Basic " + base64.b64encode(b"me:hunter22").decode()
PAGE = b'<a href="a-1.tar.gz">a</a>'


@pytest.fixture
def servers() -> Iterator[tuple[StandIn, StandIn]]:
    with ExitStack() as stack:
        yield stack.enter_context(standing_in()), stack.enter_context(standing_in())


def index(server: StandIn) -> Index:
    return Index({"index-url": f"http://me:hunter22@{server.name}/simple"})


def logins(server: StandIn) -> list[str]:
    return [authorization for _, authorization, _ in server.asked]


def to(url: str, code: int = 302) -> object:
    return lambda _: (code, {"Location": url}, b"moved")


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_the_login_of_an_index_stays_with_it(servers: tuple[StandIn, StandIn], code: int) -> None:
    one, other = servers
    one.answers["/simple/a/"] = to(f"http://{other.name}/a/", code)  # type: ignore[assignment]
    other.answers["/a/"] = lambda _: (200, {"Content-Type": "text/html"}, PAGE)
    assert [file.name for file in index(one).files("a")] == ["a-1.tar.gz"]
    assert logins(one) == [BASIC]
    assert logins(other) == [""]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.2", "me:hunter22@127.0.0.1"])
def test_another_name_of_a_host_is_another_host(
    servers: tuple[StandIn, StandIn], host: str
) -> None:
    one, _ = servers
    port = one.name.partition(":")[2]
    one.answers["/simple/a/"] = to(f"http://{host}:{port}/b/")  # type: ignore[assignment]
    one.answers["/b/"] = lambda _: (200, {"Content-Type": "text/html"}, PAGE)
    with suppress(CommandFailedError):  # the last of them is no host at all
        index(one).files("a")
    assert logins(one) in ([BASIC], [BASIC, ""])


def test_a_redirect_on_the_same_host_keeps_the_login(servers: tuple[StandIn, StandIn]) -> None:
    one, _ = servers
    one.answers["/simple/a/"] = to("/simple/b/")  # type: ignore[assignment]
    one.answers["/simple/b/"] = lambda _: (200, {"Content-Type": "text/html"}, PAGE)
    assert len(index(one).files("a")) == 1
    assert logins(one) == [BASIC, BASIC]


def test_a_login_that_was_left_behind_does_not_come_back(servers: tuple[StandIn, StandIn]) -> None:
    one, other = servers
    one.answers["/simple/a/"] = to(f"http://{other.name}/a/")  # type: ignore[assignment]
    other.answers["/a/"] = to(f"http://{one.name}/b/")  # type: ignore[assignment]
    one.answers["/b/"] = lambda _: (200, {"Content-Type": "text/html"}, PAGE)
    assert len(index(one).files("a")) == 1
    assert logins(one) == [BASIC, ""]
    assert logins(other) == [""]


def test_files_are_fetched_in_the_same_way(
    servers: tuple[StandIn, StandIn], tmp_path: Path
) -> None:
    one, other = servers
    one.answers["/a-1.tar.gz"] = to(f"http://{other.name}/x")  # type: ignore[assignment]
    other.answers["/x"] = lambda _: (200, {}, b"data")
    file = File(name="a-1.tar.gz", url=f"http://me:hunter22@{one.name}/a-1.tar.gz")
    Index({}).fetch(file, tmp_path / "a-1.tar.gz")
    Index({}).digest(file)
    assert logins(other) == ["", ""]
    assert logins(one) == [BASIC, BASIC]


@pytest.mark.parametrize(
    "place",
    [
        "ftp://127.0.0.1:1/x",
        "file:///etc/passwd",
        "data:text/html,x",
        "gopher://x",
        "http://[::1",
        "//",
    ],
)
def test_nothing_but_http_is_followed(servers: tuple[StandIn, StandIn], place: str) -> None:
    one, _ = servers
    one.answers["/simple/a/"] = to(place)  # type: ignore[assignment]
    with pytest.raises(CommandFailedError):
        index(one).files("a")


@pytest.mark.parametrize(
    "body", [b'{"files": 1}', b'{"files": [{}]}', b"[]", b"[" * 100_000, b"\xff"]
)
def test_pages_that_are_none_are_malformed(servers: tuple[StandIn, StandIn], body: bytes) -> None:
    one, _ = servers
    one.answers["/simple/a/"] = lambda _: (
        200,
        {"Content-Type": "application/vnd.pypi.simple.v1+json"},
        body,
    )
    with pytest.raises(MalformedInputError, match="answers what no index does") as raised:
        index(one).files("a")
    assert "hunter22" not in str(raised.value.place)


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
def test_who_gets_a_login(before: str, after: str, login: str | None) -> None:
    request = redirected(before, after)
    assert request
    assert request.get_header("Authorization") == login
    assert request.has_header("Cookie") is (login is not None)


def test_nothing_goes_from_https_to_http() -> None:
    with pytest.raises(urllib.error.URLError, match="which others can read"):
        redirected("https://a.site/x", "http://a.site/x")


class Endless:
    """A stream that never ends."""

    def __init__(self, pause: float = 0.0) -> None:
        self.given, self.pause = 0, pause

    def read1(self, size: int) -> bytes:
        time.sleep(self.pause)
        self.given += size
        return bytes(size)

    read = read1


def test_an_answer_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Endless()
    with pytest.raises(MalformedInputError, match="more than 16 MiB"):
        web.read_body(stream, 16 << 20)
    assert stream.given < 17 << 20
    monkeypatch.setattr(web, "_PATIENCE", 0.05)
    with pytest.raises(MalformedInputError, match="has not ended"):
        web.read_body(Endless(0.01), 1 << 40)


def test_servers_without_an_end_are_left(
    servers: tuple[StandIn, StandIn], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one, _ = servers
    monkeypatch.setattr("toolkit.images.lockfile.index._MOST_PAGE", 1000)
    monkeypatch.setattr("toolkit.images.lockfile.index._MOST_FILE", 1000)
    monkeypatch.setattr("toolkit.images.registry.web._MOST_BESIDE", 1000)
    long = b"x" * 5000
    for path in ("/simple/a/", "/a-1.tar.gz"):
        one.answers[path] = lambda _: (200, {"Content-Type": "text/html"}, long)
    one.answers["/simple/b/"] = lambda _: (302, {"Location": "/simple/c/"}, long)
    file = File(name="a-1.tar.gz", url=f"http://{one.name}/a-1.tar.gz")
    for ask in (
        lambda: index(one).files("a"),
        lambda: index(one).files("b"),
        lambda: Index({}).fetch(file, tmp_path / "x"),
        lambda: Index({}).digest(file),
    ):
        with pytest.raises(MalformedInputError, match="has more than"):
            ask()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_breaks_off_leaves_nothing(
    servers: tuple[StandIn, StandIn], tmp_path: Path
) -> None:
    one, _ = servers
    one.answers["/a-1.tar.gz"] = lambda _: (200, {"Content-Length": "1000"}, b"short")
    file = File(name="a-1.tar.gz", url=f"http://{one.name}/a-1.tar.gz")
    with pytest.raises(CommandFailedError, match="cannot be fetched"):
        Index({}).fetch(file, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_a_circle_has_an_end(servers: tuple[StandIn, StandIn]) -> None:
    one, other = servers
    counted = itertools.count()
    one.answers["/simple/a/"] = lambda _: (
        302,
        {"Location": f"http://{other.name}/{next(counted)}"},
        b"",
    )
    for number in range(50):
        other.answers[f"/{number}"] = lambda _: (
            302,
            {"Location": f"http://{one.name}/simple/a/"},
            b"",
        )
    with pytest.raises(CommandFailedError):
        index(one).files("a")
    assert next(counted) < 20


def test_what_is_no_http_is_said(servers: tuple[StandIn, StandIn]) -> None:
    assert issubclass(http.client.BadStatusLine, web.FAILURES)
    with pytest.raises(CommandFailedError):
        Index({"index-url": "http://127.0.0.1:99999/simple"}).files("a")
    with pytest.raises(CommandFailedError):
        Index({"index-url": "http://[::1/simple"}).files("a")
    assert servers
