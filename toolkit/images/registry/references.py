"""References of images in registries: parse, write, and redirect them to a mirror. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from toolkit.model.base import Model

DEFAULT_REGISTRY = "docker.io"
_PATH = re.compile(
    r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*\Z"
)
_REGISTRY = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?\Z"
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_LOOPBACK = re.compile(r"(?:localhost|127(?:\.\d+){3}|\[::1\])(?::\d+)?\Z")


class Reference(Model, frozen=True, kw_only=True):
    """``nvcr.io/nvidia/pytorch:22.03-py3@sha256:...``, taken apart.

    Attributes:
        registry: host, and port if one is named.
        path: of the repository in it.
        tag: empty where only a digest is named.
        digest: of the manifest: ``sha256:`` and 64 digits; empty where only a tag is named.
    """

    registry: str
    path: str
    tag: str = ""
    digest: str = ""

    @property
    def repository(self) -> str:
        """Without tag and digest: ``nvcr.io/nvidia/pytorch``."""
        return f"{self.registry}/{self.path}"

    @property
    def pinned(self) -> str:
        """The reference that names exactly one image if its digest is known."""
        return (
            f"{self.repository}@{self.digest}" if self.digest else f"{self.repository}:{self.tag}"
        )

    def __str__(self) -> str:
        """Return the complete reference."""
        return (
            self.repository
            + (f":{self.tag}" if self.tag else "")
            + (f"@{self.digest}" if self.digest else "")
        )


def parse(text: str) -> Reference:
    """Parse a reference by the rules of Docker.

    Without a registry it is of ``docker.io``; without tag and digest its tag is ``latest``.

    Raises:
        ValueError: it is not a reference; the message says why.
    """
    rest, _, digest = text.removeprefix("docker://").partition("@")
    first, slash, others = rest.partition("/")
    has_registry = bool(slash) and ("." in first or ":" in first or first == "localhost")
    registry, path = (first, others) if has_registry else (DEFAULT_REGISTRY, rest)
    path, _, tag = path.partition(":")
    if registry == DEFAULT_REGISTRY and "/" not in path:
        path = f"library/{path}"
    parts = [(registry, _REGISTRY, "name of a registry"), (path, _PATH, "name of a repository")]
    parts += [(tag, _TAG, "tag")] if tag else []
    parts += [(digest, _DIGEST, "digest")] if "@" in text else []
    for part, pattern, what in parts:
        if not pattern.match(part):
            raise ValueError(f"{text!r} is not an image reference: {part!r} is not a {what}")
    return Reference(
        registry=registry, path=path, tag=tag or ("" if digest else "latest"), digest=digest
    )


def is_loopback(registry: str) -> bool:
    """Return whether a registry is on this machine; only there engines use plain HTTP."""
    return bool(_LOOPBACK.match(registry))


def redirect(reference: Reference, mirrors: Mapping[str, str]) -> Reference:
    """Redirect a reference to the mirror that it is fetched from.

    Args:
        reference: as recipes name it.
        mirrors: replacements of a registry, or of the beginning of a repository:
            ``{"nvcr.io": "mirror.site/ngc"}``. The longest that fits is used, once.
    """
    for prefix in sorted(mirrors, key=len, reverse=True):
        if f"{reference.repository}/".startswith(f"{prefix}/"):
            moved = mirrors[prefix] + reference.repository[len(prefix) :]
            registry, _, path = moved.partition("/")
            return replace(reference, registry=registry, path=path)
    return reference


def parse_mirrors(text: str) -> dict[str, str]:
    """Parse ``TOOLKIT_REGISTRIES``: ``nvcr.io=mirror.site/ngc docker.io=mirror.site/hub``.

    Raises:
        ValueError: a word is not of that form.
    """
    pairs = [pair.partition("=") for pair in text.replace(",", " ").split()]
    for name, equals, _ in pairs:
        if not equals:
            raise ValueError(f"{name!r} is not of the form REGISTRY=MIRROR")
    return check_mirrors({name: target for name, _, target in pairs})


def check_mirrors(mirrors: Mapping[str, str]) -> dict[str, str]:
    """Return mirrors without slashes at their ends.

    Raises:
        ValueError: a name is not a registry, with or without the beginning of a path.
    """
    checked = {name.rstrip("/"): target.rstrip("/") for name, target in mirrors.items()}
    for place in (*checked, *checked.values()):
        if parse(f"{place}/image").registry != place.partition("/")[0]:
            raise ValueError(
                f"{place!r} is not a registry: write mirror.site or mirror.site:5000, with a path"
                " behind it if there is one"
            )
    return checked
