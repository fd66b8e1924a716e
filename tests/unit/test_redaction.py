"""What is hidden of URLs, and what looks like a login and is none."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from toolkit.images.host.host_mounts import find_secrets
from toolkit.text import HIDDEN, logins, redacted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:pw@mirror/simple", "https://****@mirror/simple"),
        ("https://token@mirror/simple", "https://****@mirror/simple"),
        ("postgres://u:p/w@h", "postgres://****@h"),
        ("postgres://u:p/w@h:5432/db?x=1", "postgres://****@h:5432/db?x=1"),
        ("postgres://u:12/34@h/db", "postgres://****@h/db"),
        ("postgresql+psycopg://u:12/34@h/db", "postgresql+psycopg://****@h/db"),
        ("mysql://u:p@w@h/db", "mysql://****@h/db"),
        ("mongodb://u:p@h1:27017,h2:27017/db", "mongodb://****@h1:27017,h2:27017/db"),
        ("redis://:p?w#@h", "redis://****@h"),
        ("https://u:p@[::1]:80/a", "https://****@[::1]:80/a"),
        ("https://u:p@host/org/repo@v1", "https://****@host/org/repo@v1"),
        ("http_proxy=http://u:p@proxy:3128 rest@x", "http_proxy=http://****@proxy:3128 rest@x"),
        ('{"url": "https://u:p@h", "mail": "a@b"}', '{"url": "https://****@h", "mail": "a@b"}'),
        ("a://b:c@d://e:f@g", "a://****@d://****@g"),
        ("ssh://u:p@h/x", "ssh://****@h/x"),
        ("s3://key:se/cret@bucket/path", "s3://****@bucket/path"),
        ("HTTPS://U:P@H", "HTTPS://****@H"),
    ],
)
def test_logins_of_urls_are_hidden(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "mail me@example.org",
        "rsync user@host:path/to/it",
        "git@github.com:org/repo.git",
        "ssh://git@github.com/org/repo",
        "git+ssh://git@github.com/org/repo@v1",
        "pip install git+https://github.com/org/repo@v1.0",
        "s3://bucket/a@b",
        "https://host/a@b",
        "https://host:8080/a@b",
        "https://host:8080?mail=a@b",
        "https://[::1]:80/a@b",
        "kafka://h1:9092,h2:9092/topic@x",
        "file:///home/a@b",
        "postgres://h:5432/db?name=a@b",
        "docker://nvcr.io/nvidia/pytorch:22.03-py3@sha256:0123",
        "docker://pytorch:22.03@sha256:0123",
        "see https://host/x, or write to a@b",
        "tokens_per_second: 12345",
        "tokens: 512 per second",
    ],
)
def test_what_is_no_login_is_shown(text: str) -> None:
    assert redacted(text) == text


@given(st.text(st.sampled_from("abc:/@?#='\" token.--\n"), max_size=80))
def test_what_is_hidden_once_stays_as_it_is(text: str) -> None:
    assert redacted(redacted(text)) == redacted(text)


SCHEMES = st.sampled_from(["https", "postgres", "redis", "amqp"])
PASSWORDS = st.text(st.sampled_from("abcxyz0189@/?#%!$*:"), max_size=12)


@given(SCHEMES, PASSWORDS)
def test_no_password_stays(scheme: str, password: str) -> None:
    text = f"cannot reach {scheme}://me:~{password}~@host.site:5432/db"
    # "p@h/w" is a password "p" for the host "h", as far as RFC 3986 can tell.
    assume(not set("/?#") & set(password.partition("@")[2]) and "://" not in password)
    assert redacted(text) == f"cannot reach {scheme}://{HIDDEN}@host.site:5432/db"


def test_logins_are_found_for_the_log_of_a_build() -> None:
    assert list(logins("index-url = https://me:p/w@h/simple https://token@h git+ssh://git@h")) == [
        "me:p/w",
        "token",
    ]
    assert find_secrets(["https://me:p%40w@h"]) == ("p%40w", "p@w")
