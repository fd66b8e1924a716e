"""Names of images in registries: read, written, and sent to a mirror. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

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
        """What engines take for exactly one image: by its digest where that is known, else by its tag."""
        return (
            f"{self.repository}@{self.digest}" if self.digest else f"{self.repository}:{self.tag}"
        )

    def __str__(self) -> str:
        return (
            self.repository
            + (f":{self.tag}" if self.tag else "")
            + (f"@{self.digest}" if self.digest else "")
        )


def parse(text: str) -> Reference:
    """Read a reference by the rules of Docker: no registry is ``docker.io``, neither tag nor digest is ``latest``.

    Raises:
        ValueError: it is none; says what is wrong with it.
    """
    rest, _, digest = text.removeprefix("docker://").partition("@")
    first, slash, others = rest.partition("/")
    has_registry = bool(slash) and ("." in first or ":" in first or first == "localhost")
    registry, path = (first, others) if has_registry else (DEFAULT_REGISTRY, rest)
    path, _, tag = path.partition(":")
    if registry == DEFAULT_REGISTRY and "/" not in path:
        path = f"library/{path}"
    for part, pattern, what in (
        (registry, _REGISTRY, "name of a registry"),
        (path, _PATH, "name of a repository"),
    ):
        if not pattern.match(part):
            raise ValueError(f"{text!r} is no reference of an image: {part!r} is no {what}")
    if tag and not _TAG.match(tag):
        raise ValueError(f"{text!r} is no reference of an image: {tag!r} is no tag")
    if ("@" in rest or "@" in text) and not _DIGEST.match(digest):
        raise ValueError(f"{text!r} is no reference of an image: {digest!r} is no digest")
    return Reference(
        registry=registry, path=path, tag=tag or ("" if digest else "latest"), digest=digest
    )


def is_loopback(registry: str) -> bool:
    """Whether it is on this machine, where engines speak plain HTTP with it, as they do with no other."""
    return bool(_LOOPBACK.match(registry))


def rewritten(reference: Reference, mirrors: Mapping[str, str]) -> Reference:
    """Where a reference is really fetched from.

    Args:
        reference: as recipes name it.
        mirrors: a registry, or the beginning of a repository, and what stands for it: ``{"nvcr.io": "mirror.site/ngc"}``. The longest
            that fits is taken, once.
    """
    for prefix in sorted(mirrors, key=len, reverse=True):
        if reference.repository == prefix or reference.repository.startswith(f"{prefix}/"):
            registry, _, path = (
                mirrors[prefix].rstrip("/") + reference.repository[len(prefix) :]
            ).partition("/")
            return Reference(
                registry=registry, path=path, tag=reference.tag, digest=reference.digest
            )
    return reference


def mirrors(text: str) -> dict[str, str]:
    """What ``TOOLKIT_REGISTRIES`` says: ``nvcr.io=mirror.site/ngc docker.io=mirror.site/hub``.

    Raises:
        ValueError: a part of it is not of that form.
    """
    found: dict[str, str] = {}
    for pair in text.replace(",", " ").split():
        name, equals, target = pair.partition("=")
        if not equals:
            raise ValueError(f"{pair!r} is not of the form REGISTRY=MIRROR")
        require_mirror(name, target)
        found[name.rstrip("/")] = target.rstrip("/")
    return found


def require_mirror(name: str, target: str) -> None:
    """Refuse what is no registry, with or without the beginning of a path.

    Raises:
        ValueError: which of the two it is.
    """
    for place in (name, target):
        registry, slash, path = place.rstrip("/").partition("/")
        is_host = "." in registry or ":" in registry or registry == "localhost"
        if not is_host or not _REGISTRY.match(registry) or (slash and not _PATH.match(path)):
            raise ValueError(
                f"{place!r} is no registry: write mirror.site or mirror.site:5000, and a path behind it if there is one"
            )
