"""What a build borrows from the machine it runs on: translated, so that it works within the build, where it is all bound below ``/mnt``.

Pure: ``host`` finds out what the machine knows, ``builders`` put the files in place. Nothing of it
is part of the image.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from toolkit.model.base import Model
from toolkit.redaction import logins

ROOT = "/mnt"  # exists and is empty in every Debian; definitions look there
CERTIFICATES = "ca-certificates.crt"

# Where packages come from and how they are reached. Anything else of pip's configuration could
# change what is installed.
_TAKEN = (
    "index-url",
    "extra-index-url",
    "find-links",
    "no-index",
    "trusted-host",
    "proxy",
    "timeout",
    "retries",
)
_PLACES = ("index-url", "extra-index-url", "find-links")
_SETTING = re.compile(r"(?P<section>[\w:-]+)\.(?P<key>[\w.-]+)=(?P<value>.*)")
_APT_SETTING = re.compile(
    r'Acquire::(?:https?|ftp)(?:::[^ ]+)?::Proxy(?:::[^ ]+)? ".*";|Acquire::https?(?:::[^ ]+)?::(?:Verify-Peer|Verify-Host) ".*";'
)


class Bind(Model, frozen=True, kw_only=True):
    """A directory or file of the machine, and where it is seen in the build: relative to ``ROOT``."""

    source: str
    target: str


class HostConfig(Model, frozen=True, kw_only=True):
    """Files for a directory that is bound to ``ROOT``, and what is bound below it."""

    files: dict[str, str] = {}
    binds: tuple[Bind, ...] = ()


def pip_settings(listing: str) -> dict[str, str]:
    """What ``pip config list`` says, as pip would use it for an install: the environment before a section before ``global``."""
    ranks = {"global": 0, "install": 1, ":env:": 2}
    found: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        match = _SETTING.match(line)
        if not match or match["section"] not in ranks:
            continue
        key, rank = match["key"].lstrip(".").replace("_", "-"), ranks[match["section"]]
        if key in (*_TAKEN, "cert", "client-cert") and rank >= found.get(key, (-1, ""))[0]:
            found[key] = (rank, _unquoted(match["value"]))
    return {key: value for key, (_, value) in sorted(found.items())}


def _unquoted(value: str) -> str:
    try:
        return str(literal_eval(value))
    except (ValueError, SyntaxError):
        return value


def translate_host_config(
    settings: Mapping[str, str], apt: Iterable[str] = (), certificates: str | None = None
) -> HostConfig:
    """What the files at ``ROOT`` say and what is bound there.

    Args:
        settings: of pip, by ``pip_settings``.
        apt: the lines of ``apt-config dump``.
        certificates: the machine's file of certificate authorities, if there is one.
    """
    binds: list[Bind] = []
    lines = ["[global]"]
    for key, value in settings.items():
        if key in _PLACES:
            value = "\n    ".join(_translated(place, key, binds) for place in value.split())
        if key in _TAKEN:
            lines.append(f"{key} = {value}")
    if certificates:
        lines.append(f"cert = {ROOT}/{CERTIFICATES}")
        binds.append(Bind(source=certificates, target=CERTIFICATES))
    if "client-cert" in settings:
        lines.append(f"client-cert = {ROOT}/client.pem")
        binds.append(Bind(source=settings["client-cert"], target="client.pem"))
    files = {"pip.conf": "\n".join(lines) + "\n"} if len(lines) > 1 else {}
    apt_lines = [line for line in apt if _APT_SETTING.fullmatch(line)]
    if certificates and apt_lines:
        apt_lines.append(f'Acquire::https::CaInfo "{ROOT}/{CERTIFICATES}";')
    if apt_lines:
        files["apt.conf"] = "\n".join(apt_lines) + "\n"
    return HostConfig(files=files, binds=tuple(binds))


def _translated(place: str, key: str, binds: list[Bind]) -> str:
    """An index or a place of wheels as the build sees it: remote ones as they are, local ones bound and renamed."""
    url = urlsplit(place)
    if url.scheme and url.scheme != "file":
        return place
    path = PurePosixPath(unquote(url.path) if url.scheme else place)
    # The pages of an index link to files beside it ("../../files/x.whl"): its parent has to be
    # there as well.
    shown = path.parent if key != "find-links" and path.parent != path else path
    target = f"{key}/{len(binds)}"
    binds.append(Bind(source=str(shown), target=target))
    seen = PurePosixPath(ROOT) / target / path.relative_to(shown)
    return f"file://{seen}" if url.scheme else str(seen)


def find_secrets(texts: Iterable[str]) -> tuple[str, ...]:
    """The passwords and tokens in URLs of these texts, as written and decoded, longest first: what no log may hold."""
    found: set[str] = set()
    for user_info in logins("\n".join(texts)):
        name, _, password = user_info.partition(":")
        secret = password or (
            name if len(name) >= 8 else ""
        )  # a name alone is a token, when it is no short user name
        found |= {secret, unquote(secret)} - {""}
    return tuple(sorted(found, key=lambda secret: (-len(secret), secret)))


def mask_secrets(secret: Iterable[str], line: str) -> str:
    """A line for a log, without what is secret."""
    for one in secret:
        line = line.replace(one, "****")
    return line


def bind_option(source: str, target: str, *, writable: bool = False) -> str:
    """An argument of Apptainer's ``--mount``, which unlike ``--bind`` can carry commas and colons in a path."""
    # It reads all its --mount together as one table, whose lines must have the same number of
    # fields: the type a second time does no harm.
    fields = (
        "type=bind",
        f"source={source}",
        f"destination={target}",
        "type=bind" if writable else "ro",
    )
    return ",".join(
        '"' + field.replace('"', '""') + '"' if re.search('[",\\s]', field) else field
        for field in fields
    )
