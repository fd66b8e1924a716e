"""Who we are to a registry: from what the user has already told Docker, Apptainer or Podman, or from ``$NGC_API_KEY``.

What is found here goes to a registry or an engine in memory, or to a program in its environment;
never into an argument, which every user of the machine can read, and never into a log, a definition
or an image.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit import shell
from toolkit.errors import ToolkitError

NGC_KEY = "NGC_API_KEY"
_NGC_REGISTRY, _NGC_USER = "nvcr.io", "$oauthtoken"
_HUB_KEY = "https://index.docker.io/v1/"
_TOKEN_USER = "<token>"  # by which a credential helper says that the secret is a token


@dataclass(frozen=True)
class Credentials:
    """What a registry is told.

    Attributes:
        user: empty where there is only a token.
        secret: a password, or a token of the kind that ``user`` goes with; not shown when this is printed.
        token: an identity token, for which the registry's own service gives others.
        origin: where this was found, for people.
    """

    user: str
    secret: str = field(repr=False, default="")
    token: str = field(repr=False, default="")
    origin: str = ""

    @property
    def basic(self) -> str:
        """The value of the HTTP header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.secret}".encode()).decode()


def credentials(registry: str, environment: Mapping[str, str] | None = None) -> Credentials | None:
    """What the user has for a registry; None: nothing, so it is asked without.

    ``$NGC_API_KEY`` is for NGC's own registry and is sent to no other, also not to a mirror of it.
    """
    environment = os.environ if environment is None else environment
    if registry == _NGC_REGISTRY and environment.get(NGC_KEY):
        return Credentials(user=_NGC_USER, secret=environment[NGC_KEY], origin=f"${NGC_KEY}")
    for path in configuration_files(environment):
        found = _in_file(path, registry)
        if found:
            return found
    return None


def configuration_files(environment: Mapping[str, str]) -> Iterator[Path]:
    """Where the logins of Docker, Apptainer and Podman are."""
    home = Path(environment.get("HOME") or Path.home())
    yield Path(environment.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    yield home / ".apptainer/docker-config.json"
    yield home / ".singularity/docker-config.json"
    if environment.get("REGISTRY_AUTH_FILE"):
        yield Path(environment["REGISTRY_AUTH_FILE"])
    if environment.get("XDG_RUNTIME_DIR"):
        yield Path(environment["XDG_RUNTIME_DIR"]) / "containers/auth.json"


def _in_file(path: Path, registry: str) -> Credentials | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict):
        return None
    keys = [registry, f"https://{registry}", f"https://{registry}/v1/", f"https://{registry}/v2/"]
    if registry == "docker.io":
        keys.insert(0, _HUB_KEY)
    named = data.get("credHelpers")
    helpers: dict[str, Any] = named if isinstance(named, dict) else {}
    for key in keys:
        helper = helpers.get(key) or (data.get("credsStore") if not _plain(data, key) else None)
        found = (
            _from_helper(str(helper), key) if helper else _from_entry(_entry(data, key), str(path))
        )
        if found:
            return found
    return None


def _entry(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    auths = data.get("auths")
    entry = auths.get(key) if isinstance(auths, dict) else None
    return entry if isinstance(entry, dict) else {}


def _plain(data: Mapping[str, Any], key: str) -> bool:
    """Whether the file holds the secret itself; with a store of credentials, its entries are empty."""
    return bool(_entry(data, key).get("auth"))


def _from_entry(entry: Mapping[str, Any], origin: str) -> Credentials | None:
    try:
        user, _, secret = (
            base64.b64decode(entry.get("auth", ""), validate=True).decode().partition(":")
        )
    except (binascii.Error, UnicodeDecodeError, TypeError, ValueError):
        return None
    user, secret = (
        user or str(entry.get("username", "")),
        secret.rstrip("\0") or str(entry.get("password", "")),
    )
    token = str(entry.get("identitytoken") or entry.get("registrytoken") or "")
    return (
        Credentials(user=user, secret=secret, token=token, origin=origin)
        if secret or token
        else None
    )


def _from_helper(helper: str, key: str) -> Credentials | None:
    """Ask the user's own program; it reads the registry from its input and answers in JSON."""
    program = None if "/" in helper else shell.which(f"docker-credential-{helper}")
    if program is None:
        return None
    try:
        said = shell.run([program, "get"], input=key, check=False, timeout=60)
        answer = json.loads(said.stdout) if said.ok else {}
    except (ToolkitError, ValueError):
        return None
    if not isinstance(answer, dict):
        return None
    user, secret = str(answer.get("Username", "")), str(answer.get("Secret", ""))
    if not secret:
        return None
    if user == _TOKEN_USER:
        return Credentials(user="", token=secret, origin=program)
    return Credentials(user=user, secret=secret, origin=program)
