"""Files of Python packages in the indexes and directories of this machine's pip configuration.

uv reads the indexes, and runs no setup of a package for it. It gets their URLs by its standard
input, since other users can see the arguments of a program.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.version import VERSION_PATTERN
from uv import find_uv_bin

from toolkit import shell
from toolkit.errors import CommandFailedError, MalformedInputError
from toolkit.images.recipe.names import is_file_name, normalize_name
from toolkit.images.registry import web
from toolkit.model.base import Model, toml
from toolkit.text import redacted

_RESOLVE = (
    *("--no-config", "pip", "compile", "--quiet", "--no-deps", "--no-header"),
    *("--format", "pylock.toml", "--python", sys.executable, "--no-python-downloads"),
)
_REFUSED = re.compile("401 Unauthorized|403 Forbidden")
_UNSATISFIABLE = 1  # uv's exit code if no index has a package
_PATIENCE = 600.0  # seconds; uv reads the files of an index that gives no hashes
_MOST_FILE = 32 << 30  # bytes of a package's file
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?\Z")  # of a package (PEP 508)
_VERSION = re.compile(rf"{VERSION_PATTERN}\Z", re.VERBOSE | re.IGNORECASE)
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class File(Model, frozen=True, kw_only=True):
    """A file of a package, whose name is normalized."""

    package: str
    name: str
    url: str
    sha256: str


class Index(Model, frozen=True, kw_only=True):
    """All places that pip would search.

    Attributes:
        settings: of pip, by ``read_pip_settings``.
        further: indexes that a recipe names, for packages that the others do not have.
    """

    settings: dict[str, str] = {}
    further: tuple[str, ...] = ()

    def list_files(
        self, wanted: Mapping[str, str], python: str, platform: str = ""
    ) -> tuple[File, ...]:
        """Return the files of packages, and none of a package that no index has.

        Args:
            wanted: The packages, and the version of each.
            python: The version of Python that they are for.
            platform: uv's name of the platform that they are for; empty: any platform.

        Raises:
            CommandFailedError: An index does not answer.
        """
        lines = {
            normalize_name(name): f"{name}=={version}"
            for name, version in wanted.items()
            if _NAME.match(name) and _VERSION.match(version)  # an image may give it any
        }
        words = ["--python-version", python] if python else []
        words += ["--python-platform", platform] if platform else ["--universal"]
        with tempfile.TemporaryDirectory(prefix="toolkit-") as cache:
            words += ["--cache-dir", cache]
            files = list(self._resolve(list(lines.values()), words, ()))
            wheels = {file.package for file in files if file.name.endswith(".whl")}
            rest = [line for name, line in lines.items() if name not in wheels]
            if self.further:
                try:
                    files += self._resolve(rest, words, self.further)
                except CommandFailedError:
                    if not lines.keys() <= {file.package for file in files}:
                        raise
        return tuple(files)

    def _resolve(
        self, requirements: Sequence[str], words: Sequence[str], further: Sequence[str]
    ) -> Iterator[File]:
        """Yield the files of requirements; uv gives nothing if one has none, so they are halved."""
        if not requirements:
            return
        text = "\n".join((*self._places(further), *requirements, ""))
        result = self._ask(text, words, "unsafe-best-match")
        if not result.ok and len(requirements) == 1:  # only so does uv tell of a refused login
            asked = self._ask(text, words, "first-index")
            result = asked if _REFUSED.search(asked.stderr) else result
        if result.ok:
            yield from self._parse(result.stdout)
        elif result.returncode != _UNSATISFIABLE or _REFUSED.search(result.stderr):
            details = [redacted(line) for line in result.tail()]
            raise CommandFailedError("a package index cannot be read", details=details)
        elif len(requirements) > 1:
            middle = len(requirements) // 2
            yield from self._resolve(requirements[:middle], words, further)
            yield from self._resolve(requirements[middle:], words, further)

    def _ask(self, text: str, words: Sequence[str], strategy: str) -> shell.Result:
        own = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
        own["UV_HTTP_RETRIES"] = "1"
        if "cert" in self.settings:
            own["SSL_CERT_FILE"] = self.settings["cert"]
        command = (find_uv_bin(), *_RESOLVE, "--index-strategy", strategy, *words, "-")
        return shell.run(command, input=text, env=own, timeout=_PATIENCE, check=False)

    def _urls(self, *keys: str) -> list[str]:
        return [url for key in keys for url in self.settings.get(key, "").split()]

    def _places(self, further: Sequence[str]) -> Iterator[str]:
        yield from (f"--find-links {_local(place) or place}" for place in self._there("find-links"))
        if self.settings.get("no-index", "").lower() in ("1", "true", "yes"):
            yield "--no-index"
            return
        yield from (f"--index-url {url}" for url in self._urls("index-url"))
        extra = (*self._there("extra-index-url"), *further)
        yield from (f"--extra-index-url {place}" for place in extra)

    def _there(self, key: str) -> list[str]:
        """Return the places but for missing directories, which pip ignores, and uv does not."""
        return [url for url in self._urls(key) if (path := _local(url)) is None or path.exists()]

    def _parse(self, text: str) -> Iterator[File]:
        """Yield the files that a lock of uv names (PEP 751) and that may be used here."""
        try:
            packages: Any = toml(text).get("packages", ())
            files = [
                File(
                    package=normalize_name(package["name"]),
                    name=unquote(urlsplit(artifact["url"]).path.rpartition("/")[2]),
                    url=artifact["url"],
                    sha256=str(artifact["hashes"].get("sha256", "")),
                )
                for package in packages
                for artifact in (*package.get("wheels", ()), package.get("sdist"))
                if artifact
            ]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise MalformedInputError(f"uv wrote no lock: {error!r}", place="uv") from None
        yield from (file for file in files if is_file_name(file.name) and self._is_usable(file))

    def _is_usable(self, file: File) -> bool:
        """Return whether a file has a hash and may be read.

        A page of another machine can name any file of this one.
        """
        path = _local(file.url)
        links = map(_local, self._urls("find-links"))
        indexes = map(_local, self._urls("index-url", "extra-index-url"))
        # The pages of an index link to files beside it.
        places = (*filter(None, links), *(index.parent for index in indexes if index))
        return bool(_SHA256.match(file.sha256)) and (
            urlsplit(file.url).scheme in ("http", "https")
            if path is None
            else any(path.resolve().is_relative_to(place.resolve()) for place in places)
        )

    def fetch(self, file: File, target: Path) -> None:
        """Fetch a file, whatever its hash.

        Raises:
            CommandFailedError: It cannot be fetched or stored, or has no end.
        """
        part = target.with_name(f".{target.name}.{os.getpid()}")
        path = _local(file.url)
        try:
            if path:
                shutil.copyfile(path, part)
            else:
                places = (*self._urls("index-url", "extra-index-url", "find-links"), *self.further)
                certificates = self.settings.get("cert")
                with part.open("wb") as stream:
                    web.download(
                        file.url, stream.write, _MOST_FILE, certificates=certificates, logins=places
                    )
            part.replace(target)
        except web.FAILURES as error:
            reason = f"{file.name} cannot be fetched: {redacted(web.explain(error))}"
            raise CommandFailedError(reason, place=redacted(file.url)) from None
        finally:
            part.unlink(missing_ok=True)


def _local(place: str) -> Path | None:
    """Return the path of a place on this machine; None of a URL."""
    try:
        parts = urlsplit(place)
    except ValueError:  # uv reports it
        return None
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(place).expanduser()
