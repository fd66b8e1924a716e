"""This machine's settings that a build needs: package indexes, mirrors, proxies and trust.

A build sees them as files below ``/mnt``, translated so that they work there. None of them becomes
part of the image.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from configparser import Error as ConfigParserError
from configparser import RawConfigParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from toolkit import shell
from toolkit.errors import ConfigError, NeedsInstallError, UsageError
from toolkit.hostsetup import apt
from toolkit.images.host.kernel import Bind
from toolkit.model.base import Model
from toolkit.text import logins

ROOT = "/mnt"  # exists and is empty in every Debian; definitions read settings there
CERTIFICATES = "ca-certificates.crt"
MIRROR_VARIABLE = "TOOLKIT_DEBIAN_MIRROR"
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Red Hat and its relatives
    "/etc/ssl/ca-bundle.pem",  # SUSE
)
_BUNDLE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PATIENCE = 120  # seconds for an answer of apt, on a busy machine
# Where packages come from and how they are reached. Any other setting of pip's could change what is
# installed.
_PLACES = ("index-url", "extra-index-url", "find-links")
_USED_SETTINGS = (*_PLACES, "no-index", "trusted-host", "proxy", "timeout", "retries")
_APT_SETTING = re.compile(
    r'Acquire::(?:https?|ftp)(?:::[^ ]+)?::Proxy(?:::[^ ]+)? ".*";'
    r'|Acquire::https?(?:::[^ ]+)?::(?:Verify-Peer|Verify-Host) ".*";'
)


class HostConfig(Model, frozen=True, kw_only=True):
    """Files for a directory that is mounted at ``ROOT``, and what is mounted below it.

    The targets of the mounts are relative to ``ROOT``.
    """

    files: dict[str, str] = {}
    binds: tuple[Bind, ...] = ()


def collect_host_config() -> HostConfig:
    """Return the host configuration that a build sees, unless it builds a lock."""
    settings = read_pip_settings()
    lines = []
    if shell.which("apt-config"):
        lines = shell.run(
            ["apt-config", "dump"], check=False, timeout=_PATIENCE
        ).stdout.splitlines()
    return translate_host_config(settings, apt=lines, certificates=_certificates(settings))


def collect_secrets(config: HostConfig) -> tuple[str, ...]:
    """Return the passwords and tokens of the host configuration and the proxies, for masking."""
    return find_secrets((*config.files.values(), *proxies().values()))


def proxies() -> dict[str, str]:
    """Return the proxy variables of the environment, in the case in which they are written."""
    return {name: value for name, value in os.environ.items() if name.lower() in _PROXIES}


def debian_mirror(release: str) -> str:
    """Return a mirror of Debian: ``$TOOLKIT_DEBIAN_MIRROR``, else that of this machine's apt.

    Raises:
        UsageError: Neither is set.
    """
    mirror = os.environ.get(MIRROR_VARIABLE)
    if mirror:
        return mirror
    mirrors = apt.debian_mirrors()
    mirror = mirrors.get(release) or next(
        (site for name, site in sorted(mirrors.items()) if "-" not in name), None
    )
    if mirror is None:
        raise UsageError(
            "no mirror of Debian is known: this machine's apt has none",
            place=MIRROR_VARIABLE,
            next_step=f"{MIRROR_VARIABLE}=<URL of a mirror near you> toolkit image build ...",
        )
    return mirror


def debootstrap_command() -> tuple[str, ...]:
    """Return the first words of a debootstrap call that refuses unsigned packages.

    Without Debian's keys, debootstrap only warns and continues by default.

    Raises:
        NeedsInstallError: debootstrap is not installed.
    """
    program = shell.which("debootstrap")
    if program is None:
        raise NeedsInstallError("debootstrap is not installed here", next_step="toolkit setup")
    return program, "--force-check-gpg"


def read_pip_settings() -> dict[str, str]:
    """Return this machine's settings of pip for reaching packages, as they apply to an install.

    pip takes longer to list them than a small step of a build takes, and each version lists them
    in another way.

    Raises:
        ConfigError: pip cannot read a file of its configuration either; without it, packages would
            be looked for elsewhere.
    """
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for file in _pip_files():
        parser = RawConfigParser()
        try:
            parser.read(file)
        except (ConfigParserError, UnicodeDecodeError) as error:
            raise ConfigError(
                "pip cannot read its configuration",
                place=file,
                details=str(error).splitlines(),
                next_step="fix that file, or name another: PIP_CONFIG_FILE",
            ) from None
        for section, values in sections.items():
            if section in parser:
                values |= {_option_name(name): value for name, value in parser[section].items()}
    environment = {
        _option_name(name.removeprefix("PIP_")): value
        for name, value in os.environ.items()
        if name.startswith("PIP_")
    }
    settings: dict[str, str] = {}
    for values in (*sections.values(), environment):  # the weakest first
        for name in (*_USED_SETTINGS, "cert"):
            if value := values.get(name):
                settings[name] = value
    return dict(sorted(settings.items()))


def _option_name(name: str) -> str:
    """Return the name of an option of pip, which is also written PIP_INDEX_URL or --index_url."""
    return name.lower().replace("_", "-").removeprefix("--")


def _pip_files() -> tuple[str, ...]:
    """Return the files that pip reads, the weakest first ("Configuration" in its documentation)."""
    chosen = os.environ.get("PIP_CONFIG_FILE", "")
    if chosen == os.devnull:
        return ()
    system = (os.environ.get("XDG_CONFIG_DIRS", "").strip() or "/etc/xdg").split(":")
    home = os.environ.get("XDG_CONFIG_HOME", "").strip() or "~/.config"
    files = [*(f"{directory}/pip/pip.conf" for directory in system), "/etc/pip.conf"]
    if not chosen or not Path(chosen).exists():
        files += ["~/.pip/pip.conf", f"{home}/pip/pip.conf"]
    files += [f"{sys.prefix}/pip.conf", *filter(None, [chosen])]
    # A user may have no home; a directory "~" of the current one may be another user's.
    paths = map(os.path.expanduser, files)
    return tuple(path for path in paths if path == chosen or Path(path).is_absolute())


def _certificates(settings: Mapping[str, str]) -> str | None:
    """Return the file of trusted authorities: pip's, else the environment's, else the system's."""
    paths = (settings.get("cert"), *(os.environ.get(name) for name in _BUNDLE_VARIABLES))
    return next((path for path in (*paths, *_BUNDLES) if path and Path(path).is_file()), None)


def translate_host_config(
    settings: Mapping[str, str], apt: Iterable[str] = (), certificates: str | None = None
) -> HostConfig:
    """Return the files for ``ROOT`` and the mounts below it.

    Args:
        settings: pip's settings, as of ``read_pip_settings``.
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


def write_host_config(config: HostConfig, directory: Path) -> tuple[Bind, ...]:
    """Write the host configuration into a new directory; return it and the mounts below it.

    The directory is readable by all users, but within one that only its owner can enter.
    """
    directory.mkdir()
    for name, text in config.files.items():
        (directory / name).write_text(text, encoding="utf-8")
    binds: list[Bind] = []
    for bind in config.binds:
        target = directory / bind.target
        if Path(bind.source).is_dir():
            target.mkdir(parents=True)
        elif Path(bind.source).is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        else:
            continue  # pip would warn of it on the host as well, and continue
        binds.append(Bind(source=bind.source, target=f"{ROOT}/{bind.target}"))
    directory.chmod(0o755)
    return (Bind(source=str(directory), target=ROOT), *binds)
