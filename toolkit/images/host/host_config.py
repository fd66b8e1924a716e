"""Read this machine's settings that a build needs: package indexes, mirrors, proxies and trust."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from configparser import Error as ConfigParserError
from configparser import RawConfigParser
from contextlib import suppress
from pathlib import Path

from toolkit import shell
from toolkit.errors import NeedsInstallError, UsageError
from toolkit.images.host.host_mounts import (
    ROOT,
    Bind,
    HostConfig,
    find_secrets,
    pip_settings,
    translate_host_config,
)
from toolkit.images.recipe.block import HOST_WHEELS

MIRROR_VARIABLE = "TOOLKIT_DEBIAN_MIRROR"
_KEYRINGS = Path("/usr/share/keyrings")
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Red Hat and its relatives
    "/etc/ssl/ca-bundle.pem",  # SUSE
)
_BUNDLE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_TIMEOUT = 30  # seconds for an answer of apt


def collect_host_config() -> HostConfig:
    """Return the host configuration that a build sees, unless it builds a lock."""
    settings = read_pip_settings()
    apt = _run_apt("apt-config", "dump").splitlines()
    return translate_host_config(settings, apt=apt, certificates=_certificates(settings))


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
    options = "$(ORIGIN)|$(COMPONENT)|$(CODENAME)|$(RELEASE)|$(SITE)"
    listing = _run_apt("apt-get", "indextargets", "--format", options, "Created-By: Packages")
    mirrors = parse_mirrors(listing)
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
        NeedsInstallError: debootstrap or Debian's keys are not installed.
    """
    program = shell.which("debootstrap")
    if program is None:
        raise NeedsInstallError("debootstrap is not installed here", next_step="toolkit setup")
    if not any(_KEYRINGS.glob("debian-archive-keyring.*")):
        raise NeedsInstallError(
            "the keys of Debian's archive are not installed, so a Debian base cannot be verified",
            place=str(_KEYRINGS),
            next_step="toolkit setup (package debian-archive-keyring)",
        )
    return program, "--force-check-gpg"


def _run_apt(program: str, *arguments: str) -> str:
    """Return the output of one of apt's programs; empty if this machine has no apt."""
    if shell.which(program) is None:
        return ""
    return shell.run([program, *arguments], check=False, timeout=_TIMEOUT).stdout


def parse_mirrors(listing: str) -> dict[str, str]:
    """Return the first mirror of each release in a listing of apt's index targets.

    The origin is unknown until apt has downloaded its lists.
    """
    mirrors: dict[str, str] = {}
    for line in listing.splitlines():
        origin, component, codename, release, site = (*line.split("|"), "", "", "", "", "")[:5]
        is_debian = origin == "Debian" or (
            (origin.startswith("$") or not origin) and "debian" in site.rsplit("/", 1)[-1].lower()
        )
        if is_debian and component == "main" and site.startswith(("http://", "https://", "file:/")):
            name = release if codename.startswith("$") or not codename else codename
            mirrors.setdefault(name, site)
    return mirrors


def read_pip_settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return this machine's settings of pip for reaching packages, as they apply to an install.

    To call pip for it takes longer than a small step of a build. Later files override earlier ones,
    ``[install]`` overrides ``[global]``, and variables override files.
    """
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for file in _pip_files(environment):
        parser = RawConfigParser()
        # A file that cannot be read counts as missing.
        with suppress(ConfigParserError, OSError, UnicodeDecodeError):
            parser.read(file, encoding="utf-8")
            for section in sections.keys() & set(parser.sections()):
                sections[section].update(parser.items(section))
    variables = {
        name.removeprefix("PIP_"): value
        for name, value in environment.items()
        if name.startswith("PIP_") and value
    }
    return pip_settings((*sections.values(), variables))


def _pip_files(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the places of pip's files: the system's, the user's, the environment's, the named."""
    named = environment.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return ()
    own = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    directories = filter(None, environment.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":"))
    return (
        *(Path(directory) / "pip/pip.conf" for directory in directories),
        Path("/etc/pip.conf"),
        Path.home() / ".pip/pip.conf",
        Path(own) / "pip/pip.conf",
        Path(sys.prefix) / "pip.conf",
        *([Path(named)] if named else []),
    )


def _certificates(settings: Mapping[str, str]) -> str | None:
    """Return the file of trusted authorities: pip's, else the environment's, else the system's."""
    paths = (settings.get("cert"), *(os.environ.get(name) for name in _BUNDLE_VARIABLES))
    return next((path for path in (*paths, *_BUNDLES) if path and Path(path).is_file()), None)


def write_host_config(
    config: HostConfig, directory: Path, wheels: Path | None = None
) -> tuple[Bind, ...]:
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
    if wheels:
        (directory / HOST_WHEELS.removeprefix(f"{ROOT}/")).mkdir()
        binds.append(Bind(source=str(wheels), target=HOST_WHEELS))
    directory.chmod(0o755)
    return (Bind(source=str(directory), target=ROOT), *binds)
