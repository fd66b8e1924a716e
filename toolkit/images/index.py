"""Where packages of Python come from: indexes, pages and directories as this machine's pip is told to ask, read and fetched by ourselves.

pip itself could be asked only within an image, and runs the setup of a package to tell its source's hash.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import ssl
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from toolkit.errors import CommandFailedError
from toolkit.images.packages import File, normal, offered

DEFAULT = "https://pypi.org/simple"
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_TIMEOUT = 60.0  # seconds
_CHUNK = 1 << 20


class Index:
    """Everything that pip would look at.

    Args:
        settings: of pip, by ``loan.pip_settings``.
        further: indexes that a recipe names, for what the others do not have.
    """

    def __init__(self, settings: Mapping[str, str], further: Iterable[str] = ()) -> None:
        own = [settings.get("index-url", DEFAULT), *settings.get("extra-index-url", "").split()]
        offline = settings.get("no-index", "").lower() in ("1", "true", "yes")
        self._own = () if offline else tuple(dict.fromkeys(one.rstrip("/") for one in own))
        self._further = () if offline else tuple(dict.fromkeys(one.rstrip("/") for one in further))
        self._links = tuple(dict.fromkeys(settings.get("find-links", "").split()))
        self._context = ssl.create_default_context(cafile=settings.get("cert"))
        self._cached = lru_cache(maxsize=None)(self._page)

    def files(self, name: str) -> list[File]:
        """The files that there are of a package, and perhaps of others; local ones first, as pip prefers them.

        Raises:
            CommandFailedError: an index does not answer.
        """
        found = [file for place in self._links for file in self._cached(place)]
        return found + [file for index in self._own for file in self._cached(f"{index}/{normal(name)}/")]

    def further(self, name: str) -> list[File]:
        """The files that only the further indexes have; errors as ``files``."""
        return [file for index in self._further for file in self._cached(f"{index}/{normal(name)}/")]

    def _page(self, place: str) -> tuple[File, ...]:
        path = _local(place)
        if path is not None and not (path / "index.html").is_file() and path.suffix not in (".html", ".htm"):
            entries = sorted(path.iterdir()) if path.is_dir() else ()
            return tuple(File(name=one.name, url=one.as_uri()) for one in entries if one.is_file())
        if path is not None:
            page = path / "index.html" if path.is_dir() else path
            # As by HTTP, links are relative to the directory.
            return offered(page.read_text(encoding="utf-8"), page.as_uri(), is_json=False) if page.is_file() else ()
        try:
            with self._open(place) as (stream, kind):
                return offered(stream.read().decode("utf-8"), place, is_json="json" in kind)
        except _MissingError:
            return ()
        except ValueError as error:
            raise CommandFailedError(f"the package index says what no index says: {error}", place=_shown(place)) from None

    def _open(self, place: str) -> _Opened:
        parts = urlsplit(place)
        headers = {"Accept": _ACCEPT, "User-Agent": "toolkit"}
        if parts.username:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
            parts = parts._replace(netloc=parts.netloc.rpartition("@")[2])
        try:
            answer = urlopen(Request(urlunsplit(parts), headers=headers), timeout=_TIMEOUT, context=self._context)
        except HTTPError as error:
            if error.code == 404:
                raise _MissingError from None
            raise CommandFailedError(f"the package index refuses: {error.code} {error.reason}", place=_shown(place)) from None
        except (URLError, OSError) as error:
            raise CommandFailedError(f"the package index does not answer: {error}", place=_shown(place)) from None
        return _Opened(answer, answer.headers.get("Content-Type", ""))

    def digest(self, file: File) -> str:
        """SHA-256 of a file, read where the index does not say it."""
        if file.sha256:
            return file.sha256
        path = _local(file.url)
        if path is not None:
            return self.digest_of(path)
        with self._open(file.url) as (stream, _):
            return _hashed(stream)

    def digest_of(self, path: Path) -> str:
        """SHA-256 of a file that is here."""
        with path.open("rb") as stream:
            return _hashed(stream)

    def fetch(self, file: File, target: Path) -> str:
        """Bring a file here; its SHA-256.

        Raises:
            CommandFailedError: it cannot be fetched.
        """
        path = _local(file.url)
        part = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            if path is not None:
                shutil.copyfile(path, part)
            else:
                with self._open(file.url) as (stream, _), part.open("wb") as writing:
                    shutil.copyfileobj(stream, writing, _CHUNK)
            part.replace(target)
        except (OSError, _MissingError) as error:
            part.unlink(missing_ok=True)
            raise CommandFailedError(f"{file.name} cannot be fetched: {error or 'it is gone'}", place=_shown(file.url)) from None
        return self.digest_of(target)


def _hashed(stream: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := stream.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


class _MissingError(Exception):
    """An index knows no such package."""


class _Opened:
    """An answer, and what kind of page it is."""

    def __init__(self, stream: IO[bytes], kind: str) -> None:
        self._stream, self._kind = stream, kind

    def __enter__(self) -> tuple[IO[bytes], str]:
        return self._stream, self._kind

    def __exit__(self, *_: object) -> None:
        self._stream.close()


def _local(place: str) -> Path | None:
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(place).expanduser()


def _shown(place: str) -> str:
    """A URL without the login in it."""
    parts = urlsplit(place)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
