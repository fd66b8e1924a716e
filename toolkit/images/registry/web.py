"""Files of the web, by requests: a login stays with its server, and an answer has an end."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from urllib.parse import unquote, urlsplit

from toolkit.errors import MalformedInputError

# The failures of a request: of the network, of HTTP, and of a malformed URL.
FAILURES = (OSError, ValueError)
_PORTS = {"http": 80, "https": 443}
_TIMEOUT = 60.0  # seconds until a server answers, or goes on
_CHUNK = 1 << 16


def download(
    url: str,
    write: Callable[[bytes], object],
    most: int,
    *,
    certificates: str | None = None,
    logins: Iterable[str] = (),
) -> None:
    """Fetch a file, and follow redirects, but take nothing by HTTP that was asked for by HTTPS.

    Args:
        url: of the file.
        write: takes each part of it.
        most: the largest number of bytes.
        certificates: a file with the trusted certificates; None: those of the machine.
        logins: URLs with a login in them, which is sent to their server and to no other.

    Raises:
        MalformedInputError: the file is larger.
        OSError, ValueError: the server does not give it, or the connection broke.
    """
    import requests

    known = ssl.get_default_verify_paths()
    with requests.get(
        url,
        auth=_find_login(url, logins),
        headers={"User-Agent": "toolkit", "Accept-Encoding": "identity"},
        verify=certificates or known.cafile or known.capath or True,
        timeout=_TIMEOUT,
        stream=True,
    ) as answer:
        secure = [each.url.startswith("https:") for each in (*answer.history, answer)]
        if secure[0] and not all(secure):
            raise OSError("it redirects from https to http, which others can read")
        answer.raise_for_status()
        # Some servers call the compression of an archive that of their answer.
        answer.raw.headers.pop("Content-Encoding", None)
        _copy(answer.iter_content(_CHUNK), write, most)


def _find_login(url: str, logins: Iterable[str]) -> tuple[str, str] | None:
    """Return the user and password for the server of a URL, if there are any."""
    for parts in map(urlsplit, logins):
        if parts.username and _server(parts.geturl()) == _server(url):
            return unquote(parts.username), unquote(parts.password or "")
    return None


def _server(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def _copy(parts: Iterable[bytes], write: Callable[[bytes], object], most: int) -> None:
    size = 0
    for part in parts:
        size += len(part)
        if size > most:
            raise MalformedInputError(f"the answer has more than {most >> 20} MiB")
        write(part)


def explain(error: BaseException) -> str:
    """Return why a request failed: what the system says, below the errors that wrap it."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        inner = inner.__cause__ or inner.__context__
    return str(error)
