"""Registries, asked by skopeo: which image a tag is now, with the user's login and through mirrors.

skopeo speaks the protocol, asks credential helpers, and knows proxies and certificates. It gets the
login for one registry in a file of this user alone, and Apptainer and the engines get the same
file. No secret goes into an argument, which every user of the machine can read.
"""

from __future__ import annotations

import base64
import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from toolkit import shell
from toolkit.config import settings_files
from toolkit.errors import (
    BuildError,
    CommandFailedError,
    ConfigError,
    ForbiddenError,
    NeedsInstallError,
    ToolkitError,
    UnknownImageError,
    UsageError,
)
from toolkit.files import read_text, read_toml, temporary_beside, write_atomically
from toolkit.images.host.host_config import proxies
from toolkit.images.registry.references import (
    Reference,
    check_mirrors,
    is_loopback,
    parse,
    parse_mirrors,
    redirect,
)
from toolkit.model.job import Project

VARIABLE = "TOOLKIT_REGISTRIES"
_NGC_KEY, _NGC_REGISTRY, _NGC_USER = "NGC_API_KEY", "nvcr.io", "$oauthtoken"
_HUB, _HUB_KEY = "docker.io", "https://index.docker.io/v1/"  # as Docker calls it in its file
_LOGIN_FILE = "docker-config.json"  # the name that Apptainer gives it
_PATIENCE = 60  # seconds for one answer
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# What skopeo prints after the registry has answered 404, 401 or 403.
_UNKNOWN = ("manifest unknown", "name unknown", "StatusCode: 404")
# In lower case; Apptainer speaks of a status code 401.
_REFUSED = ("unauthorized", "authentication required", "denied", "statuscode: 403")


@dataclass(frozen=True)
class Source:
    """An image in a registry.

    Attributes:
        wanted: the reference in the recipe, with the digest that it has now.
        place: the reference that is fetched; its digest names the image, even if the tag moves.
    """

    wanted: Reference
    place: Reference


def resolve_source(
    reference: str,
    digest: str | None = None,
    *,
    written: str = "the recipe's [base]",
) -> Source:
    """Resolve a reference to its digest.

    Args:
        reference: as a recipe or the catalogue names it.
        digest: the digest that it must have.
        written: where the reference is written, for messages.

    Raises:
        UsageError: the reference, or what names the mirrors, cannot be read.
        BuildError: the registry has another image under this name than the recipe pins.
        UnknownImageError, ForbiddenError, CommandFailedError, NeedsInstallError: of
            ``find_digest``.
    """
    try:
        wanted = parse(reference)
    except ValueError as error:
        raise UsageError(str(error), place=written) from None
    place = redirect(wanted, read_mirrors())
    pinned = digest or wanted.digest
    current = find_digest(place if place.tag else msgspec.structs.replace(place, digest=pinned))
    if pinned and current != pinned:
        raise BuildError(
            f"{place.repository}:{place.tag} is not the image that the recipe pins",
            place=str(wanted),
            details=(f"recipe    {pinned}", f"registry  {current}"),
            next_step="the tag was moved, or the mirror differs: find out which; to take the new "
            "image, change `digest` in the recipe",
        )
    return Source(
        msgspec.structs.replace(wanted, digest=current),
        msgspec.structs.replace(place, digest=current),
    )


def find_digest(reference: Reference) -> str:
    """Return the digest that a tag has now, or the named digest if the registry has it.

    Raises:
        UnknownImageError: the registry has no such repository or tag.
        ForbiddenError: the registry requires a login, or another login.
        CommandFailedError: the registry does not answer, or answers with something else.
        NeedsInstallError: skopeo is not installed.
    """
    words = [require_skopeo(), "--command-timeout", f"{_PATIENCE}s"]
    words += ["inspect", "--no-tags", "--format", "{{.Digest}}"]
    words += ["--tls-verify=false"] if is_loopback(reference.registry) else []
    environment = os.environ | proxy_variables() | {"LC_ALL": "C.UTF-8"}
    # What a killed process left of this user is removed by the next.
    place = Path(tempfile.gettempdir()) / f"toolkit-login-{os.geteuid()}"
    with temporary_beside(place) as directory:
        login = write_login(reference.registry, directory)
        words += ["--authfile", str(login)] if login else ["--no-creds"]
        words.append(f"docker://{reference.pinned}")
        done = shell.run(words, env=environment, check=False, timeout=2 * _PATIENCE)
    digest = done.stdout.strip()
    if done.ok and _DIGEST.fullmatch(digest):
        return digest
    if any(message in done.stderr for message in _UNKNOWN):
        raise UnknownImageError(
            f"the registry has no image {reference.pinned}",
            place=str(reference),
            next_step="compare the name with the registry's catalogue, or: toolkit image search",
        )
    raise explain_failure(reference, done)


def require_skopeo() -> str:
    """Return the path of skopeo.

    Raises:
        NeedsInstallError: It is not installed.
    """
    program = shell.which("skopeo")
    if program is None:
        raise NeedsInstallError(
            "skopeo, which speaks with registries, is not installed here",
            next_step="toolkit setup, or install the package skopeo",
        )
    return program


def explain_failure(reference: Reference, done: shell.Result) -> ToolkitError:
    """Return the error to raise after a program could not reach an image in a registry."""
    registry, answer = reference.registry, done.stderr.lower()
    reason = f"the registry {registry} failed for {reference.path}"
    error: type[ToolkitError] = CommandFailedError
    step = (
        "check the address, and that this machine reaches the registry; through a mirror:"
        f" {VARIABLE}={registry}=MIRROR; without a network: `archive` in the recipe's [base]"
    )
    if any(message in answer for message in _REFUSED):
        error, (_, origin) = ForbiddenError, _find_login(registry)
        refusal = f"does not accept the login from {origin}" if origin else "requires a login"
        reason = f"the registry {registry} {refusal} for {reference.path}, or does not have it"
        step = f"docker login {registry}, or:"
        step += f" apptainer registry login --username NAME docker://{registry}"
        if registry == _NGC_REGISTRY:
            step = f"export {_NGC_KEY}=<your key> (from ngc.nvidia.com, Setup)"
    return error(reason, place=str(reference), details=done.tail(), next_step=step)


def write_login(registry: str, directory: Path) -> Path | None:
    """Write the user's login for one registry; return the file, or None if there is none.

    Args:
        registry: the registry.
        directory: a directory that only this user can enter.
    """
    login, _ = _find_login(registry)
    if not login:
        return None
    path = directory / _LOGIN_FILE
    write_atomically(path, json.dumps(login), mode=0o600)
    return path


def apptainer_login(registry: str, directory: Path) -> dict[str, str]:
    """Return the variables by which Apptainer gets the login that is written below a directory."""
    settings = directory / "login"
    settings.mkdir(mode=0o700, exist_ok=True)
    if write_login(registry, settings) is None:
        return {}
    return dict.fromkeys(("APPTAINER_CONFIGDIR", "SINGULARITY_CONFIGDIR"), str(settings))


def _find_login(registry: str) -> tuple[dict[str, Any], str]:
    """Find the user's login for a registry, as an ``auth.json``, and where it is configured.

    ``$NGC_API_KEY`` is for NGC's own registry and is sent to no other, also not to a mirror of it.
    An entry of one namespace is no login for the whole registry. A `credsStore` may have none, so
    it is asked if its file names the registry, or no other file has a login.
    """
    if registry == _NGC_REGISTRY and os.environ.get(_NGC_KEY):
        secret = base64.b64encode(f"{_NGC_USER}:{os.environ[_NGC_KEY]}".encode()).decode()
        return {"auths": {registry: {"auth": secret}}}, f"${_NGC_KEY}"
    hub = (_HUB_KEY,) if registry == _HUB else ()
    keys = (*hub, registry, *(f"https://{registry}{end}" for end in ("", "/", "/v1/", "/v2/")))
    store: tuple[dict[str, Any], str] = ({}, "")
    for path in _login_files():
        try:
            data = json.loads(read_text(path))
            auths, helpers = data.get("auths") or {}, data.get("credHelpers") or {}
            entries = [auths[key] for key in keys if key in auths]
            named = [helpers[key] for key in keys if key in helpers]
            secrets = [entry for entry in entries if entry.get("auth")]
        except (OSError, ValueError, AttributeError, TypeError, RecursionError):
            continue  # engines ignore it as well
        if secrets:
            return {"auths": {keys[0]: secrets[0]}}, str(path)
        # A copied file may name a helper that this machine lacks. skopeo asks no `credsStore`.
        helper = (*named, data.get("credsStore"))[0]
        is_name = isinstance(helper, str) and "/" not in helper
        if is_name and shell.which(f"docker-credential-{helper}"):
            login = {"credHelpers": dict.fromkeys(keys, helper)}, str(path)
            if entries or named:
                return login
            store = store if store[0] else login
    return store


def _login_files() -> list[Path]:
    """Return the files with logins: the one that the user names first (containers-auth.json(5))."""
    home, variable = os.environ.get("HOME") or str(Path.home()), os.environ.get
    runtime = variable("XDG_RUNTIME_DIR")
    places = (
        variable("REGISTRY_AUTH_FILE"),
        f"{variable('DOCKER_CONFIG') or f'{home}/.docker'}/config.json",
        f"{home}/.apptainer/{_LOGIN_FILE}",
        f"{home}/.singularity/{_LOGIN_FILE}",
        runtime and f"{runtime}/containers/auth.json",
        f"{variable('XDG_CONFIG_HOME') or f'{home}/.config'}/containers/auth.json",
    )
    return [Path(place) for place in places if place]


def proxy_variables() -> dict[str, str]:
    """Return the proxies of the environment for skopeo and Apptainer.

    Programs in Go obey no ``all_proxy``, so it is given as the proxies that are not set.
    """
    variables = proxies()
    known = {name.lower(): value for name, value in variables.items() if value}
    missing = [name for name in ("http_proxy", "https_proxy") if name not in known]
    return variables | (dict.fromkeys(missing, known["all_proxy"]) if "all_proxy" in known else {})


def read_mirrors() -> dict[str, str]:
    """Return the mirrors: ``$TOOLKIT_REGISTRIES`` over ``[registries]`` of each ``toolkit.toml``.

    Raises:
        UsageError, ConfigError: one of them cannot be read.
    """
    mirrors: dict[str, str] = {}
    for file in settings_files(Path.cwd()):
        try:
            mirrors |= check_mirrors(read_toml(file.path, Project).registries)
        except ValueError as error:
            raise ConfigError(
                str(error),
                place=f"{file.path}, key registries",
                next_step='write: "nvcr.io" = "mirror.site/ngc"',
            ) from None
    try:
        return mirrors | parse_mirrors(os.environ.get(VARIABLE, ""))
    except ValueError as error:
        raise UsageError(
            str(error),
            place=VARIABLE,
            next_step=f"{VARIABLE}='nvcr.io=mirror.site/ngc' toolkit image build ...",
        ) from None
