"""Find the user's login for a registry: that of Docker, Apptainer or Podman, or ``$NGC_API_KEY``.

A secret goes to a registry or an engine in memory, or to a program in its environment. It never
goes into an argument, which every user of the machine can read, and never into a log, a definition
or an image.
"""

from __future__ import annotations

import base64
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

NGC_KEY = "NGC_API_KEY"
_NGC_REGISTRY, _NGC_USER = "nvcr.io", "$oauthtoken"


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


def credentials(registry: str, environment: Mapping[str, str] | None = None) -> Credentials | None:
    """Return the user's login for a registry. Return None if there is none.

    ``$NGC_API_KEY`` is for NGC's own registry and is sent to no other, also not to a mirror of it.
    """
    environment = os.environ if environment is None else environment
    if registry == _NGC_REGISTRY and environment.get(NGC_KEY):
        return Credentials(user=_NGC_USER, secret=environment[NGC_KEY], origin=f"${NGC_KEY}")
    logins = (_read_login(path, registry) for path in configuration_files(environment))
    return next((login for login in logins if login), None)


def configuration_files(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files in which Docker, Apptainer and Podman keep logins."""
    home = Path(environment.get("HOME") or Path.home())
    yield Path(environment.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    yield home / ".apptainer/docker-config.json"
    yield home / ".singularity/docker-config.json"
    if environment.get("REGISTRY_AUTH_FILE"):
        yield Path(environment["REGISTRY_AUTH_FILE"])
    if environment.get("XDG_RUNTIME_DIR"):
        yield Path(environment["XDG_RUNTIME_DIR"]) / "containers/auth.json"


def _read_login(path: Path, registry: str) -> Credentials | None:
    """Read a login as Docker does: from a credential helper, else from the file itself."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or not data.keys() & {"auths", "credHelpers", "credsStore"}:
        return None
    from docker.auth import load_config  # it imports requests, which takes half a second
    from docker.errors import DockerException

    auths, helpers = data.get("auths"), data.get("credHelpers")
    if isinstance(auths, dict):
        # One entry that is broken must not hide the others.
        data["auths"] = {key: entry for key, entry in auths.items() if _is_key_of(registry, key)}
    store = data.get("credsStore")
    if isinstance(helpers, dict):
        store = helpers.get(registry) or store
    try:
        with warnings.catch_warnings():  # about a helper that is not installed
            warnings.simplefilter("ignore")
            login = load_config(config_dict=data).resolve_authconfig(registry)
    except (DockerException, ValueError, LookupError, TypeError, AttributeError):
        return None
    login = {name.lower(): value for name, value in (login or {}).items()}
    user, secret, token = (
        str(login.get(name) or "") for name in ("username", "password", "identitytoken")
    )
    if not secret and not token:
        return None
    is_helpers = "email" not in login and bool(store)  # only entries of the file have one
    origin = f"docker-credential-{store}" if is_helpers else str(path)
    return Credentials(user=user, secret=secret.rstrip("\0"), token=token, origin=origin)


def _is_key_of(registry: str, key: str) -> bool:
    from docker.auth import resolve_index_name

    return bool(resolve_index_name(key) == resolve_index_name(registry))
