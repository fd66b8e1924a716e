"""What this machine knows that a build needs: how to reach package indexes and mirrors, and whom to trust."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from toolkit import shell
from toolkit.errors import NeedsInstallError, UsageError
from toolkit.images.build.host_mounts import HostConfig, pip_settings, translate_host_config
from toolkit.images.lockfile import pip_files

MIRROR_VARIABLE = "TOOLKIT_DEBIAN_MIRROR"
_KEYRINGS = Path("/usr/share/keyrings")
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Red Hat and its kin
    "/etc/ssl/ca-bundle.pem",  # SUSE
)
_BUNDLE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


_INSTEAD: ContextVar[HostConfig | None] = ContextVar("instead", default=None)


@contextmanager
def override_host_config(instead: HostConfig) -> Iterator[None]:
    """As long as this lasts, builds borrow this and nothing else."""
    token = _INSTEAD.set(instead)
    try:
        yield
    finally:
        _INSTEAD.reset(token)


def collect_host_config() -> HostConfig:
    """What a build may borrow from this machine."""
    chosen = _INSTEAD.get()
    if chosen is not None:
        return chosen
    settings = read_pip_settings()
    return translate_host_config(
        settings, apt=_apt_settings(), certificates=_certificates(settings)
    )


def proxies() -> dict[str, str]:
    """The proxy variables of our environment, in the case they are written in."""
    return {name: value for name, value in os.environ.items() if name.lower() in _PROXIES}


def debian_mirror(release: str) -> str:
    """A mirror of Debian: ``$TOOLKIT_DEBIAN_MIRROR``, else the one that this machine's apt uses.

    Raises:
        UsageError: neither is there.
    """
    chosen = os.environ.get(MIRROR_VARIABLE)
    if chosen:
        return chosen
    found = _apt_mirrors()
    mirror = found.get(release) or next(
        (site for name, site in sorted(found.items()) if "-" not in name), None
    )
    if mirror is None:
        raise UsageError(
            "no mirror of Debian is known: this machine's apt has none",
            place=MIRROR_VARIABLE,
            next_step=f"{MIRROR_VARIABLE}=<URL of a mirror near you> toolkit image build ...",
        )
    return mirror


def debootstrap_command() -> tuple[str, ...]:
    """Return the words of a call of debootstrap that refuses packages which Debian has not signed.

    Without its keys, debootstrap only warns and goes on unless it is told otherwise.

    Raises:
        NeedsInstallError: it is not here, or Debian's keys are not.
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


def _apt_mirrors() -> Mapping[str, str]:
    """Debian's own archives in this machine's apt: code name -> URL."""
    if shell.which("apt-get") is None:
        return {}
    wanted = "$(ORIGIN)|$(COMPONENT)|$(CODENAME)|$(RELEASE)|$(SITE)"
    said = shell.run(
        ["apt-get", "indextargets", "--format", wanted, "Created-By: Packages"],
        check=False,
        timeout=30,
    )
    return parse_mirrors(said.stdout)


def parse_mirrors(listing: str) -> dict[str, str]:
    """The first mirror of each release in a listing of apt's index targets; where apt has no lists yet, the origin is not known."""
    found: dict[str, str] = {}
    for line in listing.splitlines():
        origin, component, codename, release, site = (*line.split("|"), "", "", "", "", "")[:5]
        is_debian = origin == "Debian" or (
            (origin.startswith("$") or not origin) and "debian" in site.rsplit("/", 1)[-1].lower()
        )
        if is_debian and component == "main" and site.startswith(("http://", "https://", "file:/")):
            found.setdefault(
                release if codename.startswith("$") or not codename else codename, site
            )
    return found


def read_pip_settings() -> dict[str, str]:
    """How this machine's pip is told to reach packages."""
    return pip_settings(pip_files.listing())


def _apt_settings() -> list[str]:
    if shell.which("apt-config") is None:
        return []
    return shell.run(["apt-config", "dump"], check=False, timeout=30).stdout.splitlines()


def _certificates(settings: Mapping[str, str]) -> str | None:
    """The file of authorities that pip is told to trust, or programs are, or the system's."""
    named = (settings.get("cert"), *(os.environ.get(name) for name in _BUNDLE_VARIABLES))
    return next((path for path in (*named, *_BUNDLES) if path and Path(path).is_file()), None)
