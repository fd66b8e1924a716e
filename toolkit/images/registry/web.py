"""HTTP requests whose login stays with its server and whose answers are bounded."""

from __future__ import annotations

import http.client
import io
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import IO, Any
from urllib.parse import urljoin, urlsplit

from toolkit.errors import MalformedInputError

# The failures of a request: of the network, of HTTP, and of a malformed URL.
FAILURES = (OSError, http.client.HTTPException, ValueError)
_PORTS = {"http": 80, "https": 443}
_SECRET = ("Authorization", "Cookie", "Proxy-authorization")
_CHUNK = 1 << 16
_MOST_BESIDE = 1 << 20  # bytes that come with a redirect and are not used
_PATIENCE = 300.0  # seconds for the whole of an answer that is read into memory

Origin = tuple[str, str, int | None]  # scheme, host, port


def parse_origin(url: str) -> Origin:
    """Return the scheme, host and port of a URL.

    Raises:
        ValueError: it is not a URL.
    """
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme)


def make_opener(
    context: ssl.SSLContext | None = None, *, proxies: bool = True
) -> urllib.request.OpenerDirector:
    """Return an opener of HTTP URLs, and of no others.

    Args:
        context: the trusted certificates; None: those of the machine.
        proxies: use the proxies of the environment.
    """
    director = urllib.request.OpenerDirector()
    handlers = (
        urllib.request.ProxyHandler(None if proxies else {}),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=context),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
        _Redirects(),
    )
    for handler in handlers:
        director.add_handler(handler)
    return director


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirects without the login to another host, and never from HTTPS to HTTP."""

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        """Follow a redirect after its bounded body, which urllib would read without a limit."""
        read_body(fp, _MOST_BESIDE)
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Any,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Return the request that follows a redirect."""
        before, after = parse_origin(req.full_url), parse_origin(urljoin(req.full_url, newurl))
        if after[0] not in _PORTS or (before[0] == "https" and after[0] == "http"):
            reason = f"it redirects from {before[0]} to {after[0]}, which others can read"
            raise urllib.error.URLError(reason)
        code = 307 if code == 308 else code  # Python 3.10 does not know 308, which means the same
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is None:
            return None
        for name in _SECRET:
            login = req.unredirected_hdrs.get(name)
            if not _is_same(before, after):
                request.remove_header(name)
            elif login:
                request.add_unredirected_header(name, login)
        return request


def _is_same(before: Origin, after: Origin) -> bool:
    """Return whether a login may go to another origin: the same, or its HTTPS port."""
    encrypted = before[0::2] == ("http", 80) and after[0::2] == ("https", 443)
    return before == after or (encrypted and before[1] == after[1])


def read_body(stream: Any, most: int) -> bytes:
    """Read an answer of at most ``most`` bytes.

    Raises:
        MalformedInputError: it is larger, or has not ended after minutes.
        OSError, http.client.HTTPException: the connection broke.
    """
    buffer = io.BytesIO()
    copy_stream(stream, buffer.write, most, patience=_PATIENCE)
    return buffer.getvalue()


def copy_stream(
    stream: Any, write: Callable[[bytes], object], most: int, *, patience: float | None = None
) -> int:
    """Copy an answer to ``write`` in chunks. Return its length.

    Args:
        stream: the answer.
        write: takes a chunk.
        most: the largest number of bytes.
        patience: the longest time in seconds.

    Raises:
        MalformedInputError: it is larger, or takes longer.
        OSError, http.client.HTTPException: the connection broke.
    """
    began, size = time.monotonic(), 0
    read = getattr(stream, "read1", stream.read)  # returns the bytes that have arrived
    while part := read(_CHUNK):
        size += len(part)
        if size > most:
            raise MalformedInputError(f"the answer has more than {most >> 20} MiB")
        if patience is not None and time.monotonic() - began > patience:
            raise MalformedInputError(f"the answer has not ended after {patience:.0f} s")
        write(part)
    left = getattr(
        stream, "length", None
    )  # missing of the announced length; http.client does not check it
    if left:
        raise http.client.IncompleteRead(b"", left)
    return size
