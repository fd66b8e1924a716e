"""Translate this machine's package settings so that they work within a build. Pure.

A build sees the host configuration below ``/mnt``. ``host_config`` reads the machine's settings,
the builders put the files in place. None of it becomes part of the image.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from toolkit.model.base import Model
from toolkit.text import logins

ROOT = "/mnt"  # exists and is empty in every Debian; definitions read settings there
CERTIFICATES = "ca-certificates.crt"

# Where packages come from and how they are reached. Any other setting of pip's could change what is
# installed.
_USED_SETTINGS = (
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
_APT_SETTING = re.compile(
    r'Acquire::(?:https?|ftp)(?:::[^ ]+)?::Proxy(?:::[^ ]+)? ".*";'
    r'|Acquire::https?(?:::[^ ]+)?::(?:Verify-Peer|Verify-Host) ".*";'
)


class Bind(Model, frozen=True, kw_only=True):
    """A file or directory of the machine, and its place in a step or a build."""

    source: str
    target: str
    writable: bool = False


class HostConfig(Model, frozen=True, kw_only=True):
    """Files for a directory that is mounted at ``ROOT``, and what is mounted below it.

    The targets of the mounts are relative to ``ROOT``.
    """

    files: dict[str, str] = {}
    binds: tuple[Bind, ...] = ()


def pip_settings(sources: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the settings by which pip reaches packages; the weakest source comes first."""
    settings = {
        name.lower().replace("_", "-"): value
        for source in sources
        for name, value in source.items()
    }
    used = (*_USED_SETTINGS, "cert", "client-cert")
    return {name: value for name, value in sorted(settings.items()) if name in used}


def translate_host_config(
    settings: Mapping[str, str], apt: Iterable[str] = (), certificates: str | None = None
) -> HostConfig:
    """Return the files for ``ROOT`` and the mounts below it.

    Args:
        settings: pip's settings, as of ``pip_settings``.
        apt: The lines of ``apt-config dump``.
        certificates: The machine's file of certificate authorities, if there is one.
    """
    binds: list[Bind] = []
    lines = ["[global]"]
    for key, value in settings.items():
        if key in _PLACES:
            value = "\n    ".join(_translate_place(place, key, binds) for place in value.split())
        if key in _USED_SETTINGS:
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


def _translate_place(place: str, key: str, binds: list[Bind]) -> str:
    """Return an index or wheel directory as the build sees it; mount a local one."""
    url = urlsplit(place)
    if url.scheme and url.scheme != "file":
        return place
    path = PurePosixPath(unquote(url.path) if url.scheme else place)
    # The pages of an index link to files beside it ("../../files/x.whl"): its parent is needed too.
    shown = path.parent if key != "find-links" and path.parent != path else path
    target = f"{key}/{len(binds)}"
    binds.append(Bind(source=str(shown), target=target))
    translated = PurePosixPath(ROOT) / target / path.relative_to(shown)
    return f"file://{translated}" if url.scheme else str(translated)


def find_secrets(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the passwords and tokens in URLs, as written and decoded, the longest first."""
    secrets: set[str] = set()
    for user_info in logins("\n".join(texts)):
        name, _, password = user_info.partition(":")
        # A name without a password is a token, unless it is a short user name.
        secret = password or (name if len(name) >= 8 else "")
        secrets |= {secret, unquote(secret)} - {""}
    return tuple(sorted(secrets, key=lambda secret: (-len(secret), secret)))


def mask_secrets(secrets: Iterable[str], line: str) -> str:
    """Return a line for a log without its secrets."""
    for secret in secrets:
        line = line.replace(secret, "****")
    return line


def mount_options(binds: Iterable[Bind]) -> tuple[str, ...]:
    """Return the options by which Apptainer mounts files and directories, ``--mount`` for each."""
    return tuple(word for bind in binds for word in ("--mount", _mount_value(bind)))


def _mount_value(bind: Bind) -> str:
    """Return a value of ``--mount``, whose paths may hold commas and colons; not so ``--bind``."""
    # Apptainer reads all its --mount together as one table, whose lines must have the same number
    # of fields: the type a second time does no harm.
    last = "type=bind" if bind.writable else "ro"
    fields = ("type=bind", f"source={bind.source}", f"destination={bind.target}", last)
    return ",".join(
        '"' + field.replace('"', '""') + '"' if re.search('[",\\s]', field) else field
        for field in fields
    )
