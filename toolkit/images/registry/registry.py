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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

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
    is_loopback,
    parse,
    parse_mirrors,
    redirect,
    require_mirror,
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
_REFUSED = ("unauthorized", "authentication required", "denied", "StatusCode: 403")


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
    known: Mapping[str, str] | None = None,
    written: str = "the recipe's [base]",
) -> Source:
    """Resolve a reference to its digest.

    Args:
        reference: as a recipe or the catalogue names it.
        digest: the digest that it must have.
        known: mirrors, instead of those that the user configured.
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
    place = redirect(wanted, read_mirrors() if known is None else known)
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
        UnknownImageError: the registry has no such repository or tag; names the nearest tags.
        ForbiddenError: the registry requires a login, or another login.
        CommandFailedError: the registry does not answer, or answers with something else.
        NeedsInstallError: skopeo is not installed.
    """
    # What a killed process left of this user is removed by the next.
    place = Path(tempfile.gettempdir()) / f"toolkit-login-{os.geteuid()}"
    with temporary_beside(place) as directory:
        login = write_login(reference.registry, directory)
        done = _skopeo(
            "inspect", ("--no-tags", "--format", "{{.Digest}}"), reference.pinned, reference, login
        )
        digest = done.stdout.strip()
        if done.ok and _DIGEST.fullmatch(digest):
            return digest
        if any(message in done.stderr for message in _UNKNOWN):
            _raise_unknown(reference, login)
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


def _skopeo(
    command: str, options: tuple[str, ...], image: str, reference: Reference, login: Path | None
) -> shell.Result:
    words = [require_skopeo(), "--command-timeout", f"{_PATIENCE}s", command, *options]
    words += ["--authfile", str(login)] if login else ["--no-creds"]
    words += ["--tls-verify=false"] if is_loopback(reference.registry) else []
    environment = os.environ | proxy_variables() | {"LC_ALL": "C.UTF-8"}
    return shell.run(
        [*words, f"docker://{image}"], env=environment, check=False, timeout=2 * _PATIENCE
    )


def _raise_unknown(reference: Reference, login: Path | None) -> NoReturn:
    listed = _skopeo("list-tags", (), reference.repository, reference, login)
    try:
        known = sorted(map(str, json.loads(listed.stdout)["Tags"] or ())) if listed.ok else []
    except (ValueError, KeyError, TypeError, RecursionError):
        known = []
    wanted = reference.digest or reference.tag
    if not known:
        raise UnknownImageError(
            f"the registry {reference.registry} has no {reference.path}:{wanted}",
            place=str(reference),
            next_step="compare the name with the registry's catalogue, or see `toolkit image list`",
        )
    kind = "image with the digest" if reference.digest else "tag"
    count = f"{len(known)} tags, among them " if len(known) > 8 else ""
    raise UnknownImageError(
        f"{reference.repository} has no {kind} {wanted}",
        place=str(reference),
        choices=known,
        value=reference.tag or None,
        next_step=f"it has {count}{', '.join(known[-8:])}",
    )


def explain_failure(reference: Reference, done: shell.Result) -> ToolkitError:
    """Return the error to raise after a program could not reach an image in a registry."""
    registry = reference.registry
    if any(message in done.stderr for message in _REFUSED):
        _, origin = _find_login(registry)
        refusal = f"does not accept the login from {origin}" if origin else "requires a login"
        step = (
            f"export {_NGC_KEY}=<your key> (from ngc.nvidia.com, Setup)"
            if registry == _NGC_REGISTRY
            else f"docker login {registry}, or:"
            f" apptainer registry login --username NAME docker://{registry}"
        )
        return ForbiddenError(
            f"the registry {registry} {refusal} for {reference.path}, or does not have it",
            place=str(reference),
            details=done.tail(),
            next_step=step,
        )
    return CommandFailedError(
        f"the registry {registry} does not give {reference.path}:"
        f"{reference.tag or reference.digest}",
        place=str(reference),
        details=done.tail(),
        next_step="check the address, and that this machine reaches the registry; through a"
        f" mirror: {VARIABLE}={registry}=MIRROR; without a network: `archive` in the recipe's"
        " [base]",
    )


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
    A secret in a file comes before a credential helper, which a copied file may name and this
    machine lack. An entry of one namespace is no login for the whole registry.
    """
    if registry == _NGC_REGISTRY and os.environ.get(_NGC_KEY):
        secret = base64.b64encode(f"{_NGC_USER}:{os.environ[_NGC_KEY]}".encode()).decode()
        return {"auths": {registry: {"auth": secret}}}, f"${_NGC_KEY}"
    hub = (_HUB_KEY,) if registry == _HUB else ()
    keys = (*hub, registry, *(f"https://{registry}{end}" for end in ("", "/", "/v1/", "/v2/")))
    stores: list[tuple[dict[str, Any], str]] = []
    for path in _login_files():
        data = _read_table(path)
        auths, helpers = (_table(data, name) for name in ("auths", "credHelpers"))
        for key in keys:
            entry = _table(auths, key)
            if entry.get("auth"):
                return {"auths": {(*hub, registry)[0]: entry}}, str(path)
            helper = helpers.get(key) or (data.get("credsStore") if key in auths else None)
            if _is_helper(helper):
                return {"credHelpers": dict.fromkeys((*hub, registry), helper)}, str(path)
        if _is_helper(data.get("credsStore")):
            store = {"credHelpers": dict.fromkeys((*hub, registry), data["credsStore"])}
            stores.append((store, str(path)))
    return stores[0] if stores else ({}, "")


def _login_files() -> Iterator[Path]:
    """Yield the files with logins: the one that the user names first (containers-auth.json(5))."""
    home = Path(os.environ.get("HOME") or Path.home())
    if os.environ.get("REGISTRY_AUTH_FILE"):
        yield Path(os.environ["REGISTRY_AUTH_FILE"])
    yield Path(os.environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    yield home / ".apptainer" / _LOGIN_FILE
    yield home / ".singularity" / _LOGIN_FILE
    if os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(os.environ["XDG_RUNTIME_DIR"]) / "containers/auth.json"
    yield Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "containers/auth.json"


def _read_table(path: Path) -> dict[str, Any]:
    """Return a JSON object; an empty one if a file has none, since engines ignore it as well."""
    try:
        data = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _table(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    return data[key] if isinstance(data.get(key), dict) else {}


def _is_helper(name: object) -> bool:
    return (
        isinstance(name, str)
        and "/" not in name
        and shell.which(f"docker-credential-{name}") is not None
    )


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
    try:
        chosen = parse_mirrors(os.environ.get(VARIABLE, ""))
    except ValueError as error:
        raise UsageError(
            str(error),
            place=VARIABLE,
            next_step=f"{VARIABLE}='nvcr.io=mirror.site/ngc' toolkit image build ...",
        ) from None
    mirrors_of_files: dict[str, str] = {}
    for file in settings_files(Path.cwd()):
        mirrors_of_files |= _read_settings_file(file.path)
    return {**mirrors_of_files, **chosen}


def _read_settings_file(path: Path) -> dict[str, str]:
    table = read_toml(path, Project).registries
    try:
        for name, target in table.items():
            require_mirror(name, target)
    except ValueError as error:
        raise ConfigError(
            str(error),
            place=f"{path}, key registries",
            next_step='write: "nvcr.io" = "mirror.site/ngc"',
        ) from None
    return {name.rstrip("/"): target.rstrip("/") for name, target in table.items()}
