"""Find the user's login for a registry: that of Docker, Apptainer or Podman, or ``$NGC_API_KEY``.

A secret goes to a registry or an engine in memory, or to a program in its environment. It never
goes into an argument, which every user of the machine can read, and never into a log, a definition
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
from toolkit.files import read_text

NGC_KEY = "NGC_API_KEY"
_NGC_REGISTRY, _NGC_USER = "nvcr.io", "$oauthtoken"
_HUB_KEY = "https://index.docker.io/v1/"
_TOKEN_USER = "<token>"  # with this name a credential helper marks the secret as a token


@dataclass(frozen=True)
class Credentials:
    """A login for a registry.

    Attributes:
        user: empty if there is only a token.
        secret: a password, or a token of the kind that ``user`` goes with; not in ``repr``.
        token: an identity token, for which the registry's own service gives access tokens.
        origin: where the login is configured, for messages.
    """

    user: str
    secret: str = field(repr=False, default="")
    token: str = field(repr=False, default="")
    origin: str = ""

    @property
    def basic(self) -> str:
        """The value of the header of HTTP basic authentication."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.secret}".encode()).decode()


def find_credentials(
    registry: str, environment: Mapping[str, str] | None = None
) -> Credentials | None:
    """Return the user's login for a registry. Return None if there is none.

    ``$NGC_API_KEY`` is for NGC's own registry and is sent to no other, also not to a mirror of it.
    """
    environment = os.environ if environment is None else environment
    if registry == _NGC_REGISTRY and environment.get(NGC_KEY):
        return Credentials(user=_NGC_USER, secret=environment[NGC_KEY], origin=f"${NGC_KEY}")
    logins = (_read_login(path, registry) for path in list_configuration_files(environment))
    return next((login for login in logins if login), None)


def list_configuration_files(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files in which Docker, Apptainer and Podman keep logins (containers-auth.json(5)).

    The one that the user names for Podman and Skopeo comes first.
    """
    home = Path(environment.get("HOME") or Path.home())
    if environment.get("REGISTRY_AUTH_FILE"):
        yield Path(environment["REGISTRY_AUTH_FILE"])
    yield Path(environment.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    yield home / ".apptainer/docker-config.json"
    yield home / ".singularity/docker-config.json"
    if environment.get("XDG_RUNTIME_DIR"):
        yield Path(environment["XDG_RUNTIME_DIR"]) / "containers/auth.json"
    yield Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "containers/auth.json"


def _read_login(path: Path, registry: str) -> Credentials | None:
    """Read a login from the file itself, or from the credential helper that it names.

    A secret in the file comes first: a helper that a copied file names may be missing on this
    machine. ``docker.auth`` asks the helper first and then drops the whole file, takes only the
    token of an entry with a password, and accepts podman's entry of one namespace for the whole
    registry; so the file is read here.
    """
    try:
        data = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    keys = [registry, f"https://{registry}", f"https://{registry}/v1/", f"https://{registry}/v2/"]
    if registry == "docker.io":
        keys.insert(0, _HUB_KEY)
    values = data.get("credHelpers")
    helpers: dict[str, Any] = values if isinstance(values, dict) else {}
    for key in keys:
        entry = _entry(data, key)
        # Docker leaves an entry empty if a store of credentials has its secret.
        helper = helpers.get(key) or (None if entry.get("auth") else data.get("credsStore"))
        login = _ask_helper(str(helper), key) if helper else _parse_entry(entry, str(path))
        if login:
            return login
    return None


def _entry(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    auths = data.get("auths")
    entry = auths.get(key) if isinstance(auths, dict) else None
    return entry if isinstance(entry, dict) else {}


def _parse_entry(entry: Mapping[str, Any], origin: str) -> Credentials | None:
    try:
        text = base64.b64decode(entry.get("auth", ""), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, TypeError, ValueError):
        return None
    user, _, secret = text.partition(":")
    user = user or str(entry.get("username", ""))
    secret = secret.rstrip("\0") or str(entry.get("password", ""))
    token = str(entry.get("identitytoken") or entry.get("registrytoken") or "")
    if not secret and not token:
        return None
    return Credentials(user=user, secret=secret, token=token, origin=origin)


def _ask_helper(helper: str, key: str) -> Credentials | None:
    """Ask the user's own program: it reads the registry from its input and answers in JSON."""
    program = None if "/" in helper else shell.which(f"docker-credential-{helper}")
    if program is None:
        return None
    try:
        result = shell.run([program, "get"], input=key, check=False, timeout=60)
        answer = json.loads(result.stdout) if result.ok else {}
    except (ToolkitError, ValueError, RecursionError):
        return None
    if not isinstance(answer, dict):
        return None
    user, secret = str(answer.get("Username", "")), str(answer.get("Secret", ""))
    if not secret:
        return None
    if user == _TOKEN_USER:
        return Credentials(user="", token=secret, origin=program)
    return Credentials(user=user, secret=secret, origin=program)
