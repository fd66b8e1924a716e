"""Files of the web, by requests: a login stays with its server, and an answer has an end."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from urllib.parse import unquote, urljoin, urlsplit

from toolkit.errors import MalformedInputError

# The failures of a request: of the network, of HTTP, and of a malformed URL.
FAILURES = (OSError, ValueError)
_PORTS = {"http": 80, "https": 443}
_MOST_REDIRECTS = 10
_TIMEOUT = 60.0  # seconds until a server answers, or goes on
_CHUNK = 1 << 16

Origin = tuple[str, str, int | None]  # scheme, host, port


def parse_origin(url: str) -> Origin:
    """Return the scheme, host and port of a URL.

    Raises:
        ValueError: it is not a URL.
    """
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme)


def download(
    url: str,
    write: Callable[[bytes], object],
    most: int,
    *,
    certificates: str | None = None,
    logins: Iterable[str] = (),
) -> None:
    """Fetch a file, and follow redirects over HTTP, but never from HTTPS to HTTP.

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
    with requests.Session() as session:
        session.headers.update({"User-Agent": "toolkit", "Accept-Encoding": "identity"})
        for _ in range(_MOST_REDIRECTS):
            with session.get(
                url,
                # With none at all, requests would take one of ~/.netrc.
                auth=_find_login(url, (*logins, url)) or (lambda request: request),
                verify=certificates or known.cafile or known.capath or True,
                timeout=_TIMEOUT,
                stream=True,
                allow_redirects=False,
            ) as answer:
                target = session.get_redirect_target(answer)
                if target is None:
                    answer.raise_for_status()
                    # Some servers call the compression of an archive that of their answer.
                    answer.raw.headers.pop("Content-Encoding", None)
                    _copy(answer.iter_content(_CHUNK), write, most)
                    return
            before, url = url, urljoin(url, target)
            if before.startswith("https:") and not url.startswith("https:"):
                raise OSError("it redirects from https to http, which others can read")
        raise OSError("it redirects without an end")


def _find_login(url: str, logins: Iterable[str]) -> tuple[str, str] | None:
    for parts in map(urlsplit, logins):
        if parts.username and parse_origin(parts.geturl()) == parse_origin(url):
            return unquote(parts.username), unquote(parts.password or "")
    return None


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
