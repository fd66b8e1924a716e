"""Hide secrets in what people are shown: passwords in URLs, keys and tokens. Pure.

The time is linear in the length of the text, whatever is in it: logs are foreign, and one line of a
log can be megabytes long. So each pattern can only begin where a word or a URL begins
(``(?<!...)``), and reads that word once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

HIDDEN = "****"
# What follows the scheme of a URL, up to a blank, a quote or the next URL.
_URL = re.compile(r"(?<=[A-Za-z0-9+.-])://(?P<rest>(?:(?!://)[^\s'\"])+)")
_AUTHORITY_END = re.compile(r"[/?#]")
_HOST = r"(?:\[[^\]/]*\]|[^:,\[\]]+)(?::\d{0,5})?"
_HOSTS = re.compile(rf"(?:{_HOST}(?:,{_HOST})*)?\Z")
_SCHEME = re.compile(r"[A-Za-z0-9+.-]{1,32}\Z")
# There a user without a password is no token: git+ssh://git@host.
_NAME_ONLY = frozenset({"ssh", "sftp", "scp", "rsync"})
# Databases have no "@" in their names: what looks like a port before one may be the beginning of a
# password, as in postgres://me:12/34@host.
_DATABASES = frozenset(
    {"postgres", "postgresql", "mysql", "mariadb", "redis", "rediss", "mongodb", "amqp", "amqps"}
)
_DIGEST = ("sha256:", "sha512:")

_NAMED = re.compile(
    r"(?<![\w-])(?=[\w-]*?(?:token(?!s(?![a-z])|iz)|passwd|password|secret|api[_-]?key|credential))"
    r"(?P<before>[\w-]+[\"']?\s*[=:]\s*[\"']?)(?P<value>[^\s\"',;&]{4,})",
    re.IGNORECASE,
)
_OPTION = re.compile(
    r"(?<![\w.-])(?=[\w.-]*?--)"
    r"(?P<before>[\w.-]*(?:token|passwd|password|secret|api-?key)[ =])(?P<value>\S+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<before>\b(?:Bearer|Basic)\s+)(?P<value>[A-Za-z0-9+/=._-]{8,})")
# What the keys of well-known services begin with.
_KNOWN = re.compile(
    r"\b(?:nvapi-|hf_|ghp_|gho_|github_pat_|glpat-|sk-|xox[bap]-|AKIA)[A-Za-z0-9_-]{12,}"
)


def redacted(text: str) -> str:
    """Return ``text`` with every secret in it replaced by four stars."""
    text = _URL.sub(_without_login, text)
    for pattern in (_OPTION, _NAMED, _BEARER):
        text = pattern.sub(lambda match: match["before"] + HIDDEN, text)
    return _KNOWN.sub(HIDDEN, text)


def logins(text: str) -> Iterator[str]:
    """Yield the user information of every URL in ``text``: ``user:password``, or a token alone."""
    for url in _URL.finditer(text):
        end = _login_end(url)
        if end >= 0:
            yield url["rest"][:end]


def _without_login(url: re.Match[str]) -> str:
    end = _login_end(url)
    return url[0] if end < 0 else f"://{HIDDEN}{url['rest'][end:]}"


def _login_end(url: re.Match[str]) -> int:
    """Return the position of the ``@`` that ends a URL's user information; -1: there is no secret.

    It is the last ``@`` before the path, since people write passwords with ``@`` in them. A
    password with ``/`` in it ends the authority too early: what is left, ``user:pass``, is then no
    host with a port, and the last ``@`` of all is taken.
    """
    rest = url["rest"]
    authority = _AUTHORITY_END.split(rest, maxsplit=1)[0]
    end = authority.rfind("@")
    if end < 0 and not _HOSTS.match(authority):
        end = rest.rfind("@")
    elif end < 0 and ":" in authority and _schemes(url) & _DATABASES:
        end = rest.partition("?")[0].rfind("@")
    if rest.startswith(_DIGEST, end + 1):  # docker://pytorch:22.03@sha256:...
        return -1
    if ":" not in rest[: max(end, 0)] and _schemes(url) & _NAME_ONLY:
        return -1
    return end


def _schemes(url: re.Match[str]) -> frozenset[str]:
    """Return the scheme of a URL, taken apart: ``git`` and ``ssh`` of ``git+ssh``."""
    scheme = _SCHEME.search(url.string[max(0, url.start() - 32) : url.start()])
    return frozenset(scheme[0].lower().split("+")) if scheme else frozenset()


_SECRET_NAME = re.compile(
    r"(?:token(?!s(?![a-z])|iz)|passwd|password|secret|api_?key|credential|private_?key)",
    re.IGNORECASE,
)


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable must not be shown, by its name or because of its value."""
    return is_secret_name(name) or redacted(value) != value


def shows(words: Iterable[str]) -> bool:
    """Return whether the words of a command line show a secret."""
    line = " ".join(words)
    return redacted(line) != line


def is_secret_name(name: str) -> bool:
    """Return whether a variable of this name is likely to hold a secret: ``NGC_API_KEY``."""
    return bool(_SECRET_NAME.search(name))
