"""Fetch a packed workshop by the address of the file or of its pages."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

from toolkit.errors import CommandFailedError, MalformedInputError, NoSpaceError, UsageError
from toolkit.images.registry import web
from toolkit.units import human_size
from toolkit.workshops import archive
from toolkit.workshops.pack import PACKED


def addresses(url: str) -> tuple[str, ...]:
    """Return where a packed workshop is looked for: beside a page, below a directory, or there.

    The query stays with the address: it may have the key of a shared file.
    """
    parts = urlsplit(url)._replace(fragment="")
    if parts.path.endswith(".tar"):
        return (parts.geturl(),)
    above = parts.path.rpartition("/")[0] if parts.path.endswith(".html") else parts.path
    beside = parts._replace(path=f"{above.rstrip('/')}/{PACKED}").geturl()
    is_place = parts.path.endswith(("/", ".html")) or not parts.path
    return (beside,) if is_place else (beside, parts.geturl())


def fetch(url: str, directory: Path) -> Path:
    """Fetch a packed workshop into a directory; of an address of pages, the one beside them.

    Raises:
        UsageError: the address is not one of HTTP.
        CommandFailedError: the server does not answer, or has no such file.
        NoSpaceError: the disk has too little room.
    """
    scheme = urlsplit(url).scheme
    if scheme not in ("http", "https"):
        raise UsageError(
            f"a workshop cannot be fetched by {scheme}://, only by https:// and http://",
            place="SOURCE",
            next_step="fetch the file by other means, then: toolkit workshop join FILE",
        )
    first: OSError | None = None
    for address in addresses(url):
        try:
            return _download(address, directory)
        except HTTPError as error:  # there is no such file; the next address may have it
            first = first or error
    raise _not_fetched(addresses(url)[0], first)


def _download(url: str, directory: Path) -> Path:
    """Download a file.

    Raises:
        HTTPError: the server refuses the address.
        CommandFailedError: it does not answer.
        NoSpaceError: the disk has too little room.
    """
    target = directory / PACKED
    try:
        with (
            archive.disk_errors(directory),
            web.make_opener().open(url, timeout=30) as answer,
            target.open("wb") as output,
        ):
            size = int(answer.headers.get("Content-Length") or 0)
            most = shutil.disk_usage(directory).free // 2
            if size > most:
                raise _too_large(human_size(size), directory)
            try:  # the server can send more than it says, and without an end
                web.copy_stream(answer, output.write, most)
            except MalformedInputError:
                raise _too_large(f"more than {human_size(most)}", directory) from None
    except HTTPError:
        raise
    except web.FAILURES as error:
        raise _not_fetched(url, error) from None
    return target


def _too_large(size: str, directory: Path) -> NoSpaceError:
    return NoSpaceError(
        f"the workshop has {size}, and takes twice this to unpack",
        place=str(directory),
        next_step="join on a file system with more room",
    )


def _not_fetched(url: str, error: Exception | None) -> CommandFailedError:
    reason = getattr(error, "reason", None) or error  # that of URLError, without its brackets
    return CommandFailedError(
        f"the workshop could not be fetched: {getattr(reason, 'strerror', None) or reason}",
        place=url,
        next_step="check the address, or fetch the file with a browser and join it",
    )
