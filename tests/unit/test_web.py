"""Logins stay with their server, and answers have an end: two real servers on loopback."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.stand_in import StandIn, standing_in
from toolkit.errors import CommandFailedError
from toolkit.images.lockfile.index import File, Index
from toolkit.images.registry import web

BASIC = "Basic " + base64.b64encode(b"me:hunter22").decode()


@pytest.fixture
def servers() -> Iterator[tuple[StandIn, StandIn]]:
    with ExitStack() as stack:
        yield stack.enter_context(standing_in()), stack.enter_context(standing_in())


def fetch(server, target, url=""):
    """Fetch a file, by an index at this server that needs a login."""
    place = url or f"http://{server.name}/a-1.tar.gz"
    index = Index(settings={"index-url": f"http://me:hunter22@{server.name}/simple"})
    index.fetch(File(package="a", name="a-1.tar.gz", url=place, sha256="0" * 64), target)


def logins(server):
    return [authorization for _, authorization, _ in server.asked]


def to(url, code=302):
    return lambda _: (code, {"Location": url}, b"moved")


def gives(data, **headers: str):
    return lambda _: (200, {name.replace("_", "-"): text for name, text in headers.items()}, data)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_the_login_of_an_index_stays_with_it(servers, tmp_path, code):
    one, other = servers
    one.answers["/a-1.tar.gz"] = to("/b", code)
    one.answers["/b"] = to(f"http://{other.name}/c", code)
    other.answers["/c"] = gives(b"data", Content_Encoding="gzip")
    fetch(one, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b"data", "as it is sent"
    assert (logins(one), logins(other)) == ([BASIC, BASIC], [""])
    fetch(one, tmp_path / "y", f"http://{other.name}/c")
    assert logins(other) == ["", ""], "a file on another server than the index"


def test_a_netrc_is_nobodys(servers, tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hunter22\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    one, other = servers
    one.answers["/a"] = to(f"http://{other.name}/c")
    other.answers["/c"] = gives(b"data")
    web.download(f"http://{one.name}/a", bytes, 9)
    web.download(f"http://me:hunter22@{other.name}/c", bytes, 9)
    assert (logins(one), logins(other)) == ([""], ["", BASIC])


@pytest.mark.parametrize(
    ("login", "url", "is_sent"),
    [
        ("https://u:p@a.site/simple", "https://A.site:443/y", True),
        ("https://u:p@a.site/simple", "https://evil.example@a.site/y", True),
        ("https://u:p@a.site/simple", "http://a.site/y", False),
        ("https://u:p@a.site/simple", "https://b.site/y", False),
        ("https://u:p@a.site/simple", "https://a.site:8443/y", False),
        ("https://u:p@a.site/simple", "https://a.site.evil.example/y", False),
        ("https://u:p@a.site/simple", "https://a.site@evil.example/y", False),
        ("https://a.site/simple", "https://a.site/y", False),
    ],
)
def test_who_gets_a_login(login, url, is_sent):
    assert web._find_login(url, [login]) == (("u", "p") if is_sent else None)


@pytest.mark.parametrize(
    "answer",
    [
        *(to(url) for url in ("ftp://127.0.0.1:1/x", "file:///etc/passwd", "data:text/html,x")),
        *(to(url) for url in ("http://[::1", "//", "/a-1.tar.gz")),
        gives(b"x" * 5000),
        gives(b"short", Content_Length="1000"),
        lambda _: (500, {}, b""),
    ],
)
def test_what_is_no_file_is_refused_and_leaves_nothing(servers, monkeypatch, tmp_path, answer):
    monkeypatch.setattr("toolkit.images.lockfile.index._MOST_FILE", 1000)
    servers[0].answers["/a-1.tar.gz"] = answer
    with pytest.raises(CommandFailedError):
        fetch(servers[0], tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_https_does_not_become_http(monkeypatch):
    import requests

    answer = requests.Response()
    answer.status_code, answer.headers["Location"] = 302, "http://a.site/x"
    answer.raw = io.BytesIO()
    monkeypatch.setattr(requests.Session, "get", lambda *_, **__: answer)
    with pytest.raises(OSError, match="from https to http"):
        web.download("https://a.site/x", bytes, 1)


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999/simple", "http://[::1/simple"])
def test_what_is_no_http_is_said(servers, tmp_path, url):
    with pytest.raises(CommandFailedError):
        fetch(servers[0], tmp_path / "x", url)
    with pytest.raises(CommandFailedError):
        Index(settings={"index-url": url}).list_files({"a": "1"}, "3.11")
