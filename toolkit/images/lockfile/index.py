"""Package indexes, pages and directories of this machine's pip configuration, read without pip.

pip itself could be called only within an image, and runs the setup of a package to report the hash
of its source.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import Request

from toolkit.errors import CommandFailedError, MalformedInputError
from toolkit.files import hash_file
from toolkit.images.lockfile.packages import File, parse_page
from toolkit.images.recipe.names import normalize_name, require_file_name
from toolkit.images.registry import web
from toolkit.text import redacted

DEFAULT = "https://pypi.org/simple"
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_TIMEOUT = 60.0  # seconds
_MOST_PAGE = 64 << 20  # bytes of a page; the largest of PyPI have some megabytes
_MOST_FILE = 32 << 30  # bytes of a package's file
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?\Z")  # of a package (PEP 508)
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class Index:
    """All indexes that pip would search.

    Args:
        settings: of pip, by ``read_pip_settings``.
        further: indexes that a recipe names, for packages that the others do not have.
    """

    def __init__(self, settings: Mapping[str, str], further: Iterable[str] = ()) -> None:
        own = [settings.get("index-url", DEFAULT), *settings.get("extra-index-url", "").split()]
        offline = settings.get("no-index", "").lower() in ("1", "true", "yes")
        self._own = () if offline else tuple(dict.fromkeys(url.rstrip("/") for url in own))
        self._further = () if offline else tuple(dict.fromkeys(url.rstrip("/") for url in further))
        self._links = tuple(dict.fromkeys(settings.get("find-links", "").split()))
        self._opener = web.make_opener(ssl.create_default_context(cafile=settings.get("cert")))
        self._cached = lru_cache(maxsize=None)(self._page)

    def files(self, name: str) -> list[File]:
        """Return the files of a package, and perhaps of others; local ones first, as for pip.

        Raises:
            CommandFailedError: an index does not answer.
            MalformedInputError: the answer of an index is not a package page.
        """
        if not _NAME.match(name):  # an image may give a package any name; no index has such
            return []
        linked = [file for place in self._links for file in self._cached(place)]
        return linked + [
            file for index in self._own for file in self._cached(f"{index}/{normalize_name(name)}/")
        ]

    def further(self, name: str) -> list[File]:
        """Return the files that only the further indexes have; errors as ``files``."""
        if not _NAME.match(name):
            return []
        return [
            file
            for index in self._further
            for file in self._cached(f"{index}/{normalize_name(name)}/")
        ]

    def _page(self, place: str) -> tuple[File, ...]:
        path = _local(place)
        if path is not None:
            # As by HTTP, links of a page are relative to the directory.
            page = path / "index.html" if path.is_dir() else path
            if page.is_file() and page.suffix in (".html", ".htm"):
                return parse_page(page.read_text(encoding="utf-8"), page.as_uri(), is_json=False)
            entries = sorted(path.iterdir()) if path.is_dir() else ()
            return tuple(File(name=e.name, url=e.as_uri()) for e in entries if e.is_file())
        try:
            with self._open(place) as answer:
                data, kind = (
                    web.read_body(answer, _MOST_PAGE),
                    answer.headers.get("Content-Type", ""),
                )
            return parse_page(data.decode("utf-8"), place, is_json="json" in kind)
        except _MissingError:
            return ()
        except ValueError as error:  # MalformedInputError among them
            reason = f"the package index answers what no index does: {error}"
            raise MalformedInputError(reason, place=_shown(place)) from None
        except web.FAILURES as error:
            reason = f"the package index broke off: {error}"
            raise CommandFailedError(reason, place=_shown(place)) from None

    def _open(self, place: str) -> Any:
        try:
            return self._opener.open(_request(place), timeout=_TIMEOUT)
        except HTTPError as error:
            if error.code == 404:
                raise _MissingError from None
            reason = f"the package index refuses: {error.code} {error.reason}"
            raise CommandFailedError(reason, place=_shown(place)) from None
        except MalformedInputError as error:
            raise MalformedInputError(error.cause, place=_shown(place)) from None
        except web.FAILURES as error:
            reason = f"the package index does not answer: {error}"
            raise CommandFailedError(reason, place=_shown(place)) from None

    def _read(self, file: File, write: Callable[[bytes], object]) -> None:
        """Read a file in chunks; errors as of ``fetch``."""
        path = _local(file.url)
        try:
            with self._open(file.url) if path is None else path.open("rb") as stream:
                web.copy_stream(stream, write, _MOST_FILE)
        except MalformedInputError:
            raise
        except (*web.FAILURES, _MissingError) as error:
            reason = f"{file.name} cannot be fetched: {error or 'it is gone'}"
            raise CommandFailedError(reason, place=_shown(file.url)) from None

    def digest(self, file: File) -> str:
        """Return the SHA-256 of a file; read the file if the index does not give it."""
        if _SHA256.match(file.sha256):
            return file.sha256
        digest = hashlib.sha256()
        self._read(file, digest.update)
        return digest.hexdigest()

    def fetch(self, file: File, target: Path) -> str:
        """Fetch a file; return its SHA-256.

        Raises:
            CommandFailedError: it cannot be fetched.
            MalformedInputError: it has no end, or its name is not a file name.
        """
        require_file_name(file.name, _shown(file.url))
        part = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with part.open("wb") as writing:
                self._read(file, writing.write)
            part.replace(target)
        except OSError as error:
            reason = f"{file.name} cannot be stored: {error}"
            raise CommandFailedError(reason, place=str(target)) from None
        finally:
            part.unlink(missing_ok=True)
        return hash_file(target)


def _request(place: str) -> Request:
    """Return the request for a URL; the login in it goes to its host and to no other."""
    parts = urlsplit(place)
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    request = Request(bare, headers={"Accept": _ACCEPT, "User-Agent": "toolkit"})
    if parts.username:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_unredirected_header(
            "Authorization", f"Basic {base64.b64encode(login.encode()).decode()}"
        )
    return request


class _MissingError(Exception):
    """Raised if an index does not have a package."""


def _local(place: str) -> Path | None:
    try:
        parts = urlsplit(place)
    except ValueError:  # the error is reported when it is opened
        return None
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(place).expanduser()


def _shown(place: str) -> str:
    """Return a URL without the login in it."""
    try:
        parts = urlsplit(place)
    except ValueError:
        return redacted(place)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
